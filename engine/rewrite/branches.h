// Branches that are decided before anything runs: an If whose condition is a constant becomes the
// nodes of the branch that is taken, a Loop that never turns passes its start values on. Part of
// constant folding.
#pragma once
#include "engine/semantics/semantics.h"

namespace ferrule {

/// How many such nodes went; the types behind them are inferred anew. errors: those of inference.
Result<int> inline_branches(const Semantics& ops, Graph& g);

}  // namespace ferrule
