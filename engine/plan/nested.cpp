#include "engine/plan/nested.h"

#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/rewrite/branches.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

/// Whether the size in bytes is known.
bool known(const Type& t) {
  return size_bits(t.dtype) >= 8 && t.shape && constant_shape(*t.shape).has_value();
}

bool same(const Type& a, const Type& b) {
  return a.dtype == b.dtype && a.shape && b.shape && *a.shape == *b.shape;
}

/// One node's nested graphs.
class Nested {
 public:
  Nested(const Semantics& ops, const Graph& g, const Node& n) : ops_(ops), g_(g), n_(n) {}

  Applicable<std::vector<NestedGraph>> branch() {
    std::vector<NestedGraph> out;
    for (const char* attribute : {"then_branch", "else_branch"}) {
      FERRULE_ASSIGN(NestedGraph made, graph(attribute, {}));
      for (size_t k = 0; k < n_.outputs.size(); ++k)
        if (n_.outputs[k] && !same(result(made, k), g_.value(n_.outputs[k]).type))
          return refuse("its branches make results of other sizes");
      out.push_back(std::move(made));
    }
    return out;
  }

  Applicable<std::vector<NestedGraph>> loop() {
    if (n_.inputs.size() < 2) return refuse("neither a count nor a condition");
    std::vector<Type> inputs{{DType::i64, Shape{}}, {DType::boolean, Shape{}}};
    const Graph* body = subgraph(n_, "body");  // says the rank of the turn's number
    if (body && !body->inputs().empty() && body->value(body->inputs()[0]).type.rank() == 1)
      inputs[0].shape = Shape{1};
    for (size_t k = 2; k < n_.inputs.size(); ++k) inputs.push_back(operand(k));
    return steps(std::move(inputs), 1, 2, 0);
  }

  Applicable<std::vector<NestedGraph>> scan() {
    const int64_t scanned = n_.attrs.i("num_scan_inputs");
    const auto count = std::ssize(n_.inputs);
    if (scanned < 1 || scanned > count || (n_.since_opset > 0 && n_.since_opset < 9))
      return refuse("a form of before opset 9");
    const std::vector<int64_t> axes = n_.attrs.ints("scan_input_axes");
    std::vector<Type> inputs;
    for (size_t k = 0; k < n_.inputs.size(); ++k) {
      Type t = operand(k);
      if (const int64_t own = static_cast<int64_t>(k) - (count - scanned); own >= 0 && t.shape) {
        int64_t axis = own < std::ssize(axes) ? axes[static_cast<size_t>(own)] : 0;
        if (axis < 0) axis += t.rank();
        if (axis < 0 || axis >= t.rank()) return refuse("an axis that is none");
        t.shape->erase(t.shape->begin() + axis);
      }
      inputs.push_back(std::move(t));
    }
    return steps(std::move(inputs), 0, 0, scanned);
  }

 private:
  tl::unexpected<NotApplicable> refuse(std::string_view why) const {
    return not_applicable(escape(n_.name), n_.op.text(), why);
  }
  Type operand(size_t slot) const {
    const ValueId v = n_.inputs[slot];
    return v ? g_.value(v).type : Type{};
  }
  static const Type& result(const NestedGraph& nested, size_t k) {
    return nested.graph.value(nested.graph.outputs()[k]).type;
  }

  /// A body whose inputs from `first_in` on and outputs from `first_out` on are the state, but the
  /// last `scanned` inputs.
  Applicable<std::vector<NestedGraph>> steps(std::vector<Type> inputs, size_t first_out,
                                             size_t first_in, int64_t scanned) {
    const size_t state = inputs.size() - first_in - static_cast<size_t>(scanned);
    FERRULE_ASSIGN(NestedGraph body, graph("body", inputs));
    if (body.graph.outputs().size() < first_out + state)
      return refuse("a body with too few results");
    for (size_t k = 0; k < state; ++k)
      if (!same(result(body, first_out + k), inputs[first_in + k]))
        return refuse("a state that changes its size or type");
    std::vector<NestedGraph> out;
    out.push_back(std::move(body));
    return out;
  }

  /// The nested graph with inputs of these types.
  Applicable<NestedGraph> graph(std::string_view attribute, const std::vector<Type>& inputs) {
    const Graph* nested = subgraph(n_, attribute);
    if (!nested || nested->inputs().size() != inputs.size() ||
        nested->outputs().size() < n_.outputs.size())
      return refuse("a graph of another form");
    NestedGraph out;
    out.attribute = attribute;
    out.graph = standalone(*nested, g_, out.captured);
    for (size_t k = 0; k < inputs.size(); ++k) out.graph.set_type(out.graph.inputs()[k], inputs[k]);
    const auto all = out.graph.inputs();
    if (!std::ranges::all_of(all, [&](ValueId v) { return known(out.graph.value(v).type); }))
      return refuse("sizes that are not known");
    if (!infer_all(ops_, out.graph)) return refuse("a graph that is none for these sizes");
    if (!sizes_known(out.graph)) return refuse("sizes that depend on data");
    return out;
  }

  const Semantics& ops_;
  const Graph& g_;
  const Node& n_;
};

}  // namespace

bool sizes_known(const Graph& g) {
  for (NodeId id : g.order())
    for (ValueId v : g.node(id).outputs)
      if (v && !known(g.value(v).type)) return false;
  return true;
}

Applicable<std::vector<NestedGraph>> graphs_of_their_own(const Semantics& ops, const Graph& g,
                                                         const Node& n, std::string_view contract) {
  Nested nested(ops, g, n);
  return contract == "branch" ? nested.branch()
         : contract == "loop" ? nested.loop()
                              : nested.scan();
}

}  // namespace ferrule
