// Any layer without a kernel: the interpreter runs it on the host, between two transfers. Slow, it
// waits for the device and it allocates; explain shows such layers as interpreted. Operands in
// another layout are copied to the plain one and back on the host. A result that is a part of
// something larger is read first, so that what lies between stays.
#include "engine/base/diagnostics.h"
#include "engine/interpreter/interpreter.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/host_copy.h"
#include "runtime/cuda/kernel.h"
#include "runtime/gpu_steps.h"

namespace ferrule::cuda {
namespace {

class Interpreted final : public Kernel {
 public:
  Interpreted(Context& context, const KernelCall& call)
      : device_(context.device),
        layer_(call.layer),
        node_(*call.node),
        graph_(*call.graph),
        inputs_(call.inputs),
        outputs_(call.outputs),
        sources_(inputs_.size()),
        targets_(outputs_.size()) {
    options_.ops = context.ops;
    options_.limits = context.limits;
    options_.cancel = context.cancel;
    options_.draws = &draws_;
  }

  Status bind(Binder& binder) override {
    for (size_t k = 0; k < inputs_.size(); ++k)
      if (inputs_[k].slot >= 0) sources_[k] = binder.slot(inputs_[k].slot);
    for (size_t k = 0; k < outputs_.size(); ++k)
      if (outputs_[k].slot >= 0) targets_[k] = binder.slot(outputs_[k].slot);
    return {};
  }
  bool capturable() const override { return false; }
  std::string text() const override { return "interpret on the host"; }
  bool interprets() const override { return true; }

  Status enqueue(Stream stream) override {
    std::vector<Tensor> tensors(inputs_.size());
    std::vector<const Tensor*> pointers(inputs_.size(), nullptr);
    for (size_t k = 0; k < inputs_.size(); ++k) {
      if (!inputs_[k].present()) continue;
      FERRULE_ASSIGN(tensors[k], read(k, stream));
      pointers[k] = &tensors[k];
    }
    FERRULE_ASSIGN(auto results, interpret_node(graph_, node_, pointers, options_));
    for (size_t k = 0; k < outputs_.size() && k < results.size(); ++k)
      if (outputs_[k].slot >= 0) FERRULE_TRY(write(k, results[k], stream));
    return counted({});  // one step, as in the plan
  }

 private:
  static int64_t element(const Operand& o) { return size_bits(o.dtype) / 8; }

  Result<Tensor> read(size_t k, Stream stream) const {
    const Operand& o = inputs_[k];
    if (o.constant) return *o.constant;
    auto [t, p] = Tensor::allocate(o.dtype, o.dims);
    if (o.lies(Layout::plain) && o.dense()) {
      FERRULE_TRY(device_.download(p, sources_[k], o.bytes(), stream, escape(layer_)));
      return t;
    }
    std::vector<char> raw(static_cast<size_t>(extent(o.dims, o.strides()) * element(o)));
    FERRULE_TRY(device_.download(raw.data(), sources_[k], static_cast<int64_t>(raw.size()), stream,
                                 escape(layer_)));
    copy_strided(o.dims, o.strides(), raw.data(), strides_of(o.dims, Layout::plain), p, element(o));
    return t;
  }

  Status write(size_t k, const Tensor& t, Stream stream) const {
    const Operand& o = outputs_[k];
    if (t.dims() != o.dims || t.dtype() != o.dtype)
      return error(Code::bad_shape, escape(layer_),
                   "the interpreter's result has another size than planned");
    if (o.lies(Layout::plain) && o.dense())
      return device_.upload(targets_[k], t.data(), o.bytes(), stream, escape(layer_));
    std::vector<char> raw(static_cast<size_t>(extent(o.dims, o.strides()) * element(o)));
    if (!o.dense())
      FERRULE_TRY(device_.download(raw.data(), targets_[k], static_cast<int64_t>(raw.size()),
                                   stream, escape(layer_)));
    copy_strided(o.dims, strides_of(o.dims, Layout::plain), t.data(), o.strides(), raw.data(),
                 element(o));
    return device_.upload(targets_[k], raw.data(), static_cast<int64_t>(raw.size()), stream,
                          escape(layer_));
  }

  Device& device_;
  std::string layer_;
  const Node& node_;
  const Graph& graph_;
  std::vector<Operand> inputs_, outputs_;
  std::vector<Address> sources_, targets_;
  Draws draws_;
  InterpreterOptions options_;
};

}  // namespace

Applicable<KernelPtr> make_interpreted(Context& context, const KernelCall& call) {
  FERRULE_TRY(check_interpreted(call));
  return std::make_unique<Interpreted>(context, call);
}

}  // namespace ferrule::cuda
