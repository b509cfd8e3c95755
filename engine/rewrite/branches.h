// Branches that are decided before anything runs: an If whose condition is a constant becomes the
// nodes of the branch that is taken, a Loop that never turns passes its start values on. Part of
// constant folding. And branches and bodies as graphs of their own, for backends.
#pragma once
#include "engine/semantics/semantics.h"

namespace ferrule {

/// How many such nodes went; the types behind them are inferred anew. errors: those of inference.
Result<int> inline_branches(const Semantics& ops, Graph& g);

/// A nested graph as a graph of its own. What it captures of `outer` are constants, or inputs
/// behind its own; `captured`: which.
Graph standalone(const Graph& nested, const Graph& outer, std::vector<ValueId>& captured);

}  // namespace ferrule
