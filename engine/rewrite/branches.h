// Branches that are decided before anything runs: an If whose condition is a constant becomes the
// nodes of the branch that is taken, a Loop that never turns passes its start values on. Part of
// constant folding. And branches and bodies as graphs of their own, for backends.
#pragma once
#include <span>

#include "engine/semantics/semantics.h"

namespace ferrule {

/// How many such nodes went; the types behind them are inferred anew. errors: those of inference.
Result<int> inline_branches(const Semantics& ops, Graph& g);

/// A nested graph as a graph of its own. What it captures of `outer` are constants, or inputs
/// behind its own; `captured`: which.
Graph standalone(const Graph& nested, const Graph& outer, std::vector<ValueId>& captured);

/// Some of the graph's nodes, in an order in which they can run, as a graph of its own: `inputs`
/// are all values that they read and that none of them makes, but for constants.
Graph excerpt(const Graph& g, std::span<const NodeId> nodes, std::span<const ValueId> inputs,
              std::span<const ValueId> outputs);

}  // namespace ferrule
