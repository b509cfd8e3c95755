#include "engine/rewrite/known_failures.h"

#include <algorithm>

#include "engine/match/index.h"

namespace ferrule {
namespace {

/// Nodes that a pattern's part may stand for: no path through it is longer.
int calls(const PatternExpr& e) {
  int count = e.kind == PatternExpr::Kind::call;
  for (const auto& a : e.args) count += calls(*a);
  for (const auto& [_, choice] : e.choices) count += calls(*choice);
  return count;
}

std::vector<const Rule*> rewrites(const RuleSet& rules) {
  std::vector<const Rule*> out;
  for (const auto& r : rules.rules)
    if (r->enabled && r->kind == RuleKind::rewrite) out.push_back(r.get());
  return out;
}

/// What a pattern can see of a value apart from its type.
bool same_value(const Value& a, const Value& b) {
  return a.dead == b.dead && a.producer == b.producer && a.producer_slot == b.producer_slot &&
         a.constant.has_value() == b.constant.has_value() && a.is_output == b.is_output &&
         a.uses.empty() == b.uses.empty();
}

bool same_node(const Graph& then, const Graph& now, NodeId n) {
  if (n.index >= then.node_slots()) return false;
  const Node &a = then.node(n), &b = now.node(n);
  if (a.dead || b.dead || a.op != b.op || a.inputs != b.inputs || a.outputs != b.outputs)
    return false;
  if (&a.attrs.items() != &b.attrs.items() || a.body != b.body || !a.subgraphs.empty())
    return false;
  auto same = [&](ValueId v) { return !v || same_value(then.value(v), now.value(v)); };
  return std::ranges::all_of(a.inputs, same) && std::ranges::all_of(a.outputs, same);
}

}  // namespace

KnownFailures::KnownFailures(const PhaseContext& ctx) {
  const std::vector<const Rule*> rules = rewrites(ctx.rules);
  for (const Rule* r : rules) {
    int count = 0;
    for (const PatternLine& l : r->match.lines) count += calls(*l.expr);
    reach_ = std::max(reach_, count);
  }
  const Graph& g = ctx.graph;
  RuleIndex index(rules, ctx.ops);
  int64_t steps = 0;
  MatchContext mc = ctx.match_context(g, steps);
  mc.explain = false;
  for (NodeId n : g.order())
    for (uint32_t rank : index.ranks_at(g.node(n))) {
      if (ctx.cancel && ctx.cancel->stopped()) return;
      Attempt a = match_rule(*rules[rank], n, mc);
      const auto* r = std::get_if<Rejection>(&a);
      if (!r || !r->fixed) continue;
      auto& nodes = failed_[rules[rank]];
      if (nodes.empty()) nodes.resize(g.node_slots());
      nodes[n.index] = true;
    }
}

const std::vector<bool>* KnownFailures::failed(const Rule& rule) const {
  auto it = failed_.find(&rule);
  return it == failed_.end() ? nullptr : &it->second;
}

std::vector<bool> KnownFailures::unchanged(const Graph& then, const Graph& now) const {
  // Patterns look backwards: how far in front of each node the next change is.
  std::vector<int> distance(now.node_slots(), reach_ + 1);
  std::vector<bool> out(now.node_slots());
  for (NodeId n : now.order()) {
    int& d = distance[n.index];
    if (!same_node(then, now, n)) d = 0;
    for (ValueId v : now.node(n).inputs)
      if (d > 0 && v && now.value(v).producer)
        d = std::min(d, distance[now.value(v).producer.index] + 1);
    out[n.index] = d > reach_;
  }
  return out;
}

}  // namespace ferrule
