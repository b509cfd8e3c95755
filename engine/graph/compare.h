// Comparing two tensors within a tolerance; says how far apart they are and where.
#pragma once
#include "engine/base/tolerance.h"
#include "engine/graph/tensor.h"

namespace ferrule {

struct Difference {
  bool ok = true;
  double max_abs = 0;  ///< largest |got - want| of finite elements
  double max_rel = 0;  ///< largest |got - want| / |want|, where want is not 0
  int64_t at =
      -1;  ///< first element outside the tolerance; the furthest off where only all together are
  std::string text;         ///< one line: what differs; empty when ok
  bool mistrusted = false;  ///< equal, but says nothing: over half zeros, constant, or not finite
};

/// Dtype and dims must be equal; NaN and infinities must stand at the same places.
/// `zero_sign`: -0 and +0 differ (bit-exact classes).
Difference compare(const Tensor& got, const Tensor& want, const Tolerance& tolerance,
                   bool zero_sign = false);

}  // namespace ferrule
