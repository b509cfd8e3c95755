// Forms groups: absorb rules (an anchor and its tail), window rules (nodes that read each other's tiles)
// and region rules (maximal convex connected pointwise regions), each fired group becoming one node
// `group.<contract>` with the originals as its body. merge.h and place.h have the others, which the
// phase runs behind these. Linear in the size of the graph; no backtracking.
#pragma once
#include "engine/contract/contracts.h"
#include "engine/rewrite/rewrite.h"

namespace ferrule {

/// Runs the phase's absorb, window and region rules, then its merge and place rules. errors: limits, rule_broken.
Status group_phase(const PassContext& ctx, std::string_view phase);

/// Replaces `nodes` (topological order, convex) by one group node; existing groups among them are
/// flattened into the new body. Returns it. errors: rule_broken (not convex).
Result<NodeId> make_group(Graph& g, std::span<const NodeId> nodes, std::string contract,
                          std::string rule, std::string name);
/// Tries an absorb rule at `root`: the anchor's pattern, then the tail behind it, then the
/// conditions with `tail` and `group` bound. A match's nodes are the anchor's and the tail's.
Attempt match_absorb(const Rule& rule, NodeId root, const MatchContext& ctx);
/// The rule's regions in the graph, each a match with `region` bound; `misses`: those it declined.
std::vector<Match> match_regions(const Rule& rule, const MatchContext& ctx,
                                 std::vector<Rejection>* misses);
/// The same for rules with `around:` (row_region.cpp).
std::vector<Match> match_row_regions(const Rule& rule, const MatchContext& ctx,
                                     std::vector<Rejection>* misses);
/// Asks a region rule without `around:` why it does not fuse over an edge, for `why`; empty: it could. Looks at the
/// graph once.
using EdgeRefusal = std::function<std::string(NodeId from, ValueId v, NodeId to)>;
EdgeRefusal refused_edges(const Rule& rule, const MatchContext& ctx);
/// Any kind with its own way of matching: rewrite -> match_rule, absorb -> match_absorb, window ->
/// match_window, region -> the region that holds `node`.
Attempt match_any(const Rule& rule, NodeId node, const MatchContext& ctx);

/// The nodes as a graph of their own, groups among them flattened. Every value read from outside is
/// an input (constants keep their tensor), every value that leaves an output.
struct Body {
  Graph graph;
  std::vector<ValueId> inputs, outputs;  ///< values of the outer graph, in the body's order
  std::vector<std::string> origins;
  std::vector<NodeId> nodes;             ///< of the outer graph
};
Body make_body(const Graph& g, std::span<const NodeId> nodes);
/// Whether the contract has a kernel for the match's nodes as one group (contracts.h), groups flattened. The body is
/// kept in the match, for the group that may come of it.
Accept accepts_group(const Graph& g, Match& m, std::string_view contract, const Target& target, const OpTable& ops);
/// The rule's conditions on the match as a group of its contract; nullopt: it fires.
std::optional<Rejection> judge_group(const Rule& rule, Match& m, const MatchContext& ctx);
/// The group's name from the rule's template: tails joined with " + ", regions with ", ".
std::string group_name(const Rule& rule, const Match& m, const MatchContext& ctx);

}  // namespace ferrule
