// What rounding makes of numbers that were computed exactly (D9): a constant that a rewrite folds
// stays what it was, normal numbers normal ones. Nothing here knows of rules or graphs.
#pragma once
#include <optional>
#include <string>

#include "engine/graph/tensor.h"

namespace ferrule {

/// No element is infinite or NaN.
bool finite(const Tensor& t);
/// The least positive normal number of a float type; 0 for types that are none.
double least_normal(DType t);

/// How the elements of a constant take part in what reads it.
enum class Elements : uint8_t {
  alone,   ///< each in a result of its own
  summed,  ///< with the others of their row, column, …: weights
};

/// An element that is another kind of number once it is rounded.
struct ClassChange {
  int64_t element = 0;
  double exact = 0, rounded = 0;
};

/// The first element that is too small for `rounded`'s type and so becomes 0 or subnormal there. Of
/// elements that are summed only those count that leave a row, a column, … (the elements of one
/// index) without a normal number: next to one, what they lose is no more than what it loses by
/// rounding. `normal`: the exact numbers again, computed with 0 in the place of subnormal operands;
/// what is 0 in it was made of such only, and no change. All have one shape; `exact`, `normal`:
/// f64.
std::optional<ClassChange> underflow(const Tensor& exact, const Tensor& rounded, Elements elements,
                                     const Tensor* normal);

/// The tensor with 0 in the place of subnormal numbers that processors may flush; nothing: it has
/// none.
std::optional<Tensor> without_subnormals(const Tensor& t);

/// "1e-08, which is 0 in f16"
std::string text(const ClassChange& c, DType t);

}  // namespace ferrule
