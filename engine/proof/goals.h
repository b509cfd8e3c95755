// Where the conditions of a rule decide: each branch of an `or`, of an `if` in a formula, each
// element of a list, and the last size, rank or attribute that a comparison with a number lets
// through. What a rule gets wrong in one branch alone, graphs drawn for the rule as a whole seldom
// show: they take the branch that is met most easily.
#pragma once
#include <vector>

#include "engine/rule/rule.h"

namespace ferrule {

struct Goal {
  std::vector<Condition> where;  ///< of the rule, stricter: one condition is asked part by part
  std::vector<int64_t> numbers;  ///< that this one names, and their neighbours
};
/// Branches first, then limits; no more than can be looked for in the time of a proof.
std::vector<Goal> goals_of(const Rule& rule);

}  // namespace ferrule
