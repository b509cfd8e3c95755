// Inference by the operator schemas' own functions, for every operator that semantics/infer.h does
// not do itself. Dims travel through onnx's named dimensions, so equal expressions stay equal.
#pragma once
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Types of the node's outputs.  errors: bad_shape, unknown_operator.
Result<Inferred> infer_by_schema(const Semantics& ops, const Graph& g, const Node& n);

/// ONNX's operators alone, none of them a formula.
const Semantics& onnx_semantics();

}  // namespace ferrule
