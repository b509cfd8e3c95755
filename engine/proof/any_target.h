// What a condition asks of the target or of a name says nothing of results: a rule must be right
// whatever it is. In a proof each such question may be answered either way, so that the machine on
// which it is made, and the names of its graphs, prove nothing.
#pragma once
#include "engine/rule/rule.h"

namespace ferrule {

/// The conditions with those questions answered so that they hold as often as they can.
void ask_any_target(Rule& rule);

}  // namespace ferrule
