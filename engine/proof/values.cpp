#include "engine/proof/values.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace ferrule {

Draw Draw::of(std::string_view text) { return Draw(XXH3_64bits(text.data(), text.size())); }

/// splitmix64.
uint64_t Draw::bits() {
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double FloatLimits::epsilon() const { return std::ldexp(1.0, -precision); }
double FloatLimits::smallest() const { return std::ldexp(1.0, min_exponent - precision + 1); }
double FloatLimits::greatest() const { return std::ldexp(2 - 4 * epsilon(), max_exponent); }

FloatLimits float_limits(DType t) {
  switch (t) {
    case DType::f64:
      return {-1022, 1023, 53};
    case DType::f16:
      return {-14, 15, 11};
    case DType::bf16:
      return {-126, 127, 8};
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
      return {-6, 8, 4};
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
      return {-14, 15, 3};
    default:
      return {-126, 127, 24};
  }
}

namespace {

/// f64 has no wider type to judge it by: what leaves its range cannot be told from a mistake, so it
/// is not used up.
FloatLimits drawn_limits(DType t) {
  FloatLimits l = float_limits(t);
  if (t == DType::f64) l.min_exponent = -60, l.max_exponent = 60;  // products of a dozen
  return l;
}

/// Never so large that rounding makes it infinite.
double of_magnitude(int exponent, const FloatLimits& l, Draw& draw) {
  return std::ldexp(draw.between(1.0, exponent == l.max_exponent ? 1.7 : 2.0), exponent) *
         (draw.chance(50) ? -1 : 1);
}

double small_float(Draw& draw) { return draw.between(-2.0, 2.0); }

double float_value(DType t, Magnitudes m, int scale, Draw& draw) {
  const FloatLimits l = drawn_limits(t);
  switch (m) {
    case Magnitudes::small:
      return small_float(draw);
    case Magnitudes::few:
      return static_cast<double>(draw.between(int64_t{-2}, int64_t{2})) / (draw.chance(30) ? 2 : 1);
    case Magnitudes::scaled:
      return of_magnitude(scale, l, draw);
    case Magnitudes::wide:
      return of_magnitude(
          static_cast<int>(draw.between(int64_t{l.min_exponent}, int64_t{l.max_exponent})), l,
          draw);
    case Magnitudes::limits: {
      const bool wide = t == DType::f64;  // f32 makes 0 and infinity of the last two
      const std::array<double, 10> all{l.greatest(),
                                       std::ldexp(1.0, l.min_exponent),
                                       l.smallest(),
                                       1,
                                       1 + 2 * l.epsilon(),
                                       std::ldexp(1.0, l.precision) + 1,
                                       0,
                                       0.5,
                                       0x1p-152,
                                       0x1p+132};
      return all[draw.below(wide ? 10 : 8)] * (draw.chance(50) ? -1 : 1);
    }
    default: {
      constexpr std::array<double, 5> all{0.0, -0.0, INFINITY, -INFINITY, NAN};
      return draw.chance(50) ? all[draw.below(5)] : small_float(draw);
    }
  }
}

struct IntLimits {
  int64_t least;
  uint64_t greatest;
};
IntLimits int_limits(DType t) {
  const int bits = size_bits(t);
  if (is_unsigned_int(t)) return {0, bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1};
  return {bits >= 64 ? std::numeric_limits<int64_t>::min() : -(int64_t{1} << (bits - 1)),
          (uint64_t{1} << (bits - 1)) - 1};
}

/// The element's bits, least first.
uint64_t int_value(DType t, Magnitudes m, int scale, Draw& draw) {
  const IntLimits l = int_limits(t);
  const int64_t sign = is_signed_int(t) && draw.chance(50) ? -1 : 1;
  auto of_bits = [&](int bits) {
    return static_cast<uint64_t>(sign *
                                 static_cast<int64_t>(bits <= 0 ? 0 : draw.bits() >> (64 - bits)));
  };
  switch (m) {
    case Magnitudes::small:
    case Magnitudes::special:
      return static_cast<uint64_t>(sign * draw.below(10));
    case Magnitudes::few:
      return static_cast<uint64_t>(sign * draw.below(3));
    case Magnitudes::scaled:
      return of_bits(scale);
    case Magnitudes::wide:
      return of_bits(static_cast<int>(draw.below(size_bits(t) - is_signed_int(t) + 1)));
    default: {
      const uint64_t power = uint64_t{1} << draw.below(size_bits(t) - is_signed_int(t));
      // Rounded to f64 it lies in the middle of two numbers of f32.
      const uint64_t twice_rounded =
          size_bits(t) == 64 ? (uint64_t{1} << 54) + (uint64_t{1} << 30) + 1 : l.greatest;
      const std::array<uint64_t, 8> all{static_cast<uint64_t>(l.least),
                                        static_cast<uint64_t>(l.least) + 1,
                                        l.greatest,
                                        l.greatest - 1,
                                        power,
                                        power + 1,
                                        static_cast<uint64_t>(sign),
                                        twice_rounded};
      return all[draw.below(8)];
    }
  }
}

size_t count(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return static_cast<size_t>(n);
}

}  // namespace

Tensor drawn_tensor(DType dtype, const std::vector<int64_t>& dims, Draw& draw,
                    Magnitudes magnitudes) {
  if (dtype == DType::string) {
    static const std::vector<std::string> kWords{"a", "b", "ab", "", "1", "-2.5", "A b", "zwölf"};
    std::vector<std::string> words(count(dims));
    for (std::string& w : words) w = draw.of(kWords);
    return Tensor(dims, std::move(words));
  }
  if (size_bits(dtype) % 8) return Tensor::allocate(dtype, dims).first;
  auto [t, bytes] = Tensor::allocate(dtype, dims);
  const auto size = static_cast<size_t>(size_bytes(dtype, 1));
  const FloatLimits l = drawn_limits(dtype);
  const int scale =
      is_float(dtype)
          ? static_cast<int>(draw.between(int64_t{l.min_exponent}, int64_t{l.max_exponent}))
          : static_cast<int>(draw.below(size_bits(dtype) + 1)) - is_signed_int(dtype);
  // Sums of what is as large as it can be leave other types.
  const bool top = magnitudes == Magnitudes::limits && is_int(dtype) && draw.chance(50);
  for (int64_t i = 0; i < t.numel(); ++i) {
    char* to = static_cast<char*>(bytes) + static_cast<size_t>(i) * size;
    if (dtype == DType::boolean) {
      *to = static_cast<char>(magnitudes == Magnitudes::limits || draw.chance(50));
    } else if (is_float(dtype)) {
      Tensor::put(dtype, bytes, i, float_value(dtype, magnitudes, scale, draw));
    } else {
      const uint64_t v = top ? int_limits(dtype).greatest - static_cast<uint64_t>(draw.below(4))
                             : int_value(dtype, magnitudes, scale, draw);
      std::memcpy(to, &v, size);  // the machine is little-endian, as ONNX's bytes are
    }
  }
  return t;
}

Tensor extreme_tensor(DType dtype, const std::vector<int64_t>& dims, bool least, Draw& draw) {
  auto [t, bytes] = Tensor::allocate(dtype, dims);
  const auto size = static_cast<size_t>(size_bytes(dtype, 1));
  const IntLimits l = int_limits(dtype);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const auto by = static_cast<uint64_t>(draw.below(3));
    const uint64_t v = least ? static_cast<uint64_t>(l.least) + by : l.greatest - by;
    std::memcpy(static_cast<char*>(bytes) + static_cast<size_t>(i) * size, &v, size);
  }
  return t;
}

Tensor drawn_places(DType dtype, const std::vector<int64_t>& dims, int64_t size, Draw& draw) {
  std::vector<int64_t> all(count(dims));
  const int64_t least = draw.chance(50) && !is_unsigned_int(dtype) ? -size : 0;
  for (int64_t& x : all) x = draw.between(least, std::max<int64_t>(size - 1, least));
  return Tensor::of_ints(dtype, dims, all);
}

Tensor drawn_lengths(DType dtype, const std::vector<int64_t>& dims, int64_t most, Draw& draw) {
  std::vector<int64_t> all(count(dims));
  for (int64_t& x : all) x = draw.between(int64_t{1}, std::max<int64_t>(most, 1));
  return Tensor::of_ints(dtype, dims, all);
}

}  // namespace ferrule
