#include "engine/rewrite/branches.h"

#include "engine/base/diagnostics.h"
#include "engine/graph/copy.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/operator_kinds.h"

namespace ferrule {
namespace {

using Map = std::map<ValueId, ValueId>;

class Branches {
 public:
  Branches(const Semantics& ops, Graph& g) : ops_(ops), g_(g) {}

  Result<int> run() {
    int count = 0;
    for (NodeId id : g_.order()) {
      if (g_.node(id).subgraphs.empty()) continue;
      std::vector<ValueId> results;
      if (const Graph* branch = taken(g_.node(id)))
        results = inlined(*branch);
      else if (never_turns(g_.node(id)))
        results = start_values(g_.node(id));
      else
        continue;
      replace(id, results);
      ++count;
    }
    if (!count) return 0;
    g_.remove_dead();
    FERRULE_TRY(g_.sort());
    FERRULE_TRY(infer_all(ops_, g_));
    return count;
  }

 private:
  /// What a constant input says; nullopt: not known.
  std::optional<bool> truth(const Node& n, size_t slot) const {
    const ValueId v = slot < n.inputs.size() ? n.inputs[slot] : ValueId{};
    const Tensor* t = v && !g_.value(v).is_input ? g_.constant(v) : nullptr;
    if (!t || t->numel() != 1) return std::nullopt;
    return t->at_i64(0) != 0;
  }

  const Graph* taken(const Node& n) const {
    if (!is_branch(n)) return nullptr;
    auto t = truth(n, 0);
    return t ? subgraph(n, *t ? "then_branch" : "else_branch") : nullptr;
  }

  /// No turn: the count is 0, or the condition false from the start. What the turns would have
  /// stacked is not made.
  bool never_turns(const Node& n) const {
    if (!is_loop(n) || n.outputs.size() + 2 > n.inputs.size()) return false;
    return truth(n, 0) == false || truth(n, 1) == false;
  }
  std::vector<ValueId> start_values(const Node& n) const {
    return {n.inputs.begin() + 2, n.inputs.begin() + 2 + static_cast<long>(n.outputs.size())};
  }

  std::vector<ValueId> inlined(const Graph& branch) {
    Map map;
    each_capture(branch, [&](ValueId id, const Value& v) { map[id] = v.outer; });
    add_nodes(branch, g_, map);
    std::vector<ValueId> results;
    for (ValueId v : branch.outputs()) results.push_back(map.at(v));
    return results;
  }

  void replace(NodeId id, const std::vector<ValueId>& results) {
    const std::vector<ValueId> outputs = g_.node(id).outputs;
    for (size_t k = 0; k < outputs.size() && k < results.size(); ++k)
      if (outputs[k]) g_.replace_uses(outputs[k], results[k]);
    g_.remove_node(id);
  }

  const Semantics& ops_;
  Graph& g_;
};

}  // namespace

Graph standalone(const Graph& nested, const Graph& outer, std::vector<ValueId>& captured) {
  Graph to;
  to.name = nested.name;
  Map map;
  for (ValueId v : nested.inputs())
    map[v] = to.add_input(nested.value(v).name, nested.value(v).type);
  each_capture(nested, [&](ValueId id, const Value& v) {
    if (const Tensor* t = outer.constant(v.outer); t && !outer.value(v.outer).is_input) {
      map[id] = to.add_constant(v.name, *t);
      return;
    }
    map[id] = to.add_input(v.name, outer.value(v.outer).type);
    to.set_contents(map[id], outer.value(v.outer).contents);
    captured.push_back(v.outer);
  });
  add_nodes(nested, to, map);
  for (ValueId v : nested.outputs()) to.add_output(map.at(v));
  return to;
}

Graph excerpt(const Graph& g, std::span<const NodeId> nodes, std::span<const ValueId> inputs,
              std::span<const ValueId> outputs) {
  Graph to;
  to.name = g.name;
  Map map;
  for (ValueId v : inputs) map[v] = to.add_input(g.value(v).name, g.value(v).type);
  for (NodeId id : nodes) {
    const Node& n = g.node(id);
    for (const std::vector<ValueId>& all :
         {std::vector<ValueId>(n.inputs), captures(n), std::vector<ValueId>(n.outputs)})
      for (ValueId v : all)
        if (v) add_value(g, v, to, map);
  }
  add_nodes(g, nodes, to, map);
  for (ValueId v : outputs) {
    if (g.constant(v)) add_value(g, v, to, map);  // no node need read it
    to.add_output(map.at(v));
  }
  return to;
}

Result<int> inline_branches(const Semantics& ops, Graph& g) { return Branches(ops, g).run(); }

}  // namespace ferrule
