// Whether a rewrite makes the expression that it rewrites smaller, shared values written out
// wherever they are read. Rules that all do cannot undo each other: a graph's outputs, written out
// as trees, are finite, and get smaller with every step. What this cannot decide counts as no. A
// rule's number of operators is another measure (check.cpp): it counts a shared value once, and not
// at all where it stays.
#pragma once
#include "engine/rule/rule.h"

namespace ferrule {

/// Fewer operators, or as many and fewer constants; no value is read more often than before.
bool shrinks(const Rule& rule);

}  // namespace ferrule
