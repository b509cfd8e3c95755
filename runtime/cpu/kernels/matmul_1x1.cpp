// A 1x1 convolution of a channels-last image as one product: pixels x channels times channels x filters.
#include <algorithm>

#include "runtime/cpu/library.h"

namespace ferrule::cpu {
namespace {

constexpr int kX = 0, kW = 1, kB = 2;

bool all_are(const std::vector<int64_t>& v, int64_t wanted) {
  return std::all_of(v.begin(), v.end(), [&](int64_t x) { return x == wanted; });
}

/// The call as the product sees it: operands of the tail as rows of filters.
Result<Call> as_rows(const Call& call, int64_t pixels, int64_t filters) {
  Call rows = call;
  const Operand& y = call.outputs[0];
  for (size_t k = call.node->inputs.size(); k < rows.inputs.size(); ++k) {
    Operand& o = rows.inputs[k];
    const int channel = o.rank() - (y.rank() - 1);
    const bool full = o.dims == y.dims && !o.constant && channels_last(o);
    if (full && (!o.dense() || !y.dense())) return error(Code::unsupported_operator, escape(call.layer), "this tail", "an operand beside a slice");
    if (full) o.dims = {pixels, filters};
    else if (o.numel() == 1) o.dims = {1, 1};
    else if (channel >= 0 && o.numel() == filters && o.dims[static_cast<size_t>(channel)] == filters) o.dims = {1, filters};
    else return error(Code::unsupported_operator, escape(call.layer), "this tail", "an operand is spread in another way");
    o.layout = Layout::plain;
  }
  rows.outputs[0].dims = {pixels, filters};
  rows.outputs[0].layout = Layout::plain;
  rows.outputs[0].apart.clear();
  return rows;
}

}  // namespace

Result<KernelPtr> make_matmul_1x1(Context& context, const Call& call) {
  auto refuse = [&](std::string_view why) { return error(Code::unsupported_operator, escape(call.layer), "product", why); };
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  const bool biased = call.own_input(kB) != nullptr;
  const Attrs& attrs = call.node->attrs;
  if (!w.constant || x.constant || x.dtype != DType::f32 || y.dtype != DType::f32) return refuse("an operand of another kind");
  if (biased && !call.inputs[kB].constant) return refuse("the bias is not constant");
  if (attrs.i("group", 1) != 1 || !all_are({w.dims.begin() + 2, w.dims.end()}, 1)) return refuse("not a 1x1 convolution");
  if (!all_are(attrs.ints("strides"), 1) || !all_are(attrs.ints("pads"), 0)) return refuse("strides or pads");
  if (!channels_last(x) || !channels_last(y) || y.numel() == 0) return refuse("not channels-last");
  if (x.pixel() < 0 || y.pixel() < 0) return refuse("pixels that do not lie at one distance");
  const int64_t depth = w.dims[1], filters = w.dims[0], pixels = y.numel() / filters;
  FERRULE_ASSIGN(Call rows, as_rows(call, pixels, filters));
  FERRULE_ASSIGN(Epilogue epilogue, make_epilogue(rows, {2, true, false}));
  return guard(call, "matmul", [&]() -> Result<KernelPtr> {
    const auto f32 = memory::data_type::f32;
    const auto ab = memory::format_tag::ab;
    const memory::desc plain({depth, filters}, f32, memory::dims{1, depth});
    const memory::desc bias = biased ? memory::desc({1, filters}, f32, ab) : memory::desc();
    dnnl::matmul::primitive_desc desc(context.library.engine, memory::desc({pixels, depth}, f32, memory::dims{x.pixel(), 1}),
                                      memory::desc({depth, filters}, f32, memory::format_tag::any), bias,
                                      memory::desc({pixels, filters}, f32, memory::dims{y.pixel(), 1}), epilogue.attr);
    auto kernel = std::make_unique<Prepared>(context, dnnl::matmul(desc), std::string("matmul_1x1:") + desc.impl_info_str());
    kernel->argument(DNNL_ARG_SRC, desc.src_desc(), x.slot);
    kernel->constant(DNNL_ARG_WEIGHTS, desc.weights_desc(), context.library.pack(*w.constant, plain, desc.weights_desc()));
    if (biased) kernel->constant(DNNL_ARG_BIAS, bias, context.library.pack(*call.inputs[kB].constant, bias, bias));
    kernel->argument(DNNL_ARG_DST, desc.dst_desc(), y.slot);
    bind_epilogue(*kernel, rows, epilogue);
    kernel->scratchpad(desc.scratchpad_desc());
    return kernel;
  });
}

}  // namespace ferrule::cpu
