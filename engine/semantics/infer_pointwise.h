// Inference of what formulas describe.
#pragma once
#include "engine/semantics/ops.h"

namespace ferrule {

/// Broadcast shape and type of a pointwise node's output.  errors: bad_shape, formula_invalid.
Result<Type> infer_pointwise(const OpTable& ops, const Graph& g, const Node& n);
/// The same as infer.h wants it; the table must outlive its use.
void install_pointwise_inference(const OpTable* ops);

}  // namespace ferrule
