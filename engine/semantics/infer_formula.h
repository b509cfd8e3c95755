// Inference of what formulas describe.
#pragma once
#include "engine/semantics/row.h"

namespace ferrule {

/// Broadcast shape and type of a pointwise node's output.  errors: bad_shape, formula_invalid.
Result<Type> infer_pointwise(const Semantics& ops, const Graph& g, const Node& n);
/// Type of a row operator's output: unknown where its axes are.  errors: bad_attribute, bad_shape.
Result<Type> infer_row(const OpFormula& f, const Graph& g, const Node& n);
/// Shape of its output: that of its first operand, `x`; one value a row where the formula reads
/// operands in reductions only, and attribute keepdims = 0 drops the reduced axes then.
Shape row_result_shape(const OpFormula& f, const Node& n, const RowAxes& axes, const Shape& x);

}  // namespace ferrule
