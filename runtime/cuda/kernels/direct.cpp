// A library's convolution or product as a plain generated kernel: what the library refuses stays on
// the device, slowly.
#include "codegen/cuda/direct.h"

#include <algorithm>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/kernels/generated.h"
#include "runtime/gpu_steps.h"
#include "runtime/sliding_window.h"

namespace ferrule::cuda {
namespace {

constexpr size_t kAddend = 2;

/// Constants lie plain.
RowLayout layout(const Operand& o) {
  return {o.dims, o.constant ? strides_of(o.dims, Layout::plain) : o.strides()};
}

Status window(const KernelCall& call, CudaDirect& d) {
  const std::vector<int64_t> filter(d.b.dims.begin() + 2, d.b.dims.end());
  const bool turned = d.kind == CudaDirect::Kind::deconvolution;
  FERRULE_ASSIGN(const Window w, turned ? transposed_window_of(call, d.a.dims, d.y.dims, filter)
                                        : window_of(call, d.a.dims, d.y.dims, filter));
  d.strides = w.strides;
  d.dilations = w.dilations;
  for (int64_t& v : d.dilations) ++v;
  d.begin = w.pads_begin;
  d.groups = call.node->attrs.i("group", 1);
  return {};
}

void turn(RowLayout& l) {
  const size_t last = l.dims.size() - 1;
  std::swap(l.dims[last], l.dims[last - 1]);
  std::swap(l.strides[last], l.strides[last - 1]);
}

/// As many axes as the result has; one that is missing or has one element is used again.
void spread(RowLayout& l, const RowLayout& y, size_t own) {
  const size_t missing = y.dims.size() - std::min(y.dims.size(), l.dims.size());
  l.dims.insert(l.dims.begin(), missing, 1);
  l.strides.insert(l.strides.begin(), missing, 0);
  for (size_t k = 0; k + own < l.dims.size(); ++k)
    if (l.dims[k] == 1) l.strides[k] = 0;
}

void product(const KernelCall& call, CudaDirect& d) {
  const auto& attrs = call.node->attrs;
  // Vectors: a row in front, a column behind.
  const bool row = d.a.dims.size() == 1, column = d.b.dims.size() == 1;
  if (row) d.a.dims.insert(d.a.dims.begin(), 1), d.a.strides.insert(d.a.strides.begin(), 0);
  if (column) d.b.dims.push_back(1), d.b.strides.push_back(0);
  if (column) d.y.dims.push_back(1), d.y.strides.push_back(0);
  if (row) {
    d.y.dims.insert(d.y.dims.end() - 1, 1);
    d.y.strides.insert(d.y.strides.end() - 1, 0);
  }
  if (attrs.i("transA") != 0) turn(d.a);
  if (attrs.i("transB") != 0) turn(d.b);
  spread(d.a, d.y, 2);
  spread(d.b, d.y, 2);
  d.alpha = static_cast<float>(attrs.f("alpha", 1));
  d.beta = static_cast<float>(attrs.f("beta", 1));
  if (!d.c.dims.empty() || call.own_input(kAddend)) spread(d.c, d.y, 0);
}

}  // namespace

Applicable<KernelPtr> make_direct(Context& context, const Launch& launch, KernelCall call) {
  call.post_ops = {};
  call.inputs.resize(std::min(call.inputs.size(), call.node->inputs.size()));
  CudaDirect d;
  d.kind = is_product(launch.work)              ? CudaDirect::Kind::product
           : launch.work == Work::deconvolution ? CudaDirect::Kind::deconvolution
                                                : CudaDirect::Kind::convolution;
  d.type = call.outputs[0].dtype;
  for (size_t k = 0; k < call.inputs.size(); ++k)
    if (call.inputs[k].present() && call.inputs[k].dtype != d.type)
      return not_applicable(escape(call.layer), escape(launch.called), "operands of several types");
  d.a = layout(call.inputs[0]);
  d.b = layout(call.inputs[1]);
  d.y = layout(call.outputs[0]);
  if (const Operand* c = call.own_input(kAddend)) d.c = layout(*c);
  d.at_y = call.inputs.size();
  if (d.kind == CudaDirect::Kind::product)
    product(call, d);
  else
    FERRULE_TRY(window(call, d));
  FERRULE_ASSIGN(CudaLaunch planned, plan_cuda_direct(d, kGeneratedEntry));
  return make_planned(context, launch, call, {std::move(planned), ""});
}

}  // namespace ferrule::cuda
