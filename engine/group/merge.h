// Merge rules (horizontal fusion): nodes that share an operand and agree in their keys become one
// group. With `axis`, they are one computation with other constants: the constants are joined, the
// results are parts of one result along the axis, and one movement takes them apart again. Without,
// the originals stand side by side in one group with several results. No path may lead from one
// sibling to another; the engine sees to that.
#pragma once
#include "engine/match/match_rule.h"
#include "engine/rewrite/rewrite.h"

namespace ferrule {

/// The rule's sets of siblings in the graph, disjoint, each a match with `siblings` bound
/// (topological order); `misses`: why nodes that the pattern fits are in none.
std::vector<Match> match_merges(const Rule& rule, const MatchContext& ctx,
                                std::vector<Rejection>* misses);

/// The set that holds `node`, or why there is none.
Attempt match_merge(const Rule& rule, NodeId node, const MatchContext& ctx);

/// Makes one of them. Returns the group.  errors: rule_broken.
Result<NodeId> make_merge(Graph& g, const Match& m, const MatchContext& ctx);

/// Runs the phase's merge rules until none fires.  errors: rule_broken, cancelled.
Status merge_phase(const PhaseContext& ctx, std::string_view phase);

}  // namespace ferrule
