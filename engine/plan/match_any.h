// Rules of every kind: how one is matched at a node, and what a phase forms and places. Each kind
// has a file of its own: engine/rewrite, engine/group, place.h.
#pragma once
#include "engine/rewrite/rewrite.h"

namespace ferrule {

/// Any kind with its own way of matching: rewrite -> match_rule, absorb -> match_absorb, window ->
/// match_window, region -> the region that holds `node`, merge -> match_merge, place ->
/// match_place.
Attempt match_any(const Rule& rule, NodeId node, const MatchContext& ctx);
/// Runs the phase's rules that form groups, then its place rules. errors: limits, rule_broken.
Status group_phase(const PhaseContext& ctx, std::string_view phase);

}  // namespace ferrule
