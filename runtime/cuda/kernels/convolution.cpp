// Convolution and deconvolution of 1 to 3 spatial dimensions through cuDNN: images by their strides, weights in the order
// of the images (channels innermost where they are channels-last), bias and tail in the same graph.
#include "engine/base/diagnostics.h"
#include "engine/library_tail.h"
#include "runtime/cuda/cudnn_kernel.h"

namespace ferrule::cuda {
namespace {

constexpr int kImage = 0, kWeights = 1, kOwnBias = 2;

Status check(const Call& call, const Window& w) {
  const Operand &x = call.inputs[kImage], &weight = call.inputs[kWeights];
  if (!weight.constant) return error(Code::unsupported_operator, escape(call.layer), call.node->op, "the weights are not constant");
  for (const auto* pads : {&w.pads_begin, &w.pads_end})
    for (int64_t p : *pads)
      if (p < 0) return error(Code::unsupported_operator, escape(call.layer), call.node->op, "a negative pad, cuDNN has none");
  if (x.numel() == 0 || call.outputs[0].numel() == 0)
    return error(Code::unsupported_operator, escape(call.layer), call.node->op, "an empty image");
  return {};
}

bool images_last(const Call& call) { return call.outputs[0].layout == Layout::channels_last; }

/// Weights as the model has them, or with the channels innermost.
Result<CudnnOperand> weights(Context& context, const Call& call, CudnnProblem& p) {
  Operand w = call.inputs[kWeights];
  w.layout = images_last(call) ? Layout::channels_last : Layout::plain;
  p.w = cudnn_tensor(w, w.rank());
  return cudnn_operand(context, kW, w);
}

/// The bias, or zeros where the ready-made engines want one.
Status bias(Context& context, const Call& call, CudnnProblem& p, std::vector<CudnnOperand>& operands) {
  const Operand& y = call.outputs[0];
  if (const Operand* b = call.own_input(kOwnBias)) {
    p.bias = cudnn_channel(*b, y.rank());
    FERRULE_ASSIGN(CudnnOperand at, cudnn_operand(context, kBias, *b));
    operands.push_back(at);
    return {};
  }
  if (call.post_ops.empty() || y.dtype != DType::f32 || p.kind != CudnnProblem::Kind::convolution) return {};
  Operand zeros{y.dtype, {y.dims[1]}};
  p.bias = cudnn_channel(zeros, y.rank());
  const int64_t bytes = zeros.bytes();
  FERRULE_ASSIGN(Address at, context.constants.derive(*call.inputs[kWeights].constant, "no bias", bytes,
                                                      [&](void* to) { std::fill_n(static_cast<char*>(to), bytes, char{0}); }));
  operands.push_back({kBias, -1, at});
  return {};
}

Result<KernelPtr> make(Context& context, const Call& call, const Window& w, CudnnProblem::Kind kind) {
  FERRULE_TRY(check(call, w));
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

std::vector<int64_t> window_dims(const Operand& w) { return {w.dims.begin() + 2, w.dims.end()}; }

}  // namespace

Result<KernelPtr> make_convolution(Context& context, const Call& call) {
  FERRULE_ASSIGN(Window w, window_of(call, call.inputs[kImage].dims, call.outputs[0].dims, window_dims(call.inputs[kWeights])));
  return make(context, call, w, CudnnProblem::Kind::convolution);
}

Result<KernelPtr> make_deconvolution(Context& context, const Call& call) {
  FERRULE_ASSIGN(Window w, transposed_window_of(call, call.inputs[kImage].dims, call.outputs[0].dims, window_dims(call.inputs[kWeights])));
  // Where the output is longer than the windows reach, or cut by less than the pad: as the gradient of a convolution
  // whose last pixels no window used.
  for (size_t k = 0; k < w.pads_end.size(); ++k)
    if (w.pads_end[k] < 0 && -w.pads_end[k] < w.strides[k]) w.pads_end[k] = 0;
  return make(context, call, w, CudnnProblem::Kind::deconvolution);
}

}  // namespace ferrule::cuda
