// Functions of conditions: attributes of nodes, permutations, convolution geometry, operator
// classes.
#include "engine/base/join.h"
#include "engine/rule/condition_functions.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/operator_kinds.h"
#include "engine/semantics/semantics.h"

namespace ferrule {
namespace {

const Node* node_of(const EvalContext& ctx, const Val& v) {
  if (auto n = get<NodeId>(v); n && *n) return &ctx.graph.node(*n);
  if (auto x = get<ValueId>(v)) return ctx.graph.producer(*x);
  return nullptr;
}

template <class F>
Val with_node(const EvalContext& ctx, const Val& v, F f) {
  const Node* n = node_of(ctx, v);
  return n ? f(*n) : unknown("a node");
}

/// A node and the graph it is in.
struct Placed {
  const Graph& graph;
  const Node& node;
};

/// For questions about attributes and windows: a group stands for its anchor, the first
/// node of it that is not pointwise.
template <class F>
Val with_anchor(const EvalContext& ctx, const Val& v, F f) {
  const Node* n = node_of(ctx, v);
  if (!n) return unknown("a node");
  if (n->body)
    for (NodeId id : n->body->order())
      if (const Node& b = n->body->node(id); !ctx.ops.pointwise(b)) return f(Placed{*n->body, b});
  return f(Placed{ctx.graph, *n});
}

Val op(const EvalContext& ctx, Args a) {
  return with_node(ctx, a[0], [](const Node& n) {
    bool plain = n.domain.empty() || n.domain == "ai.onnx" || n.domain == "ferrule";
    return Val{plain ? n.op.text() : n.domain + "::" + n.op.text()};
  });
}
Val ops(const EvalContext& ctx, Args a) {
  const Val::List* l = list_of(a[0]);
  if (!l) return unknown("a list of nodes");
  Val::List out;
  for (const Val& n : *l) out.push_back(op(ctx, Args(&n, 1)));
  return make_list(std::move(out));
}
Val node_class(const EvalContext& ctx, Args a) {
  auto cls = get<std::string>(a[1]);
  if (!cls) return unknown("the name of a class");
  return with_node(ctx, a[0], [&](const Node& n) { return Val{ctx.ops.in_class(n, *cls)}; });
}
Val attr(const EvalContext& ctx, Args a) {
  auto key = get<std::string>(a[1]);
  if (!key) return unknown("the name of an attribute");
  return with_anchor(ctx, a[0], [&](const Placed& p) {
    const Attr* x = p.node.attrs.find(*key);
    return x ? from_attr(*x) : Val{Val::Absent{}};
  });
}
/// Operators and attributes, constants aside: equal for nodes that do the same with other numbers.
std::string behaviour(const Node& n) {
  auto text = [](const auto& a) { return a.first + "=" + str(a.second); };
  return n.op.text() + (n.attrs.empty() ? "" : "<" + joined(n.attrs.items(), text) + ">");
}
Val tail_ops(const EvalContext& ctx, Args a) {
  return with_node(ctx, a[0], [](const Node& n) {
    std::string out;
    if (n.body) {
      std::vector<NodeId> order = n.body->order();
      for (size_t k = 1; k < order.size(); ++k)
        out += (k > 1 ? " + " : "") + behaviour(n.body->node(order[k]));
    }
    return Val{out.empty() ? std::string("nothing") : out};
  });
}
Val has_attr(const EvalContext& ctx, Args a) {
  auto key = get<std::string>(a[1]);
  if (!key) return unknown("the name of an attribute");
  return with_anchor(ctx, a[0],
                     [&](const Placed& p) { return Val{p.node.attrs.find(*key) != nullptr}; });
}
Val same_attrs(const EvalContext& ctx, Args a) {
  const Node *x = node_of(ctx, a[0]), *y = node_of(ctx, a[1]);
  if (!x || !y) return unknown("a node");
  return Val{x->attrs == y->attrs};
}
Val name_of(const EvalContext& ctx, Args a) {
  if (auto x = get<ValueId>(a[0])) return Val{ctx.graph.value(*x).name};
  return with_node(ctx, a[0], [](const Node& n) { return Val{n.name}; });
}
Val input(const EvalContext& ctx, Args a) {
  auto k = get<int64_t>(a[1]);
  if (!k || *k < 0) return unknown("the number of an input");
  return with_node(ctx, a[0], [&](const Node& n) {
    size_t i = static_cast<size_t>(*k);
    return i < n.inputs.size() && n.inputs[i] ? Val{n.inputs[i]} : Val{Val::Absent{}};
  });
}
Val output(const EvalContext& ctx, Args a) {
  auto k = a.size() > 1 ? get<int64_t>(a[1]) : nullptr;
  size_t i = k && *k > 0 ? static_cast<size_t>(*k) : 0;
  return with_node(ctx, a[0], [&](const Node& n) {
    return i < n.outputs.size() && n.outputs[i] ? Val{n.outputs[i]} : Val{Val::Absent{}};
  });
}
Val inputs(const EvalContext& ctx, Args a) {
  return with_node(ctx, a[0], [](const Node& n) {
    Val::List l;
    for (ValueId v : n.inputs)
      if (v) l.push_back(Val{v});
    return make_list(std::move(l));
  });
}

// --- axes and permutations
// -------------------------------------------------------------------------------

Val axes_norm(const EvalContext&, Args a) {
  auto rank = get<int64_t>(a[1]);
  if (!rank) return unknown("a rank");
  auto norm = [&](int64_t axis) { return axis < 0 ? axis + *rank : axis; };
  if (auto i = get<int64_t>(a[0])) return Val{norm(*i)};
  auto v = as_ints(a[0]);
  if (!v) return unknown("axes");
  for (int64_t& i : *v) i = norm(i);
  return ints(*v);
}
std::optional<std::vector<int64_t>> permutation(const Val& v) {
  auto p = as_ints(v);
  if (!p) return std::nullopt;
  std::vector<bool> seen(p->size());
  for (int64_t i : *p) {
    if (i < 0 || i >= static_cast<int64_t>(p->size()) || seen[static_cast<size_t>(i)])
      return std::nullopt;
    seen[static_cast<size_t>(i)] = true;
  }
  return p;
}
Val perm_compose(const EvalContext&, Args a) {
  auto p = permutation(a[0]), q = permutation(a[1]);
  if (!p || !q || p->size() != q->size()) return unknown("two permutations of one rank");
  std::vector<int64_t> r;
  for (int64_t i : *q) r.push_back((*p)[static_cast<size_t>(i)]);
  return ints(r);
}
Val perm_inverse(const EvalContext&, Args a) {
  auto p = permutation(a[0]);
  if (!p) return unknown("a permutation");
  std::vector<int64_t> r(p->size());
  for (size_t i = 0; i < p->size(); ++i) r[static_cast<size_t>((*p)[i])] = static_cast<int64_t>(i);
  return ints(r);
}
Val is_identity_perm(const EvalContext&, Args a) {
  auto p = permutation(a[0]);
  if (!p) return unknown("a permutation");
  for (size_t i = 0; i < p->size(); ++i)
    if ((*p)[i] != static_cast<int64_t>(i)) return Val{false};
  return Val{true};
}
Val swaps_last_two(const EvalContext&, Args a) {
  auto p = permutation(a[0]);
  if (!p) return unknown("a permutation");
  size_t n = p->size();
  if (n < 2) return Val{false};
  for (size_t i = 0; i < n; ++i) {
    size_t want = i == n - 1 ? n - 2 : i == n - 2 ? n - 1 : i;
    if ((*p)[i] != static_cast<int64_t>(want)) return Val{false};
  }
  return Val{true};
}
Val permuted(const EvalContext&, Args a) {
  const Val::List* l = list_of(a[0]);
  auto p = as_ints(a[1]);
  if (!l || !p) return unknown("a list and positions");
  Val::List out;
  for (int64_t i : *p) {
    if (i < 0 || i >= static_cast<int64_t>(l->size())) return unknown(fmt::format("element {}", i));
    out.push_back((*l)[static_cast<size_t>(i)]);
  }
  return make_list(std::move(out));
}

// --- windows
// -----------------------------------------------------------------------------------------------

const Shape* shape_of_input(const Placed& p, size_t slot) {
  if (slot >= p.node.inputs.size() || !p.node.inputs[slot]) return nullptr;
  const auto& s = p.graph.value(p.node.inputs[slot]).type.shape;
  return s ? &*s : nullptr;
}

std::optional<std::vector<int64_t>> window(const Placed& p) {
  std::vector<int64_t> k = p.node.attrs.ints("kernel_shape");
  if (!k.empty()) return k;
  const Weighted* w = weighted(p.node);
  const Shape* s = w && w->window ? shape_of_input(p, w->slot) : nullptr;
  if (!s || s->size() < 3) return std::nullopt;
  return constant_shape(Shape(s->begin() + 2, s->end()));
}

Val kernel_size(const EvalContext& ctx, Args a) {
  return with_anchor(ctx, a[0], [&](const Placed& p) {
    auto k = window(p);
    return k ? ints(*k) : unknown(fmt::format("the kernel size of \"{}\"", escape(p.node.name)));
  });
}

/// Explicit pads; what auto_pad asks for is known once the spatial sizes are.
Val resolved_pads_of(const EvalContext& ctx, Args a) {
  return with_anchor(ctx, a[0], [&](const Placed& at) {
    const Node& n = at.node;
    Val missing = unknown(fmt::format("the pads of \"{}\" (auto_pad {})", escape(n.name),
                                      escape(n.attrs.s("auto_pad", "NOTSET"))));
    auto k = window(at);
    if (!k) return missing;
    const Shape* x = shape_of_input(at, 0);
    Shape spatial = x && x->size() == k->size() + 2 ? Shape(x->begin() + 2, x->end()) : Shape();
    while (spatial.size() < k->size()) spatial.push_back(Dim::unknown());
    auto p = resolved_pads(n, spatial, *k);
    return p ? ints(*p) : missing;
  });
}

/// A window's own pads [begin.., end..] plus those of a Pad over all axes, whose first two are not
/// padded.
Val add_pads(Args a, const std::function<int64_t(size_t)>& factor) {
  if (is_unknown(a[0])) return a[0];
  auto window = is_absent(a[0]) ? std::vector<int64_t>() : as_ints(a[0]);
  auto pad = as_ints(a[1]);
  if (!window || !pad || pad->size() < 6 || pad->size() % 2 != 0) return unknown("pads");
  size_t rank = pad->size() / 2, spatial = rank - 2;
  if (window->empty()) window->resize(2 * spatial);
  if (window->size() != 2 * spatial) return unknown("pads of one rank");
  for (size_t k = 0; k < spatial; ++k) {
    (*window)[k] += factor(k) * (*pad)[k + 2];
    (*window)[k + spatial] += factor(k) * (*pad)[rank + k + 2];
  }
  return ints(*window);
}

Val pads_sum(const EvalContext&, Args a) {
  return add_pads(a, [](size_t) { return 1; });
}

/// A cell of padding in front of a transposed convolution is `stride` cells of its output, which
/// its own pads cut off.
Val pads_cropped(const EvalContext&, Args a) {
  if (is_unknown(a[2])) return a[2];
  auto strides = as_ints(a[2]);
  if (!strides) return unknown("strides");
  return add_pads(a, [&](size_t k) { return k < strides->size() ? -(*strides)[k] : -1; });
}

Val out_channels(const EvalContext& ctx, Args a) {
  return with_anchor(ctx, a[0], [&](const Placed& p) {
    const Weighted* w = weighted(p.node);
    const Shape* s = w ? shape_of_input(p, w->slot) : nullptr;
    if (!s || s->size() < 2)
      return unknown(fmt::format("the output channels of \"{}\"", escape(p.node.name)));
    int axis = w->output_axis < 0 ? static_cast<int>(s->size()) + w->output_axis : w->output_axis;
    if (p.node.attrs.i("transB") != 0) axis = 0;
    Dim d = (*s)[static_cast<size_t>(axis)];
    return make_dim(w->times_group ? d * Dim(p.node.attrs.i("group", 1)) : d);
  });
}

/// One group per input channel.
Val is_depthwise(const EvalContext& ctx, Args a) {
  return with_anchor(ctx, a[0], [&](const Placed& p) {
    int64_t group = p.node.attrs.i("group", 1);
    const Shape* x = shape_of_input(p, 0);
    if (group <= 1) return Val{false};
    if (!x || x->size() < 2)
      return unknown(fmt::format("the input channels of \"{}\"", escape(p.node.name)));
    return make_truth(equal((*x)[1], Dim(group)),
                      fmt::format("whether \"{}\" has {} channels", escape(p.node.name), group));
  });
}

const Function kNodeFunctions[] = {
    {{"op", "(n: node) -> string", "operator: 'Conv', 'com.microsoft::Gelu', 'group.conv'"}, op},
    {{"ops", "(nodes: list) -> list", "operators of several nodes"}, ops},
    {{"node_class", "(n: node, class: string) -> bool",
      "the operator is in the class: node_class(n, 'activation')"},
     node_class},
    {{"attr", "(n: node, name: string) -> any",
      "an attribute, defaults filled; absent if there is none; a group has its anchor's"},
     attr},
    {{"tail_ops", "(n: node) -> string",
      "what a group does behind its anchor, attributes included; 'nothing' for a single node"},
     tail_ops},
    {{"has_attr", "(n: node, name: string) -> bool", "the attribute is there"}, has_attr},
    {{"same_attrs", "(a: node, b: node) -> bool", "two nodes have the same attributes"},
     same_attrs},
    {{"name", "(x: any) -> string", "name of a node or value; compare with ~ '/layer1/*'"},
     name_of},
    {{"input", "(n: node, slot: int) -> value", "an input of a node, absent if left out"}, input},
    {{"output", "(n: node, slot: int = 0) -> value", "an output of a node, absent if not wanted"},
     output},
    {{"inputs", "(n: node) -> list", "the inputs that are there"}, inputs},
    {{"axes_norm", "(axes: any, rank: int) -> any",
      "an axis or a list of axes without negative numbers"},
     axes_norm},
    {{"perm_compose", "(p: list, q: list) -> list",
      "the permutation of a Transpose by p and then by q"},
     perm_compose},
    {{"perm_inverse", "(p: list) -> list", "the permutation that undoes p"}, perm_inverse},
    {{"is_identity_perm", "(p: list) -> bool", "the permutation moves nothing"}, is_identity_perm},
    {{"swaps_last_two", "(p: list) -> bool",
      "the permutation swaps the last two axes and nothing else"},
     swaps_last_two},
    {{"permuted", "(list: list, p: list) -> list", "the elements at the positions p"}, permuted},
    {{"kernel_size", "(n: node) -> list", "sizes of a convolution's or pooling's window"},
     kernel_size},
    {{"resolved_pads", "(n: node) -> list",
      "pads [begin.., end..] of a window operator, auto_pad worked out"},
     resolved_pads_of},
    {{"pads_sum", "(window: list, pad: list) -> list",
      "a window's pads plus those of a Pad over all axes"},
     pads_sum,
     true},
    {{"pads_cropped", "(window: list, pad: list, strides: list) -> list",
      "a transposed convolution's pads less those of a Pad over all axes, counted in its output"},
     pads_cropped,
     true},
    {{"out_channels", "(n: node) -> size",
      "output channels of a convolution, columns of a matrix product"},
     out_channels},
    {{"is_depthwise", "(n: node) -> bool", "a convolution with one group per input channel"},
     is_depthwise},
};

}  // namespace

std::span<const Function> node_functions() { return kNodeFunctions; }

}  // namespace ferrule
