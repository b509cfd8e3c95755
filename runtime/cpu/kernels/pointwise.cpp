// Pointwise regions as generated kernels: the loop nest is made for these dims and layouts, the
// machine code comes from the JIT, which shares it between shapes, layers and sessions.
#include <unistd.h>

#include <algorithm>

#include "codegen/cpu/jit.h"
#include "codegen/cpu/loop_nest.h"
#include "engine/base/diagnostics.h"
#include "engine/semantics/nodes_to_programs.h"
#include "runtime/cpu/kernel.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// An operand's strides along the axes of the result: aligned at the last one, 0 where it is
/// broadcast.
Applicable<std::vector<int64_t>> broadcast_strides(const KernelCall& call, const Operand& o,
                                                   const std::vector<int64_t>& dims) {
  const std::vector<int64_t> own = o.strides();
  std::vector<int64_t> strides(dims.size(), 0);
  if (own.size() > dims.size())
    return not_applicable(escape(call.layer), "this region",
                          "an operand has more axes than the result");
  const size_t extra = dims.size() - own.size();
  for (size_t k = 0; k < own.size(); ++k) {
    if (o.dims[k] == dims[k + extra])
      strides[k + extra] = o.dims[k] == 1 ? 0 : own[k];
    else if (o.dims[k] != 1)
      return not_applicable(escape(call.layer), "this region", "operands that do not broadcast");
  }
  return strides;
}

Applicable<LoopNest> nest_of(const KernelCall& call) {
  const std::vector<int64_t>& dims = call.outputs.at(0).dims;
  std::vector<std::vector<int64_t>> strides;
  std::vector<int> bytes;
  for (const auto* operands : {&call.inputs, &call.outputs})
    for (const Operand& o : *operands) {
      const int bits = size_bits(o.dtype);
      if (bits < 8) return not_applicable(escape(call.layer), "this region", name(o.dtype));
      if (operands == &call.outputs && o.dims != dims)
        return not_applicable(escape(call.layer), "this region", "results of several sizes");
      FERRULE_ASSIGN(auto s, broadcast_strides(call, o, dims));
      // The loop keeps a result's stride also along axes of size 1.
      strides.push_back(operands == &call.outputs ? o.strides() : std::move(s));
      bytes.push_back(bits / 8);
    }
  return LoopNest::make(dims, strides, bytes, call.outputs.size());
}

/// An operand that the inner loop would read across memory: the region runs as one piece, which
/// stages it.
bool reads_across(const LoopNest& nest) {
  return std::ranges::find(nest.inner(), InnerStride::strided) != nest.inner().end();
}

LoweredRegion one_piece(const KernelCall& call) {
  LoweredRegion region = *call.region;
  const std::vector<int64_t>& dims = call.outputs[0].dims;
  const size_t rank = dims.size();
  RegionPiece piece;
  piece.dims = dims;
  auto add = [&](const Operand& o, size_t k, std::vector<PieceOperand>& to) {
    PieceOperand p{static_cast<uint32_t>(k), std::vector<int64_t>(o.dims.size(), 0),
                   std::vector<std::vector<int64_t>>(rank, std::vector<int64_t>(o.dims.size(), 0))};
    for (size_t d = 0; d < o.dims.size(); ++d)
      if (o.dims[d] != 1) p.steps[d + rank - o.dims.size()][d] = 1;
    to.push_back(std::move(p));
  };
  for (size_t k = 0; k < call.inputs.size(); ++k) add(call.inputs[k], k, piece.inputs);
  for (size_t k = 0; k < call.outputs.size(); ++k) add(call.outputs[k], k, piece.outputs);
  region.pieced = true;
  region.programs = {region.program};
  region.pieces = {std::move(piece)};
  return region;
}

int64_t last_cache_bytes() {
  static const int64_t bytes = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), int64_t{8} << 20);
  return bytes;
}

/// Results far larger than the caches are written past them, where every row of them can be
/// aligned.
bool past_caches(const KernelCall& call, const LoopNest& nest) {
  int64_t total = 0;
  for (const Operand& o : call.outputs) {
    total += o.bytes();
    const bool aligned = nest.size() == 1 || nest.unit() * (size_bits(o.dtype) / 8) % 64 == 0;
    if (!aligned || !o.dense() || nest.unit() == 0 ||
        nest.size() != (nest.elements() + nest.unit() - 1) / nest.unit())
      return false;
  }
  return total > last_cache_bytes() / 2;
}

class Pointwise final : public Kernel {
 public:
  Pointwise(const KernelCall& call, LoopNest nest, std::shared_ptr<const CompiledKernel> code,
            std::shared_ptr<const CompiledKernel> streaming)
      : nest_(std::move(nest)),
        code_(std::move(code)),
        streaming_(std::move(streaming)),
        inputs_(call.inputs.size()) {
    for (const auto* operands : {&call.inputs, &call.outputs})
      for (const Operand& o : *operands) {
        slots_.push_back(o.slot);
        pointers_.push_back(o.constant ? const_cast<void*>(o.constant->data()) : nullptr);
      }
    // Enough work a thread to be worth waking it.
    const int64_t elements = std::max<int64_t>(2048, 65536 / (1 + call.region->program.cost() / 8));
    grain_ = std::max<int64_t>(1, elements / std::max<int64_t>(1, nest_.unit()));
  }

  void bind(Binder& binder) override {
    for (size_t k = 0; k < slots_.size(); ++k)
      if (slots_[k] >= 0) binder.cell(slots_[k], &pointers_[k]);
  }

  Status run() override {
    const KernelFn fn = streaming_ && aligned() ? streaming_->fn : code_->fn;
    parallel_for(nest_.size(), grain_,
                 [&](int64_t begin, int64_t end) { nest_.run(fn, pointers_.data(), begin, end); });
    return {};
  }
  std::string text() const override {
    return "generated:" + code_->symbol + (streaming_ ? ":streaming" : "");
  }

 private:
  bool aligned() const {
    for (size_t k = inputs_; k < pointers_.size(); ++k)
      if (reinterpret_cast<uintptr_t>(pointers_[k]) % 64) return false;
    return true;
  }

  LoopNest nest_;
  std::shared_ptr<const CompiledKernel> code_, streaming_;
  size_t inputs_;
  int64_t grain_ = 1;
  std::vector<int> slots_;
  std::vector<void*> pointers_;
};

}  // namespace

Applicable<std::vector<CpuJit::Request>> pointwise_requests(Context& context,
                                                            const KernelCall& call) {
  if (call.region->pieced) return pieces_requests(context, call);
  FERRULE_ASSIGN(LoopNest nest, nest_of(call));
  if (reads_across(nest)) {
    const LoweredRegion region = one_piece(call);
    KernelCall piece = call;
    piece.region = &region;
    return pieces_requests(context, piece);
  }
  std::vector<CpuJit::Request> requests;
  requests.push_back(
      {{call.region->program, nest.inner(), context.target->name, false}, call.layer});
  if (past_caches(call, nest)) {
    requests.push_back(requests[0]);
    requests[1].key.non_temporal = true;
  }
  return requests;
}

Applicable<KernelPtr> make_pointwise(Context& context, const KernelCall& call) {
  if (call.region->pieced) return make_pieces(context, call);
  FERRULE_ASSIGN(LoopNest nest, nest_of(call));
  if (reads_across(nest)) {
    const LoweredRegion region = one_piece(call);
    KernelCall piece = call;
    piece.region = &region;
    return make_pieces(context, piece);
  }
  FERRULE_ASSIGN(auto requests, pointwise_requests(context, call));
  std::shared_ptr<const CompiledKernel> code[2];
  for (size_t k = 0; k < requests.size(); ++k) {
    FERRULE_ASSIGN(code[k], CpuJit::instance().compile(requests[k].key, requests[k].name));
  }
  return std::make_unique<Pointwise>(call, std::move(nest), std::move(code[0]), std::move(code[1]));
}

}  // namespace ferrule::cpu
