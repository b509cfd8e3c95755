// Movements and reorders as strided copies between operands, layouts included: each becomes a list
// of parts worked out once. What codegen lowers to a few
// pieces comes to region_pieces.cpp instead; this is for reorders, more pieces than those, and
// element types that generated code does not know.
#include <cstring>

#include "engine/base/diagnostics.h"
#include "engine/semantics/movement_parts.h"
#include "runtime/cpu/kernel.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

struct Part {
  size_t input = 0, output = 0;
  StridedCopy copy;
};

class Copy final : public Kernel {
 public:
  explicit Copy(const KernelCall& call) {
    for (const Operand& o : call.inputs) {
      inputs_.push_back(o.constant ? o.constant->data() : nullptr);
      input_slots_.push_back(o.slot);
    }
    for (const Operand& o : call.outputs) output_slots_.push_back(o.slot);
    outputs_.resize(call.outputs.size());
  }
  void add(Part p) { parts_.push_back(std::move(p)); }
  /// Fills output 0 with this element first (Pad).
  void fill(StridedCopy copy, std::vector<char> element) {
    fill_ = std::move(copy);
    element_ = std::move(element);
  }
  void bind(Binder& binder) override {
    for (size_t k = 0; k < inputs_.size(); ++k)
      if (input_slots_[k] >= 0) binder.cell(input_slots_[k], &inputs_[k]);
    for (size_t k = 0; k < outputs_.size(); ++k)
      if (output_slots_[k] >= 0) binder.cell(output_slots_[k], &outputs_[k]);
  }
  Status run() override {
    const OneKernel one;  // all parts of one result
    if (!element_.empty()) fill_.run(element_.data(), outputs_[0]);
    for (const Part& p : parts_) p.copy.run(inputs_[p.input], outputs_[p.output]);
    return {};
  }
  std::string text() const override {
    return std::string("copy:") + (parts_.empty() ? "nothing" : parts_[0].copy.text());
  }

 private:
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::vector<int> input_slots_, output_slots_;
  std::vector<Part> parts_;
  StridedCopy fill_;
  std::vector<char> element_;
};

int element_bytes(const Operand& o) { return size_bits(o.dtype) / 8; }

/// Of a movement in more parts than this the interpreter is quicker done than its list.
constexpr size_t kMostParts = 1 << 16;

Applicable<> move(const KernelCall& call, size_t output, const Movement& m, Copy& out) {
  const Operand& y = call.outputs[output];
  const auto moved = parts_of(m, y.dims, call.inputs[0].dims.size(), kMostParts);
  if (!moved || moved->result != y.dims || !moved->operand.empty())
    return not_applicable(escape(call.layer), escape(call.node->op),
                          "it is not a few strided copies");
  const std::vector<int64_t> to = y.strides();
  for (const MovedPart& p : moved->parts) {
    if (p.operand == Segment::kFill) {
      std::vector<char> element(static_cast<size_t>(element_bytes(y)), 0);
      if (m.fill) std::memcpy(element.data(), m.fill->data(), element.size());
      out.fill(StridedCopy(y.dims, std::vector<int64_t>(y.dims.size(), 0), to, element_bytes(y)),
               std::move(element));
      continue;
    }
    const Operand& x = call.inputs[static_cast<size_t>(p.operand)];
    const std::vector<int64_t> from = x.strides();
    int64_t target = 0;
    for (size_t k = 0; k < to.size(); ++k) target += p.begin[k] * to[k];
    out.add({static_cast<size_t>(p.operand), output,
             StridedCopy(p.dims, p.steps(from), to, element_bytes(y), p.offset(from), target)});
  }
  return {};
}

}  // namespace

Applicable<KernelPtr> make_copy(Context& context, const KernelCall& call) {
  if (call.work == Work::gather) return make_gather(context, call);
  const int bits = size_bits(call.inputs[0].dtype);
  if (bits % 8 || (bits != 8 && bits != 16 && bits != 32 && bits != 64 && bits != 128))
    return not_applicable(escape(call.layer), call.node->op.text(), name(call.inputs[0].dtype));
  auto kernel = std::make_unique<Copy>(call);
  if (!is_movement(*call.node)) {  // a reorder
    const Operand &x = call.inputs[0], &y = call.outputs[0];
    kernel->add({0, 0, StridedCopy(y.dims, x.strides(), y.strides(), element_bytes(y))});
    return kernel;
  }
  const std::vector<Applicable<Movement>> movements = movements_of(*call.graph, *call.node);
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    if (!call.outputs[k].present()) continue;
    if (!movements[k]) return fail(movements[k].error());
    FERRULE_TRY(move(call, k, *movements[k], *kernel));
  }
  return kernel;
}

}  // namespace ferrule::cpu
