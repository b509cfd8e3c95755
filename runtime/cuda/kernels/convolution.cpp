// Convolution and deconvolution of 1 to 3 spatial dimensions through cuDNN: images by their
// strides, weights in the order of the images (channels innermost where they are channels-last),
// bias and tail in the same graph.
#include "engine/contract/library_tail.h"
#include "runtime/cuda/cudnn_kernel.h"
#include "runtime/gpu_steps.h"

namespace ferrule::cuda {
namespace {

constexpr int kImage = 0, kWeights = 1, kOwnBias = 2;

bool images_last(const KernelCall& call) { return call.outputs[0].layout == Layout::channels_last; }

/// Weights as the model has them, or with the channels innermost.
Result<CudnnOperand> weights(Context& context, const KernelCall& call, CudnnProblem& p) {
  Operand w = call.inputs[kWeights];
  w.layout = images_last(call) ? Layout::channels_last : Layout::plain;
  p.w = cudnn_tensor(w, w.rank());
  return cudnn_operand(context, kW, w);
}

/// The bias, or zeros where the ready-made engines want one.
Status bias(Context& context, const KernelCall& call, CudnnProblem& p,
            std::vector<CudnnOperand>& operands) {
  const Operand& y = call.outputs[0];
  if (const Operand* b = call.own_input(kOwnBias)) {
    p.bias = cudnn_channel(*b, y.rank());
    FERRULE_ASSIGN(CudnnOperand at, cudnn_operand(context, kBias, *b));
    operands.push_back(at);
    return {};
  }
  if (call.post_ops.empty() || y.dtype != DType::f32 || p.kind != CudnnProblem::Kind::convolution)
    return {};
  Operand zeros{y.dtype, {y.dims[1]}};
  p.bias = cudnn_channel(zeros, y.rank());
  const int64_t bytes = zeros.bytes();
  FERRULE_ASSIGN(Address at, context.constants.derive(
                                 *call.inputs[kWeights].constant, "no bias", bytes, [&](void* to) {
                                   std::fill_n(static_cast<char*>(to), bytes, char{0});
                                 }));
  operands.push_back({kBias, -1, at});
  return {};
}

Applicable<KernelPtr> make(Context& context, const KernelCall& call, CudnnProblem::Kind kind) {
  FERRULE_ASSIGN(const Window w, gpu_window(call));
  const Operand &x = call.inputs[kImage], &y = call.outputs[0];
  CudnnProblem p;
  p.kind = kind;
  p.x = cudnn_tensor(x, x.rank());
  p.y = cudnn_tensor(y, y.rank());
  p.tf32 = allows_tf32(*call.node);
  std::vector<CudnnOperand> operands{{kY, y.slot, 0}};
  FERRULE_ASSIGN(CudnnOperand image, cudnn_operand(context, kX, x));
  FERRULE_ASSIGN(CudnnOperand weight, weights(context, call, p));
  operands.push_back(image);
  operands.push_back(weight);
  set_window(p, w);
  FERRULE_TRY(bias(context, call, p, operands));
  FERRULE_TRY(add_tail(context, call, p, operands));
  return make_cudnn_kernel(context, call, p, std::move(operands));
}

}  // namespace

Applicable<KernelPtr> make_convolution(Context& context, const KernelCall& call) {
  return make(context, call, CudnnProblem::Kind::convolution);
}
Applicable<KernelPtr> make_deconvolution(Context& context, const KernelCall& call) {
  return make(context, call, CudnnProblem::Kind::deconvolution);
}

}  // namespace ferrule::cuda
