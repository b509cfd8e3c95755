// Comparing two tensors within a tolerance; says how far apart they are and where.
#pragma once
#include <span>

#include "engine/base/tolerance.h"
#include "engine/graph/tensor.h"

namespace ferrule {

struct Difference {
  bool ok = true;
  double max_abs = 0;  ///< largest |got - want| of finite elements
  double max_rel = 0;  ///< largest |got - want| / |want|, where want is not 0
  /// How far off it is and how far it may be, as parts of the largest element: of the element that
  /// uses most of what it may, or (`together`) of all elements by their norms where those use more.
  double error = 0, allowed = 0;
  bool together = false;
  bool same = true;  ///< bit for bit, but for the payloads of NaN and the sign of 0
  int64_t at =
      -1;  ///< first element outside the tolerance; the furthest off where only all together are
  int64_t not_finite = 0;   ///< elements that are infinite or NaN and should be numbers
  std::string text;         ///< one line: what differs, or why it is mistrusted
  bool mistrusted = false;  ///< equal, but says nothing: over half zeros, constant, or not finite
  /// Equal, but small elements are systematically off: wrong, or the rounding of something that
  /// they share, which a result in f64 tells apart.
  bool doubtful = false;
};

/// "largest error 2e-07 of 1e-05 allowed", or "of all elements together"; "" of a type without
/// tolerance.
std::string margin_text(const Difference& d);

/// Of a tensor, of a sequence's elements, of a map's values: it decides the tolerance.
DType element_type(const Tensor& t);

/// Dtype and dims must be equal; NaN and infinities must stand at the same places.
/// Sequences, maps and optionals are equal if their elements are.
/// `zero_sign`: -0 and +0 differ (bit-exact classes).
Difference compare(const Tensor& got, const Tensor& want, const Tolerance& tolerance,
                   bool zero_sign = false);

/// The largest finite one, at least 1: what `absolute` and `noise` are relative to.
double scale_of(std::span<const double> want);

/// Elements that are wrong in the same way as most others of about their size: of the other sign,
/// less than half, or half as much again. What rounding of larger terms leaves in an element may be
/// as large as the element, but it has either sign: no way is that of more than half of them, but
/// by chance. Looks at those above `noise`, at 26 or more of about one size; the first of them, or
/// -1. `exact`: `want` has no rounding errors of its own.
int64_t systematic(std::span<const double> got, std::span<const double> want, double noise,
                   bool exact);

/// The same of a result beside one in f64 that is not rounded: -1 where what is doubtful (above) is
/// no more than rounding. `off`: how far that puts an element.
int64_t wrong_alike(const Tensor& got, const Tensor& exact, const Tolerance& tolerance, double off);

}  // namespace ferrule
