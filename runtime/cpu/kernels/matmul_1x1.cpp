// A 1x1 convolution of a channels-last image as one product: pixels x channels times channels x
// filters.
#include <algorithm>

#include "runtime/cpu/library.h"

namespace ferrule::cpu {
namespace {

bool all_are(const std::vector<int64_t>& v, int64_t wanted) {
  return std::all_of(v.begin(), v.end(), [&](int64_t x) { return x == wanted; });
}

}  // namespace

Applicable<KernelPtr> make_matmul_1x1(Context& context, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "product", why);
  };
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  const bool biased = call.own_input(kB) != nullptr;
  const Attrs& attrs = call.node->attrs;
  if (!w.constant || x.constant || x.dtype != DType::f32 || y.dtype != DType::f32)
    return refuse("an operand of another kind");
  if (biased && !call.inputs[kB].constant) return refuse("the bias is not constant");
  if (attrs.i("group", 1) != 1 || !all_are({w.dims.begin() + 2, w.dims.end()}, 1))
    return refuse("not a 1x1 convolution");
  if (!all_are(attrs.ints("strides"), 1) || !all_are(attrs.ints("pads"), 0))
    return refuse("strides or pads");
  if (!channels_last(x) || !channels_last(y) || y.numel() == 0) return refuse("not channels-last");
  if (x.pixel() < 0 || y.pixel() < 0) return refuse("pixels that do not lie at one distance");
  const int64_t depth = w.dims[1], filters = w.dims[0], pixels = y.numel() / filters;
  const memory::desc rows({pixels, filters}, memory::data_type::f32, memory::format_tag::ab);
  FERRULE_ASSIGN(Epilogue epilogue, make_epilogue(call, {rows}));
  return guard(call, "matmul", [&]() -> Applicable<KernelPtr> {
    const auto f32 = memory::data_type::f32;
    const auto ab = memory::format_tag::ab;
    const memory::desc plain({depth, filters}, f32, memory::dims{1, depth});
    const memory::desc bias = biased ? memory::desc({1, filters}, f32, ab) : memory::desc();
    dnnl::matmul::primitive_desc desc(
        context.library.engine, memory::desc({pixels, depth}, f32, memory::dims{x.pixel(), 1}),
        memory::desc({depth, filters}, f32, memory::format_tag::any), bias,
        memory::desc({pixels, filters}, f32, memory::dims{y.pixel(), 1}), epilogue.attr);
    auto kernel = std::make_unique<Prepared>(context, dnnl::matmul(desc),
                                             std::string("matmul_1x1:") + desc.impl_info_str());
    kernel->argument(DNNL_ARG_SRC, desc.src_desc(), x.slot);
    kernel->constant(DNNL_ARG_WEIGHTS, desc.weights_desc(),
                     context.library.pack(*w.constant, plain, desc.weights_desc()));
    if (biased)
      kernel->constant(DNNL_ARG_BIAS, bias,
                       context.library.pack(*call.inputs[kB].constant, bias, bias));
    kernel->argument(DNNL_ARG_DST, desc.dst_desc(), y.slot);
    bind_epilogue(*kernel, call, epilogue);
    kernel->scratchpad(desc.scratchpad_desc());
    return kernel;
  });
}

}  // namespace ferrule::cpu
