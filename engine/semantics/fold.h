// Reductions of many elements to one: what formulas' rsum, rmax, … become. Sums and products of
// floats are accumulated in f64 and those of integers in 64 bits, as the interpreter does.
#pragma once
#include <cstdint>
#include <type_traits>

#include "engine/base/dtype.h"
#include "engine/semantics/scalar.h"

namespace ferrule {

enum class Fold : uint8_t { none, sum, prod, max, min };

/// Type of the accumulator for elements of compute type `element`.
DType fold_type(Fold fold, DType element);
/// What the fold of nothing is, in `type` (a fold_type).
Scalar fold_identity(Fold fold, DType type);

/// `a`, the fold of some elements, with another one: integers wrap, NaN is largest and smallest.
template <class T>
T fold_in(Fold fold, T a, T b) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;
  switch (fold) {
    case Fold::sum:
      return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    case Fold::prod:
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    case Fold::max:
      return b > a || b != b ? b : a;
    case Fold::min:
      return b < a || b != b ? b : a;
    case Fold::none:
      break;
  }
  return a;
}

/// Where an operand of a program over rows lives (row.h).
struct RowSource {
  enum class Kind : uint8_t {
    operand,  ///< RowRegion::inputs[index]
    result,   ///< RowRegion::outputs[index]
    fold,     ///< one a row, of StagedRows::folds
    row,      ///< one a row, of StagedRows::rows
    tile,     ///< one an element, of StagedRows::tiles
    count,    ///< elements of a row, the same for all
  } kind = Kind::operand;
  uint32_t index = 0;
  friend bool operator==(const RowSource&, const RowSource&) = default;
};

}  // namespace ferrule
