// Region rules: maximal convex connected regions of the nodes that a rule names.
#pragma once
#include <functional>

#include "engine/match/match_rule.h"

namespace ferrule {

/// The rule's regions in the graph, each a match with `region` bound; `misses`: those it declined.
std::vector<Match> match_regions(const Rule& rule, const MatchContext& ctx,
                                 std::vector<Rejection>* misses);
/// Of "operator Resize cannot run here: mode linear computes", which not_applicable says, the end.
inline std::string_view cause_of(std::string_view reason) {
  const size_t colon = reason.find(": ");
  return colon == reason.npos ? reason : reason.substr(colon + 2);
}
/// Asks a region rule without `around:` why it does not fuse over an edge, for `why`; empty: it
/// could. Looks at the graph once.
using EdgeRefusal = std::function<std::string(NodeId from, ValueId v, NodeId to)>;
EdgeRefusal refused_edges(const Rule& rule, const MatchContext& ctx);

}  // namespace ferrule
