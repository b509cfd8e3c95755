// Softmax and LogSoftmax through oneDNN, any axis, dense rows.
#include "runtime/cpu/library.h"

namespace ferrule::cpu {

Result<KernelPtr> make_softmax(Context& context, const Call& call) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  if (x.dtype != DType::f32)
    return error(Code::unsupported_operator, escape(call.layer), call.node->op, name(x.dtype));
  int64_t axis = call.node->attrs.i("axis", -1);
  if (axis < 0) axis += x.rank();
  if (axis < 0 || axis >= x.rank())
    return error(Code::bad_attribute, escape(call.layer), "axis", "it is not an axis of the input");
  const auto algorithm = call.node->op == "LogSoftmax" ? dnnl::algorithm::softmax_log : dnnl::algorithm::softmax_accurate;
  return guard(call, "softmax", [&]() -> Result<KernelPtr> {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::softmax_forward::primitive_desc desc(context.library.engine, dnnl::prop_kind::forward_inference, algorithm,
                                               desc_of(x), desc_of(y), static_cast<int>(axis), attr);
    auto kernel = std::make_unique<Prepared>(context, dnnl::softmax_forward(desc), desc.impl_info_str());
    kernel->operand(DNNL_ARG_SRC, desc.src_desc(), x);
    kernel->argument(DNNL_ARG_DST, desc.dst_desc(), y.slot);
    kernel->scratchpad(desc.scratchpad_desc());
    return kernel;
  });
}

}  // namespace ferrule::cpu
