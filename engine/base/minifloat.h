// Floating point types of 8 and 4 bits, as ONNX defines them: decoding is exact, encoding rounds to
// nearest even. The four fp8 types differ in exponent bits, bias, and in what stands for infinity
// and NaN. f8e8m0 has powers of two alone (the scales of microscaling formats), and NaN.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/base/dtype.h"

namespace ferrule {

struct MiniFormat {
  int mantissa, bias;
  uint8_t max;         ///< code of the largest finite value
  bool infinity;       ///< e5m2: codes between max and NaN
  bool negative_zero;  ///< the fnuz types use that code for NaN
  bool nan;
};

inline MiniFormat mini_format(DType t) {
  switch (t) {
    case DType::f8e4m3fn:
      return {3, 7, 0x7e, false, true, true};
    case DType::f8e4m3fnuz:
      return {3, 8, 0x7f, false, false, true};
    case DType::f8e5m2:
      return {2, 15, 0x7b, true, true, true};
    case DType::f8e5m2fnuz:
      return {2, 16, 0x7f, false, false, true};
    default:
      return {1, 1, 0x07, false, true, false};  // f4e2m1
  }
}
inline bool is_mini(DType t) { return is_float(t) && size_bits(t) <= 8; }

inline float decode_mini(DType t, uint8_t code) {
  if (t == DType::f8e8m0)
    return code == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
  MiniFormat f = mini_format(t);
  uint8_t sign_bit = t == DType::f4e2m1 ? 0x08 : 0x80;
  bool negative = code & sign_bit;
  uint8_t magnitude = code & (sign_bit - 1);
  if (!f.negative_zero && code == sign_bit) return std::numeric_limits<float>::quiet_NaN();
  float v = 0;
  if (magnitude > f.max) {
    v = f.infinity && magnitude == f.max + 1 ? std::numeric_limits<float>::infinity()
                                             : std::numeric_limits<float>::quiet_NaN();
  } else {
    int exponent = magnitude >> f.mantissa, fraction = magnitude & ((1 << f.mantissa) - 1);
    v = exponent == 0 ? std::ldexp(static_cast<float>(fraction), 1 - f.bias - f.mantissa)
                      : std::ldexp(static_cast<float>(fraction + (1 << f.mantissa)),
                                   exponent - f.bias - f.mantissa);
  }
  return negative ? -v : v;
}

/// The least power of two that is no smaller; the sign counts for nothing. `wrap`: 0, infinity and
/// what is beyond the largest become NaN, else the nearest power that there is.
inline uint8_t encode_power(double v, bool wrap) {
  const double m = std::fabs(v);
  if (std::isnan(m) || (wrap && (m == 0 || m > 0x1p127))) return 0xff;
  if (m <= 0x1p-127) return 0;
  int exponent = 127;
  if (m < 0x1p127 && std::frexp(m, &exponent) == 0.5) --exponent;
  return static_cast<uint8_t>(exponent + 127);
}

/// NaN becomes -0 where there is none. `wrap`: values beyond the largest become infinity, or NaN
/// where there is none; else the largest.
inline uint8_t encode_mini(DType t, double v, bool wrap) {
  if (t == DType::f8e8m0) return encode_power(v, wrap);
  MiniFormat f = mini_format(t);
  uint8_t sign_bit = t == DType::f4e2m1 ? 0x08 : 0x80;
  uint8_t sign = std::signbit(v) ? sign_bit : 0;
  uint8_t nan = !f.nan ? sign_bit : f.negative_zero ? static_cast<uint8_t>(sign | 0x7f) : sign_bit;
  if (std::isnan(v)) return nan;
  double m = std::fabs(v), largest = decode_mini(t, f.max);
  int exponent = m > 0 && std::isfinite(m) ? std::ilogb(m) : 0;
  int grid =
      std::max(exponent, 1 - f.bias) - f.mantissa;  // distance of representable values: 2^grid
  double rounded = std::isfinite(m) ? std::ldexp(std::nearbyint(std::ldexp(m, -grid)), grid) : m;
  if (rounded > largest) {
    if (!wrap || !f.nan) return sign | f.max;
    return f.infinity ? static_cast<uint8_t>(sign | (f.max + 1)) : nan;
  }
  if (rounded == 0) return f.negative_zero ? sign : 0;
  exponent = std::ilogb(rounded);
  if (exponent < 1 - f.bias)
    return sign | static_cast<uint8_t>(std::ldexp(rounded, f.bias - 1 + f.mantissa));
  int fraction = static_cast<int>(std::ldexp(rounded, f.mantissa - exponent)) - (1 << f.mantissa);
  return sign | static_cast<uint8_t>(((exponent + f.bias) << f.mantissa) | fraction);
}

}  // namespace ferrule
