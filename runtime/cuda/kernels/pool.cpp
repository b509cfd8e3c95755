// Pooling through cuDNN: windows, and global pooling as a window over the whole image.
#include "engine/base/diagnostics.h"
#include "runtime/cuda/cudnn_kernel.h"

namespace ferrule::cuda {
namespace {

Status check(const Call& call, const Window& w, bool include) {
  if (call.outputs.size() > 1 && call.outputs[1].present())
    return error(Code::unsupported_operator, escape(call.layer), call.node->op, "Indices are wanted");
  for (size_t k = 0; k < w.kernel.size(); ++k) {
    if (w.dilations[k] != 0) return error(Code::unsupported_operator, escape(call.layer), call.node->op, "dilated");
    if (w.pads_begin[k] < 0 || w.pads_end[k] < 0)
      return error(Code::unsupported_operator, escape(call.layer), call.node->op, "a negative pad, cuDNN has none");
    // Where ceil_mode makes windows hang over the padded end, the overhang is not counted; cuDNN would.
    if (include && w.pads_end[k] > w.asked_end[k])
      return error(Code::unsupported_operator, escape(call.layer), call.node->op, "ceil_mode with count_include_pad");
  }
  if (call.inputs[0].numel() == 0 || call.outputs[0].numel() == 0)
    return error(Code::unsupported_operator, escape(call.layer), call.node->op, "an empty image");
  return {};
}

Window whole(const Operand& x) {
  Window w;
  w.kernel.assign(x.dims.begin() + 2, x.dims.end());
  w.strides.assign(w.kernel.size(), 1);
  w.dilations = w.pads_begin = w.pads_end = w.asked_end = std::vector<int64_t>(w.kernel.size(), 0);
  return w;
}

}  // namespace

Result<KernelPtr> make_pool(Context& context, const Call& call) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  const bool global = call.node->op.starts_with("Global"), max = call.node->op.ends_with("MaxPool");
  Window w = whole(x);
  if (!global) {
    FERRULE_ASSIGN(w, window_of(call, x.dims, y.dims, call.node->attrs.ints("kernel_shape")));
  }
  const bool include = !max && call.node->attrs.i("count_include_pad") != 0;
  FERRULE_TRY(check(call, w, include));
  CudnnProblem p;
  p.kind = max ? CudnnProblem::Kind::max_pool : include ? CudnnProblem::Kind::average_pool_padded : CudnnProblem::Kind::average_pool;
  p.x = cudnn_tensor(x, x.rank());
  p.y = cudnn_tensor(y, y.rank());
  set_window(p, w);
  FERRULE_ASSIGN(CudnnOperand image, cudnn_operand(context, kX, x));
  return make_cudnn_kernel(context, call, p, {image, {kY, y.slot, 0}});
}

}  // namespace ferrule::cuda
