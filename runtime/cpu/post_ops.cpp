// The normalised epilogue (engine/contract/epilogue) as oneDNN's post-ops.
#include <map>

#include "runtime/cpu/library.h"
#include "runtime/cpu/tail_operand.h"

namespace ferrule::cpu {
namespace {

using Algorithms = std::map<std::string_view, dnnl::algorithm>;

const Algorithms& eltwise_algorithms() {
  using A = dnnl::algorithm;
  static const Algorithms kForms = {
      {"relu", A::eltwise_relu},
      {"clip", A::eltwise_clip},
      {"linear", A::eltwise_linear},
      {"logistic", A::eltwise_logistic},
      {"tanh", A::eltwise_tanh},
      {"elu", A::eltwise_elu},
      {"swish", A::eltwise_swish},
      {"hardswish", A::eltwise_hardswish},
      {"hardsigmoid", A::eltwise_hardsigmoid},
      {"abs", A::eltwise_abs},
      {"sqrt", A::eltwise_sqrt},
      {"square", A::eltwise_square},
      {"exp", A::eltwise_exp},
      {"round", A::eltwise_round},
      {"leaky_relu", A::eltwise_relu},
      {"log", A::eltwise_log},
      {"pow", A::eltwise_pow},
      {"soft_relu", A::eltwise_soft_relu},
      {"mish", A::eltwise_mish},
      {"gelu_tanh", A::eltwise_gelu_tanh},
  };
  return kForms;
}

const Algorithms& binary_algorithms() {
  using A = dnnl::algorithm;
  static const Algorithms kForms = {
      {"add", A::binary_add}, {"sub", A::binary_sub}, {"mul", A::binary_mul},
      {"div", A::binary_div}, {"max", A::binary_max}, {"min", A::binary_min},
  };
  return kForms;
}

std::optional<dnnl::algorithm> look_up(const Algorithms& forms, std::string_view name) {
  auto it = forms.find(name);
  return it == forms.end() ? std::nullopt : std::optional(it->second);
}

/// The operand as the primitive's destination is seen; nothing where it is spread in another way,
/// or lies in another order.
std::optional<memory::desc> operand_desc(const Operand& o, const Operand& y,
                                         const EpilogueShape& shape) {
  const auto type = *data_type(o.dtype);
  const std::vector<int64_t> own = shape.full.get_dims();
  std::vector<int64_t> ones(own.size(), 1);
  switch (broadcast_of(o, y, shape.channel)) {
    case Broadcast::channel:
      ones[static_cast<size_t>(shape.destination)] = y.dims[static_cast<size_t>(shape.channel)];
      return memory::desc(ones, type, strides_of(ones, Layout::plain));
    case Broadcast::one:
      return memory::desc(ones, type, strides_of(ones, Layout::plain));
    case Broadcast::full:
      // The library steps through it as through its destination. Constants are put in that order
      // when they are packed.
      if (!y.dense() || o.dtype != y.dtype || !(lies_like(o, y) || (o.constant && own == y.dims)))
        return std::nullopt;
      return shape.full;
    case Broadcast::other:
      break;
  }
  return std::nullopt;
}

}  // namespace

Applicable<Epilogue> make_epilogue(const KernelCall& call, const EpilogueShape& shape,
                                   std::span<const Leading> leading) {
  Epilogue out;
  dnnl::post_ops ops;
  for (const Leading& l : leading) {
    if (l.input < 0) {
      ops.append_eltwise(dnnl::algorithm::eltwise_linear, l.factor,
                         -0.0f);  // + 0 would make 0 of -0
      continue;
    }
    ops.append_binary(dnnl::algorithm::binary_add, l.desc);
    out.operands.push_back({ops.len() - 1, l.input, l.desc});
  }
  auto refuse = [&] {
    return not_applicable(escape(call.layer), "this epilogue", "oneDNN has no such post-op");
  };
  for (const PostOp& op : call.post_ops) {
    if (op.operand < 0) {
      auto algorithm = look_up(eltwise_algorithms(), op.alg);
      if (!algorithm) return refuse();
      ops.append_eltwise(*algorithm, op.alpha, op.beta);
      continue;
    }
    if (op.operand == call.sum_input) {
      ops.append_sum(1.0f);
      continue;
    }
    const Operand& o = call.inputs[static_cast<size_t>(op.operand)];
    auto algorithm = op.kind == PostOp::Kind::sum ? dnnl::algorithm::binary_add
                                                  : look_up(binary_algorithms(), op.alg);
    if (!algorithm || !computes(o.dtype)) return refuse();
    const auto desc = operand_desc(o, call.outputs[0], shape);
    if (!desc)
      return not_applicable(escape(call.layer), "this epilogue",
                            "an operand is spread in another way, or lies in another order");
    ops.append_binary(*algorithm, *desc);
    out.operands.push_back({ops.len() - 1, op.operand, *desc});
  }
  out.attr.set_post_ops(ops);
  out.attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return out;
}

void bind_epilogue(Prepared& kernel, const KernelCall& call, const Epilogue& epilogue) {
  for (const Epilogue::Entry& e : epilogue.operands)
    kernel.operand(DNNL_ARG_ATTR_MULTIPLE_POST_OP(e.position) | DNNL_ARG_SRC_1, e.desc,
                   call.inputs[static_cast<size_t>(e.input)]);
}

bool has_logistic(const KernelCall& call) {
  return std::ranges::any_of(call.post_ops, [](const PostOp& op) { return op.alg == "logistic"; });
}

Applicable<KernelPtr> make_without_logistic(
    KernelCall call, const std::function<Applicable<KernelPtr>(const KernelCall&)>& make) {
  std::vector<PostOp> steps;
  for (const PostOp& op : call.post_ops) {
    if (op.alg != "logistic") {
      steps.push_back(op);
      continue;
    }
    for (const auto& [alg, alpha] :
         {std::pair{"linear", -1.0f}, {"soft_relu", 1.0f}, {"linear", -1.0f}, {"exp", 0.0f}}) {
      PostOp& step = steps.emplace_back();
      step.alg = alg;
      step.alpha = alpha;
    }
  }
  call.post_ops = steps;
  return make(call);
}

}  // namespace ferrule::cpu
