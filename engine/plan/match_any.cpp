#include "engine/plan/match_any.h"

#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/group/absorb.h"
#include "engine/group/merge.h"
#include "engine/group/phase.h"
#include "engine/group/region.h"
#include "engine/group/window.h"
#include "engine/match/pattern_matcher.h"
#include "engine/plan/place.h"

namespace ferrule {

Attempt match_any(const Rule& rule, NodeId node, const MatchContext& ctx) {
  if (rule.kind == RuleKind::rewrite) return match_rule(rule, node, ctx);
  if (rule.kind == RuleKind::absorb) return match_absorb(rule, node, ctx);
  if (rule.kind == RuleKind::merge) return match_merge(rule, node, ctx);
  if (rule.kind == RuleKind::place) return match_place(rule, node, ctx);
  if (rule.kind == RuleKind::window) return match_window(rule, node, ctx);
  std::vector<Rejection> misses;
  for (Match& m : match_regions(rule, ctx, &misses))
    if (std::ranges::find(m.nodes, node) != m.nodes.end()) return std::move(m);
  for (Rejection& r : misses)
    if (r.root == node) return std::move(r);
  return no_match(rule, node, node_text(ctx.graph, node) + " is in no region of this rule");
}

Status group_phase(const PhaseContext& ctx, std::string_view phase) {
  FERRULE_TRY(form_groups(ctx, phase));
  return place_phase(ctx, phase);
}

}  // namespace ferrule
