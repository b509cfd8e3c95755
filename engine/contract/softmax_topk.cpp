#include "engine/contract/softmax_topk.h"

#include <algorithm>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

bool is(const Node& n, std::string_view op) { return n.domain.empty() && n.op == op; }

/// Whether the node works along the last axis of an operand of this rank.
bool last_axis(const Node& n, int rank) {
  const int64_t axis = n.attrs.i("axis", -1);
  return axis == -1 || axis == rank - 1;
}

}  // namespace

Applicable<SoftmaxTopK> read_softmax_topk(const Graph& g, std::span<const NodeId> nodes) {
  auto refuse = [&](NodeId n, std::string_view why) {
    return not_applicable(escape(g.node(n).name), "softmax_topk", why);
  };
  SoftmaxTopK s;
  ValueId at;
  for (NodeId id : nodes) {
    const Node& n = g.node(id);
    if (at && (n.inputs.empty() || n.inputs[0] != at))
      return refuse(id, "it does not read the node before it");
    if (!at && is(n, "Softmax"))
      s.softmax = id;
    else if (!at && is(n, "LogSoftmax"))
      s.softmax = id, s.form = SoftmaxTopK::Form::log_softmax;
    else if (at && !s.top && s.form == SoftmaxTopK::Form::softmax && is(n, "Log"))
      s.form = SoftmaxTopK::Form::log_of_softmax;
    else if (at && !s.top && is(n, "TopK"))
      s.top = id;
    else
      return refuse(id, "it is no softmax, logarithm and selection in this order");
    at = n.outputs[0];
  }
  if (!s.top) return refuse(nodes.back(), "nothing is selected");
  const Node& top = g.node(s.top);
  const Tensor* k = top.inputs.size() > 1 ? g.constant(top.inputs[1]) : nullptr;
  if (!k || k->numel() != 1) return refuse(s.top, "how many are selected is not constant");
  s.k = k->at_i64(0);
  s.largest = top.attrs.i("largest", 1) != 0;
  return s;
}

Accept accepts_softmax_topk(const Graph& g, std::span<const NodeId> nodes, const Target& target) {
  const auto facts = target.contracts.find("softmax_topk");
  if (facts == target.contracts.end())
    return {Truth::no, target.name + " has no softmax_topk kernels"};
  auto s = read_softmax_topk(g, nodes);
  if (!s) return {Truth::no, s.error().reason()};
  const Node& softmax = g.node(s->softmax);
  const Value& x = g.value(softmax.inputs[0]);
  if (x.type.dtype == DType::undefined) return {Truth::unknown, "element type"};
  if (std::ranges::find(facts->second.types, x.type.dtype) == facts->second.types.end())
    return {Truth::no,
            fmt::format("{} has no softmax_topk kernel for {}", target.name, name(x.type.dtype))};
  if (!x.type.shape) return {Truth::unknown, fmt::format("rank of {}", escape(x.name))};
  if (x.type.rank() < 1 || !last_axis(softmax, x.type.rank()) ||
      !last_axis(g.node(s->top), x.type.rank()))
    return {Truth::no, "the axis is not the last one"};
  return {Truth::yes, {}};
}

}  // namespace ferrule
