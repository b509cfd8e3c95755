// Inference of what formulas describe.
#pragma once
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Broadcast shape and type of a pointwise node's output.  errors: bad_shape, formula_invalid.
Result<Type> infer_pointwise(const Semantics& ops, const Graph& g, const Node& n);

}  // namespace ferrule
