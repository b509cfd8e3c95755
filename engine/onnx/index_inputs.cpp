#include "engine/onnx/index_inputs.h"

#include <algorithm>
#include <vector>

#include "engine/graph/operator_name.h"
#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

/// Sizes that elements of the node's input at `slot` must stay below; none: they are no indices.
std::vector<Dim> bounds(const Graph& g, const Node& n, size_t slot) {
  const auto shape = [&](size_t of) -> Shape {
    const ValueId v = of < n.inputs.size() ? n.inputs[of] : ValueId{};
    return v && g.value(v).type.shape ? *g.value(v).type.shape : Shape{};
  };
  const auto along_axis = [&](size_t of) -> std::vector<Dim> {
    const Shape s = shape(of);
    int64_t axis = n.attrs.i("axis", 0);
    if (axis < 0) axis += std::ssize(s);
    if (axis < 0 || axis >= std::ssize(s)) return {};
    return {s[static_cast<size_t>(axis)]};
  };
  if (slot == 1 && (n.op == "Gather" || n.op == "GatherElements" || n.op == "ScatterElements"))
    return along_axis(0);
  if (slot == 1 && (n.op == "GatherND" || n.op == "ScatterND")) {
    const Shape data = shape(0), indices = shape(1);
    const auto first = static_cast<size_t>(std::max<int64_t>(n.attrs.i("batch_dims", 0), 0));
    const auto depth = indices.empty() ? std::nullopt : indices.back().constant();
    if (!depth || first > data.size()) return {};
    const size_t count = std::min(static_cast<size_t>(*depth), data.size() - first);
    return {data.begin() + static_cast<long>(first),
            data.begin() + static_cast<long>(first + count)};
  }
  if (slot == 1 && n.op == "MaxUnpool") return {product(shape(0))};
  if (slot == 0 && n.op == "OneHot")
    if (const Tensor* depth = g.constant(n.inputs.size() > 1 ? n.inputs[1] : ValueId{}))
      return {Dim(depth->at_i64(0))};
  if (slot == 4 && (n.op == "LSTM" || n.op == "GRU" || n.op == "RNN")) {  // lengths: the whole, too
    const Shape x = shape(0);
    const size_t axis = n.attrs.i("layout", 0) ? 1 : 0;
    if (axis < x.size()) return {x[axis] + Dim(1)};
  }
  return {};
}

/// Whether the elements of the input at `slot` are found in the results as they were.
bool passes_on(const Node& n, size_t slot) {
  return (n.op == "Cast" || n.op == "CastLike" || n.op == "Identity") ? slot == 0
                                                                      : moves_input(n, slot);
}

/// Whether `a` is the better bound: smaller, or known where the other is not.
bool tighter(const Dim& a, const Dim& b) {
  if (a.constant() && b.constant()) return *a.constant() < *b.constant();
  return a.constant().has_value() && !b.constant();
}

}  // namespace

std::map<ValueId, Dim> index_inputs(const Graph& g) {
  std::map<ValueId, Dim>
      bound;  // of all values; those of a node's results are there before its own
  const auto take = [&](ValueId v, const Dim& found) {
    const auto [it, fresh] = bound.emplace(v, found);
    if (!fresh && tighter(found, it->second)) it->second = found;
  };
  const std::vector<NodeId> order = g.order();
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    const Node& n = g.node(*id);
    for (size_t slot = 0; slot < n.inputs.size(); ++slot) {
      if (!n.inputs[slot]) continue;
      for (const Dim& found : bounds(g, n, slot)) take(n.inputs[slot], found);
      if (!passes_on(n, slot)) continue;
      for (ValueId result : n.outputs)
        if (const auto it = bound.find(result); it != bound.end())
          take(n.inputs[slot], Dim(it->second));
    }
  }
  std::map<ValueId, Dim> out;
  for (ValueId input : g.inputs())
    if (const auto it = bound.find(input); it != bound.end() && is_int(g.value(input).type.dtype))
      out.insert(*it);
  return out;
}

}  // namespace ferrule
