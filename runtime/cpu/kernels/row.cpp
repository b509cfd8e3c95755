// Row operators with their pointwise neighbours as generated kernels: the nest is made for these
// dims and layouts, the stages' machine code comes from the JIT. Rows are split over threads; where
// there are fewer rows than threads, long rows are cut and the reductions of the pieces combined.
#include <algorithm>

#include "codegen/cpu/jit.h"
#include "codegen/cpu/row_nest.h"
#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernel.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

Applicable<RowNest> nest_of(const Context& context, const KernelCall& call) {
  std::vector<RowLayout> operands;
  for (const auto* list : {&call.inputs, &call.outputs})
    for (const Operand& o : *list) {
      if (size_bits(o.dtype) < 8)
        return not_applicable(escape(call.layer), "this region", name(o.dtype));
      operands.push_back({o.dims, o.strides()});
    }
  RowSplits own;
  auto nest = RowNest::make(*call.rows, operands, context.target->name, context.target->l2_bytes,
                            threads(), context.splits ? *context.splits : own);
  if (!nest && nest.error().place().empty()) nest.error().set_place(escape(call.layer));
  return nest;
}

class Rows final : public Kernel {
 public:
  Rows(const KernelCall& call, RowNest nest,
       std::vector<std::shared_ptr<const CompiledKernel>> code)
      : nest_(std::move(nest)), code_(std::move(code)) {
    for (const auto& c : code_) fns_.push_back(c->fn);
    for (const auto* list : {&call.inputs, &call.outputs})
      for (const Operand& o : *list) {
        slots_.push_back(o.slot);
        pointers_.push_back(o.constant ? const_cast<void*>(o.constant->data()) : nullptr);
      }
    // Enough work a thread to be worth waking it.
    const int64_t grain = std::max<int64_t>(2048, 65536 / (1 + nest_.cost() / 8));
    const int64_t useful = std::clamp<int64_t>(nest_.elements() / grain, 1, threads());
    sliced_ = nest_.blocks() < useful && nest_.slices() >= 2 * useful;
    team_ = sliced_ ? useful : std::min(useful, nest_.blocks());
  }

  int64_t scratch_bytes() const override {
    return nest_.scratch_bytes() * std::max<int64_t>(team_, 1) + 64;
  }
  void bind(Binder& binder) override {
    for (size_t k = 0; k < slots_.size(); ++k)
      if (slots_[k] >= 0) binder.cell(slots_[k], &pointers_[k]);
    const auto at = reinterpret_cast<uintptr_t>(binder.scratch());
    scratch_ = reinterpret_cast<char*>((at + 63) & ~uintptr_t{63});
  }

  Status run() override {
    const int64_t blocks = nest_.blocks();
    if (blocks <= 0) return {};
    on_team(team_, [&](int me, int team) {
      if (sliced_)
        return nest_.run_sliced(fns_, pointers_.data(), me, team, scratch_, team_barrier);
      nest_.run(fns_, pointers_.data(), blocks * me / team, blocks * (me + 1) / team,
                scratch_ + me * nest_.scratch_bytes());
    });
    return {};
  }
  std::string text() const override {
    return "generated_rows:" + code_[0]->symbol + (sliced_ ? ":sliced" : "");
  }

 private:
  RowNest nest_;
  std::vector<std::shared_ptr<const CompiledKernel>> code_;
  std::vector<KernelFn> fns_;
  bool sliced_ = false;
  int64_t team_ = 1;
  std::vector<int> slots_;
  std::vector<void*> pointers_;
  char* scratch_ = nullptr;
};

}  // namespace

Applicable<std::vector<CpuJit::Request>> row_requests(Context& context, const KernelCall& call) {
  FERRULE_ASSIGN(RowNest nest, nest_of(context, call));
  std::vector<CpuJit::Request> requests;
  for (const KernelKey& key : nest.kernels()) requests.push_back({key, call.layer});
  return requests;
}

Applicable<KernelPtr> make_rows(Context& context, const KernelCall& call) {
  FERRULE_ASSIGN(RowNest nest, nest_of(context, call));
  std::vector<std::shared_ptr<const CompiledKernel>> code;
  for (const KernelKey& key : nest.kernels()) {
    FERRULE_ASSIGN(auto one, CpuJit::instance().compile(key, call.layer));
    code.push_back(std::move(one));
  }
  return std::make_unique<Rows>(call, std::move(nest), std::move(code));
}

}  // namespace ferrule::cpu
