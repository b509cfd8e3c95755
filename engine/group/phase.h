// Forms the groups of a phase: absorb rules (an anchor and its tail), window rules (nodes that read
// each other's tiles) and region rules (maximal convex connected pointwise regions), then merge
// rules. Linear in the size of the graph; no backtracking.
#pragma once
#include "engine/rewrite/rewrite.h"

namespace ferrule {

/// Runs the phase's absorb, window and region rules, then its merge rules. errors: limits,
/// rule_broken.
Status form_groups(const PhaseContext& ctx, std::string_view phase);

}  // namespace ferrule
