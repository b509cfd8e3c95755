// Region rules: maximal convex connected regions of the nodes that a rule names.
#pragma once
#include <functional>

#include "engine/match/match_rule.h"

namespace ferrule {

/// The rule's regions in the graph, each a match with `region` bound; `misses`: those it declined.
std::vector<Match> match_regions(const Rule& rule, const MatchContext& ctx,
                                 std::vector<Rejection>* misses);
/// Asks a region rule without `around:` why it does not fuse over an edge, for `why`; empty: it
/// could. Looks at the graph once.
using EdgeRefusal = std::function<std::string(NodeId from, ValueId v, NodeId to)>;
EdgeRefusal refused_edges(const Rule& rule, const MatchContext& ctx);

}  // namespace ferrule
