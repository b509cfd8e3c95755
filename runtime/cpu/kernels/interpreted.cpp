// Any node without a kernel: the interpreter runs it, on plain tensors. Slow, and it allocates;
// explain shows such layers as interpreted. Operands in another layout are copied to the plain one
// and back.
#include <cstring>

#include "engine/base/diagnostics.h"
#include "engine/interpreter/interpreter.h"
#include "runtime/cpu/kernel.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// Between an operand's memory and a plain tensor of the same dims.
StridedCopy converter(const Operand& o, bool to_plain) {
  auto plain = strides_of(o.dims, Layout::plain);
  return to_plain ? StridedCopy(o.dims, o.strides(), plain, size_bits(o.dtype) / 8)
                  : StridedCopy(o.dims, plain, o.strides(), size_bits(o.dtype) / 8);
}

class Interpreted final : public Kernel {
 public:
  Interpreted(Context& context, const KernelCall& call)
      : layer_(call.layer),
        node_(*call.node),
        graph_(*call.graph),
        inputs_(call.inputs),
        outputs_(call.outputs) {
    options_.ops = context.ops;
    options_.limits = context.limits;
    options_.cancel = context.cancel;
    options_.draws = &draws_;
    options_.prepared = &prepared_;
    sources_.resize(inputs_.size());
    targets_.resize(outputs_.size());
  }

  void bind(Binder& binder) override {
    for (size_t k = 0; k < inputs_.size(); ++k)
      if (inputs_[k].slot >= 0) binder.cell(inputs_[k].slot, &sources_[k]);
    for (size_t k = 0; k < outputs_.size(); ++k)
      if (outputs_[k].slot >= 0) binder.cell(outputs_[k].slot, &targets_[k]);
  }
  std::string text() const override { return "interpret"; }
  bool interprets() const override { return true; }

  Status run() override {
    const OneKernel one;  // layouts and types are what the interpreter's call costs
    std::vector<Tensor> tensors(inputs_.size());
    std::vector<const Tensor*> pointers(inputs_.size(), nullptr);
    for (size_t k = 0; k < inputs_.size(); ++k) {
      if (!inputs_[k].present()) continue;
      tensors[k] = read(k);
      pointers[k] = &tensors[k];
    }
    // Plain results are computed where they belong, as far as their operator can.
    std::vector<Room> rooms(outputs_.size());
    for (size_t k = 0; k < outputs_.size(); ++k)
      if (const Operand& o = outputs_[k]; o.slot >= 0 && o.lies(Layout::plain) && o.dense())
        rooms[k] = {Tensor(o.dtype, o.dims, nullptr, targets_[k]), targets_[k]};
    FERRULE_ASSIGN(auto results, interpret_node(graph_, node_, pointers, options_, rooms));
    for (size_t k = 0; k < outputs_.size() && k < results.size(); ++k)
      if (outputs_[k].slot >= 0) FERRULE_TRY(write(k, results[k]));
    return {};
  }

 private:
  Tensor read(size_t k) const {
    const Operand& o = inputs_[k];
    if (o.constant) return *o.constant;
    if (o.lies(Layout::plain) && o.dense()) return Tensor(o.dtype, o.dims, nullptr, sources_[k]);
    auto [t, p] = Tensor::allocate(o.dtype, o.dims);
    converter(o, true).run(sources_[k], p);
    return t;
  }

  Status write(size_t k, const Tensor& t) const {
    const Operand& o = outputs_[k];
    if (t.dims() != o.dims || t.dtype() != o.dtype)
      return error(Code::bad_shape, escape(layer_),
                   "the interpreter's result has another size than planned");
    if (t.data() == targets_[k]) return {};
    if (o.lies(Layout::plain) && o.dense())
      std::memcpy(targets_[k], t.data(), static_cast<size_t>(t.bytes()));
    else
      converter(o, false).run(t.data(), targets_[k]);
    return {};
  }

  std::string layer_;
  const Node& node_;
  const Graph& graph_;
  std::vector<Operand> inputs_, outputs_;
  Draws draws_;
  ferrule::Prepared prepared_;
  InterpreterOptions options_;
  std::vector<const void*> sources_;
  std::vector<void*> targets_;
};

}  // namespace

Applicable<KernelPtr> make_interpreted(Context& context, const KernelCall& call) {
  for (const Operand& o : call.inputs)
    if (o.dtype == DType::string)
      return error(Code::unsupported_type, escape(call.layer), "a string operand");
  return std::make_unique<Interpreted>(context, call);
}

}  // namespace ferrule::cpu
