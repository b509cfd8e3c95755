// The numbers that tensors of a proof hold: what a rule does is asked for small numbers, over the
// whole range of the type, at its limits, and for the special values of floats.
#pragma once
#include <cmath>

#include "engine/graph/tensor.h"
#include "engine/proof/draw.h"

namespace ferrule {

enum class Magnitudes : uint8_t {
  small,    ///< around 1, both signs; integers of one digit
  few,      ///< -1, 0, 1 and halves: equal numbers, ties
  scaled,   ///< all of one magnitude, which may be any of the type's
  wide,     ///< each of a magnitude of its own, log-uniform over the type's range
  limits,   ///< least, greatest, next to them, powers of two; booleans: true; floats: also the
            ///< smallest normal and subnormal
  special,  ///< NaN, infinities, both zeros, between small ones
};

/// Deterministic in `draw`.
Tensor drawn_tensor(DType dtype, const std::vector<int64_t>& dims, Draw& draw,
                    Magnitudes magnitudes);

/// Integers, all of them next to the greatest or all next to the least of their type: sums of their
/// products are as large as they get.
Tensor extreme_tensor(DType dtype, const std::vector<int64_t>& dims, bool least, Draw& draw);

/// Places along an axis of so many, often counted from its end, too.
Tensor drawn_places(DType dtype, const std::vector<int64_t>& dims, int64_t size, Draw& draw);

/// Lengths of sequences that have up to `most` elements, one at least.
Tensor drawn_lengths(DType dtype, const std::vector<int64_t>& dims, int64_t most, Draw& draw);

/// Limits of a float type; of others those of f32.
struct FloatLimits {
  int min_exponent, max_exponent;  ///< of normal numbers: 2^min … 2^max
  int precision;                   ///< bits, the hidden one included
  double epsilon() const;          ///< half a unit in the last place of 1
  double smallest() const;         ///< the least subnormal
  double greatest() const;         ///< or next to it
};
FloatLimits float_limits(DType t);

/// The largest integer of the type, as near as f64 has it.
inline double largest(DType t) { return std::ldexp(1.0, size_bits(t) - is_signed_int(t)) - 1; }

}  // namespace ferrule
