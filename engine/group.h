// Forms groups: absorb rules (an anchor and its tail) and region rules (maximal convex connected pointwise
// regions), each fired group becoming one node `group.<contract>` with the originals as its body. window,
// merge and place rules run here too when they come. Linear in the size of the graph; no backtracking.
#pragma once
#include "engine/rewrite.h"

namespace ferrule {

/// Runs the phase's absorb / region rules. errors: limits, rule_broken.
Status group_phase(const PassContext& ctx, std::string_view phase);

/// Replaces `nodes` (topological order, convex) by one group node; existing groups among them are
/// flattened into the new body. Returns it. errors: rule_broken (not convex).
Result<NodeId> make_group(Graph& g, std::span<const NodeId> nodes, std::string contract, std::string rule,
                          std::string name);
/// The group's nodes in the body, the anchor first found by contract; for names and lowering.
std::vector<NodeId> body_order(const Graph& body);

}  // namespace ferrule
