#include "engine/group/window.h"

#include "engine/base/diagnostics.h"
#include "engine/group/absorb.h"
#include "engine/group/group.h"
#include "engine/match/pattern_matcher.h"

namespace ferrule {

Attempt match_window(const Rule& rule, NodeId root, const MatchContext& ctx) {
  const bool has_tail = !rule.region.ops.empty() || !rule.region.classes.empty();
  if (has_tail) return match_absorb(rule, root, ctx);
  if (rule.kernel)
    return match_structure(rule, root, ctx, [&](Match& m) { return judge_roles(rule, m, ctx); });
  Attempt a = match_structure(rule, root, ctx);
  if (std::holds_alternative<Rejection>(a)) return a;
  Match m = std::move(std::get<Match>(a));
  // A group of one node that is a group already would be formed again without end.
  if (m.nodes.size() < 2)
    return no_match(rule, root,
                    ctx.explain ? node_text(ctx.graph, root) +
                                      " has nothing in front of it that it could be one kernel with"
                                : "",
                    static_cast<int>(m.nodes.size()));
  return judge_group(rule, std::move(m), ctx);
}

}  // namespace ferrule
