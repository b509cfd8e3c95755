// Which rules must be proved, and so may have sound conditions: those that put other operators into
// the graph. The others only say what is one layer.
#pragma once
#include "engine/rule/rule.h"

namespace ferrule {

constexpr bool provable(RuleKind k) { return k == RuleKind::rewrite || k == RuleKind::merge; }

}  // namespace ferrule
