// Attention through cuDNN, where codegen/cuda/library_attention.h says that it is cuDNN's: its
// scores and sums are f32, and the weights of the second product are rounded to the operands' type,
// as a model's own softmax is. Where cuDNN refuses what it was thought to take, or is not there,
// the generated kernel runs the layer: it takes every form.
#include "codegen/cuda/library_attention.h"
#include "engine/base/diagnostics.h"
#include "runtime/cuda/cudnn_kernel.h"

namespace ferrule::cuda {
namespace {

Applicable<KernelPtr> through_cudnn(Context& context, const KernelCall& call,
                                    const LibraryAttention& a) {
  CudnnAttention work;
  work.scale = a.scale;
  std::vector<CudnnOperand> operands;
  auto add = [&](int64_t uid, const LibraryAttention::Part& part, CudnnTensor& to) -> Applicable<> {
    const Operand& o =
        part.operand < call.inputs.size() ? call.inputs[part.operand] : call.outputs[0];
    to = {o.dtype, part.dims, part.strides};
    Operand plain = o;
    plain.layout = Layout::plain;  // constants lie so, and so did choose_attention see them
    FERRULE_ASSIGN(CudnnOperand at, cudnn_operand(context, uid, o.constant ? plain : o));
    operands.push_back(at);
    return {};
  };
  FERRULE_TRY(add(kQuery, a.q, work.q));
  FERRULE_TRY(add(kKey, a.k, work.k));
  FERRULE_TRY(add(kValue, a.v, work.v));
  FERRULE_TRY(add(kY, a.y, work.y));
  if (a.mask) FERRULE_TRY(add(kMask, *a.mask, work.mask));
  return make_cudnn_kernel(context, call, work, std::move(operands));
}

}  // namespace

Applicable<KernelPtr> make_attention(Context& context, const Launch& launch, const KernelCall& call,
                                     const LibraryAttention& attention) {
  auto made = through_cudnn(context, call, attention);
  if (made) return made;
  const Error* e = made.error().error();
  if (e && e->code != Code::library_missing && e->code != Code::library_failed) return made;
  if (context.log && *context.log)
    (*context.log)(LogLevel::warning, fmt::format("{}: {}; a generated kernel runs it",
                                                  escape(call.layer), made.error().reason()));
  return make_generated(context, launch, call);
}

}  // namespace ferrule::cuda
