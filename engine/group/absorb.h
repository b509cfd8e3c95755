// Absorb rules: an anchor and the tail behind it become one group.
#pragma once
#include "engine/match/match_rule.h"

namespace ferrule {

/// Tries an absorb rule at `root`: the anchor's pattern, then the tail behind it, then the
/// conditions with `tail` and `group` bound. A match's nodes are the anchor's and the tail's.
Attempt match_absorb(const Rule& rule, NodeId root, const MatchContext& ctx);

}  // namespace ferrule
