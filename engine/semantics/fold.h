// Reductions of many elements to one: what formulas' rsum, rmax, … become. Sums and products of
// floats are accumulated in f64 and those of integers in 64 bits, as the interpreter does.
#pragma once
#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/semantics/scalar.h"

namespace ferrule {

enum class Fold : uint8_t { none, sum, prod, max, min };

/// Type of the accumulator for elements of compute type `element`.
DType fold_type(Fold fold, DType element);
/// What the fold of nothing is, in `type` (a fold_type).
Scalar fold_identity(Fold fold, DType type);

}  // namespace ferrule
