// Pooling through cuDNN: windows, and global pooling as a window over the whole image.
#include "runtime/cuda/cudnn_kernel.h"
#include "runtime/gpu_steps.h"

namespace ferrule::cuda {
Result<KernelPtr> make_pool(Context& context, const Call& call) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  const bool max = call.node->op.ends_with("MaxPool");
  const bool include = !max && !call.node->op.starts_with("Global") && call.node->attrs.i("count_include_pad") != 0;
  FERRULE_ASSIGN(const Window w, gpu_window(call));
  CudnnProblem p;
  p.kind = max ? CudnnProblem::Kind::max_pool : include ? CudnnProblem::Kind::average_pool_padded : CudnnProblem::Kind::average_pool;
  p.x = cudnn_tensor(x, x.rank());
  p.y = cudnn_tensor(y, y.rank());
  set_window(p, w);
  FERRULE_ASSIGN(CudnnOperand image, cudnn_operand(context, kX, x));
  return make_cudnn_kernel(context, call, p, {image, {kY, y.slot, 0}});
}

}  // namespace ferrule::cuda
