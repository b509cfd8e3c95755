#include "runtime/gpu_steps.h"

#include "codegen/cuda/operands.h"

namespace ferrule {
namespace {

constexpr int64_t kMostBlocks = 2147483647;
constexpr int64_t kAligned = 16;

CudaOperand operand(const Operand& o) {
  if (!o.present()) return {};
  // Constants lie plain wherever they are read.
  return {o.dtype, o.dims, o.constant ? strides_of(o.dims, Layout::plain) : o.strides()};
}

CudaOperands operands(const KernelCall& call) {
  CudaOperands out;
  for (const auto* list : {&call.inputs, &call.outputs})
    for (const Operand& o : *list) {
      out.operands.push_back(operand(o));
      out.aligned = out.aligned && o.offset % kAligned == 0;
    }
  return out;
}

auto refuse(const KernelCall& call, std::string why) {
  return not_applicable(escape(call.layer), call.node->op.text(), why);
}

Applicable<> check_images(const KernelCall& call, const Window& w) {
  for (const auto* pads : {&w.pads_begin, &w.pads_end})
    for (int64_t p : *pads)
      if (p < 0) return refuse(call, "a negative pad, cuDNN has none");
  if (call.inputs[0].numel() == 0 || call.outputs[0].numel() == 0)
    return refuse(call, "an empty image");
  return {};
}

Applicable<Window> convolution_window(const KernelCall& call, bool transposed) {
  const Operand &x = call.inputs[0], &weights = call.inputs[1], &y = call.outputs[0];
  if (!weights.constant) return refuse(call, "the weights are not constant");
  const std::vector<int64_t> dims(weights.dims.begin() + 2, weights.dims.end());
  if (!transposed) return window_of(call, x.dims, y.dims, dims);
  FERRULE_ASSIGN(Window w, transposed_window_of(call, x.dims, y.dims, dims));
  // Where the output is longer than the windows reach, or cut by less than the pad: as the gradient
  // of a convolution whose last pixels no window used.
  for (size_t k = 0; k < w.pads_end.size(); ++k)
    if (w.pads_end[k] < 0 && -w.pads_end[k] < w.strides[k]) w.pads_end[k] = 0;
  return w;
}

}  // namespace

bool gpu_library(Work work) {
  switch (work) {
    case Work::convolution:
    case Work::deconvolution:
    case Work::product:
    case Work::affine_product:
      return true;
    case Work::max_pool:
    case Work::average_pool:
    case Work::global_max_pool:
    case Work::global_average_pool:
    case Work::resize:
    case Work::norm:
    case Work::attention:
    case Work::softmax_topk:
    case Work::window_chain:
    case Work::lstm:
    case Work::gru:
    case Work::rnn:
    case Work::transpose:
    case Work::gather:
    case Work::reorder:
    case Work::own:
    case Work::other:
      break;
  }
  return false;
}

Applicable<Window> gpu_window(const KernelCall& call) {
  FERRULE_ASSIGN(Window w, convolution_window(call, call.work == Work::deconvolution));
  FERRULE_TRY(check_images(call, w));
  return w;
}

Applicable<> check_gpu_product(const KernelCall& call) {
  for (const Operand* o : {&call.inputs[0], &call.inputs[1], &call.outputs[0]}) {
    if (!o->lies(Layout::plain)) return refuse(call, "an operand is channels-last");
    if (o->numel() == 0) return refuse(call, "an empty operand");
    if (!o->dense() && o->rank() > 1 && o->strides().back() != 1)
      return refuse(call, "a slice whose elements lie apart");
  }
  return {};
}

Applicable<> check_gpu_library(const Launch& launch, const KernelCall& call) {
  if (!gpu_library(launch.work))
    return not_applicable(escape(call.layer), escape(launch.called), "no kernel");
  if (is_product(launch.work)) return check_gpu_product(call);
  auto w = gpu_window(call);
  return w ? Applicable<>{} : fail(w.error());
}

CudaShapeChoice tuned(const Tuning* tuning, std::string& wanted) {
  return [tuning, &wanted](const std::string& problem) {
    const Tuning::Entry* measured = tuning ? tuning->find(problem) : nullptr;
    return wanted = measured ? measured->use : "";
  };
}

Applicable<CudaLaunch> plan_gpu_launch(const Launch& launch, const KernelCall& call,
                                       const Target& target, std::string_view entry,
                                       const Tuning* tuning, std::string* note) {
  const CudaOperands o = operands(call);
  std::string wanted;
  FERRULE_ASSIGN(CudaLaunch planned, plan_cuda_launch(launch, o.operands, entry, "", o.aligned,
                                                      target.cores, tuned(tuning, wanted)));
  if (note && !wanted.empty() && planned.shape != wanted) *note = unknown_choice(wanted);
  if (planned.blocks > kMostBlocks)
    return not_applicable(escape(call.layer), launch.called, "more blocks than a launch can have");
  return planned;
}

AttentionChoice choose_gpu_attention(const Launch& launch, const KernelCall& call,
                                     const Target& target, bool strict) {
  const CudaOperands o = operands(call);
  return choose_attention(launch, o.operands, o.aligned, target, strict);
}

Applicable<> check_interpreted(const KernelCall& call) {
  for (const auto* list : {&call.inputs, &call.outputs})
    for (const Operand& o : *list)
      if (o.dtype == DType::string)
        return error(Code::unsupported_type, escape(call.layer), "a string operand");
  if (!call.node) return not_applicable(escape(call.layer), "a change of layout", "no kernel");
  return {};
}

std::vector<GpuSegment> cut_graphs(const std::vector<bool>& capturable) {
  std::vector<GpuSegment> out;
  for (size_t k = 0; k < capturable.size(); ++k) {
    if (out.empty() || !capturable[k] || !out.back().capturable)
      out.push_back({k, k, capturable[k]});
    out.back().end = k + 1;
  }
  return out;
}

}  // namespace ferrule
