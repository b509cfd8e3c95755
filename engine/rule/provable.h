// Which rules must be proved, and so may have sound conditions: those that put other operators into
// the graph, and those that say which part of a contract the matched nodes are. The others only say
// what is one layer.
#pragma once
#include "engine/rule/rule.h"

namespace ferrule {

inline bool provable(const Rule& r) {
  return r.kind == RuleKind::rewrite || r.kind == RuleKind::merge || !r.roles.empty();
}

}  // namespace ferrule
