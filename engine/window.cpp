#include "engine/window.h"

#include "engine/base/diagnostics.h"
#include "engine/match/matcher.h"

namespace ferrule {
namespace {

/// A group of one node that is a group already would be made again for ever.
Rejection nothing_to_join(const Rule& rule, NodeId root, const Match& m, const MatchContext& ctx) {
  Rejection r;
  r.rule = &rule;
  r.root = root;
  r.id = "structure";
  r.matched_nodes = static_cast<int>(m.nodes.size());
  if (ctx.explain) r.why = node_text(*ctx.graph, root) + " has nothing in front of it that it could be one kernel with";
  return r;
}

}  // namespace

Attempt match_window(const Rule& rule, NodeId root, const MatchContext& ctx) {
  if (!is_joint_contract(rule.contract)) {
    Rejection r;
    r.rule = &rule, r.root = root, r.id = "structure";
    if (ctx.explain) r.why = fmt::format("{} is no contract of several windows", rule.contract);
    return r;
  }
  const bool has_tail = !rule.region.ops.empty() || !rule.region.classes.empty();
  if (has_tail) return match_absorb(rule, root, ctx);
  Attempt a = match_structure(rule, root, ctx, false);
  if (std::holds_alternative<Rejection>(a)) return a;
  Match m = std::move(std::get<Match>(a));
  if (m.nodes.size() < 2) return nothing_to_join(rule, root, m, ctx);
  auto r = judge(rule, rule.where, m, ctx, [&](std::string* reason) {
    if (!ctx.target) return Truth::unknown;
    Accept accept = accepts_group(*ctx.graph, m, rule.contract, *ctx.target, *ctx.ops);
    if (reason) *reason = accept.reason;
    return accept.truth;
  });
  if (!r) return m;
  r->rule = &rule;
  r->root = root;
  r->matched_nodes = static_cast<int>(m.nodes.size());
  return std::move(*r);
}

}  // namespace ferrule
