// Window rules: nodes that read each other's tiles (a convolution and the pooling behind it, a
// depthwise and a 1x1 convolution, a softmax and the selection of its largest) become one group of
// a contract that is made of all of them. The pattern names them all, groups with their tails among
// them; what stays inside the group is guaranteed as for every match (D1 to D3). Whether there is a
// kernel is the contract's business (accepts.h).
#pragma once
#include "engine/match/match_rule.h"

namespace ferrule {

/// Tries a window rule at `root`: the pattern, the tail behind it if the rule has one, then the
/// conditions with `group` bound to all of it.
Attempt match_window(const Rule& rule, NodeId root, const MatchContext& ctx);

}  // namespace ferrule
