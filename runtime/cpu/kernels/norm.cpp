// Inference BatchNormalization that nothing folded: one factor and one addend a channel, computed
// in double when the kernel is made, then the generated kernel x * factor + addend over any layout.
// The machine code is the same for all of them but for how the channels lie, so a network compiles
// it once or twice.
#include <cmath>

#include "engine/base/diagnostics.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/program_builder.h"
#include "runtime/cpu/kernel.h"

namespace ferrule::cpu {
namespace {

/// Per channel, shaped [channels, 1, …] so that they broadcast over the image.
struct Affine {
  Tensor factor, addend;
};

Applicable<Affine> affine_of(const KernelCall& call) {
  const Operand& x = call.inputs[0];
  const int64_t channels = x.dims[1];
  auto refused = [&](std::string why) {
    return not_applicable(escape(call.layer), call.node->op.text(), why);
  };
  for (size_t k = 1; k < 5; ++k) {
    const Tensor* t = call.inputs[k].constant;
    if (!t) return refused(fmt::format("input {} is not constant", k));
    if (t->numel() != channels)
      return refused(
          fmt::format("{} numbers for {} channels in input {}", t->numel(), channels, k));
  }
  const Tensor &gamma = *call.inputs[1].constant, &beta = *call.inputs[2].constant,
               &mean = *call.inputs[3].constant, &variance = *call.inputs[4].constant;
  const double epsilon = call.node->attrs.f("epsilon", 1e-5);
  std::vector<float> factor, addend;
  for (int64_t c = 0; c < channels; ++c) {
    const double f = gamma.at_f64(c) / std::sqrt(variance.at_f64(c) + epsilon);
    factor.push_back(static_cast<float>(f));
    addend.push_back(static_cast<float>(beta.at_f64(c) - mean.at_f64(c) * f));
    // With infinities, (x - mean) * f + beta and x * f + (beta - mean * f) are not the same.
    if (!std::isfinite(factor.back()) || !std::isfinite(addend.back()))
      return refused(fmt::format("channel {} has no finite factor and addend", c));
  }
  std::vector<int64_t> dims(static_cast<size_t>(x.rank() - 1), 1);
  dims[0] = channels;
  return Affine{Tensor::of_f32(dims, factor), Tensor::of_f32(dims, addend)};
}

/// In f32, rounded once.
LoweredRegion multiply_add(DType t) {
  ProgramBuilder b;
  const uint32_t x = b.cast(b.input(t, "x"), DType::f32), factor = b.input(DType::f32, "factor"),
                 addend = b.input(DType::f32, "addend");
  b.output(b.cast(b.op(Prim::fma, DType::f32, {x, factor, addend}), t));
  LoweredRegion out;
  out.program = b.take();
  return out;
}

/// Keeps the numbers that the generated kernel reads.
class Norm final : public Kernel {
 public:
  Norm(Affine affine, KernelPtr kernel) : affine_(std::move(affine)), kernel_(std::move(kernel)) {}
  void bind(Binder& binder) override { kernel_->bind(binder); }
  Status run() override { return kernel_->run(); }
  std::string text() const override { return "norm:" + kernel_->text(); }

 private:
  Affine affine_;
  KernelPtr kernel_;
};

}  // namespace

Applicable<KernelPtr> make_norm(Context& context, const KernelCall& call) {
  const DType t = call.inputs[0].dtype;
  if (call.inputs.size() < 5 || call.inputs[0].rank() < 2 ||
      (t != DType::f32 && t != DType::f16 && t != DType::bf16) ||
      call.node->attrs.i("training_mode") != 0 || call.outputs.size() != 1)
    return not_applicable(escape(call.layer), call.node->op.text(),
                          "only inference on f32, f16 and bf16 with channels has a kernel");
  FERRULE_ASSIGN(Affine affine, affine_of(call));
  const LoweredRegion region = multiply_add(t);
  KernelCall pointwise = call;
  pointwise.inputs = {call.inputs[0]};
  for (const Tensor* t : {&affine.factor, &affine.addend})
    pointwise.inputs.push_back(
        {t->dtype(), t->dims(), Layout::plain, -1, t});  // only their memory is kept
  pointwise.region = &region;
  FERRULE_ASSIGN(KernelPtr kernel, make_pointwise(context, pointwise));
  return std::make_unique<Norm>(std::move(affine), std::move(kernel));
}

}  // namespace ferrule::cpu
