// Place rules: where values live. The parts of a concatenation are written straight into slices of
// its result, the parts that something is taken apart into are read where they lie. What fires
// becomes a group of the movement alone that says which of its parts it need not move; the planner,
// the memory plan and the kernels follow. Asked are the layouts that the planner would choose,
// because they decide how a slice lies.
#pragma once
#include "engine/match/match_rule.h"
#include "engine/plan/plan.h"
#include "engine/rewrite/rewrite.h"

namespace ferrule {

/// One movement of a place rule: whose parts need not be moved.
struct PlaceMatch {
  Match match;
  std::vector<int64_t>
      slots;  ///< inputs that write into the result, or outputs that are read in the operand
  bool writes = false;  ///< inputs
  bool all = false;     ///< nothing is left to move
};
std::vector<PlaceMatch> match_places(const Rule& rule, const MatchContext& ctx,
                                     std::vector<Rejection>* misses);
/// The one at `node`, or why there is none.
Attempt match_place(const Rule& rule, NodeId node, const MatchContext& ctx);

/// Runs the phase's place rules.  errors: rule_broken.
Status place_phase(const PhaseContext& ctx, std::string_view phase);

}  // namespace ferrule
