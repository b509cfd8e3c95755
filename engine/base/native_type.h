// From element types to the C types that hold them, and packed elements of four and two bits.
#pragma once
#include <cstdint>
#include <limits>

#include "engine/base/dtype.h"

namespace ferrule {

/// Calls `f` with a value of the C type of an element type that has one; bool is uint8_t, which
/// stands for all others, too.
template <class F>
decltype(auto) with_native(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::i8:
      return f(int8_t{});
    case DType::i16:
      return f(int16_t{});
    case DType::i32:
      return f(int32_t{});
    case DType::i64:
      return f(int64_t{});
    case DType::u16:
      return f(uint16_t{});
    case DType::u32:
      return f(uint32_t{});
    case DType::u64:
      return f(uint64_t{});
    default:
      return f(uint8_t{});
  }
}

/// Whether elements of the type are numbers of a C type as they lie there.
inline bool is_native(DType t) {
  return t == DType::f32 || t == DType::f64 || t == DType::boolean ||
         (is_int(t) && size_bits(t) >= 8);
}

/// A float as an integer: towards zero, saturated, NaN as 0.
template <class To, class From>
To saturated(From x) {
  using Limits = std::numeric_limits<To>;
  // The bounds as powers of two are exact in every float type, the largest integers are not.
  if (x <= static_cast<From>(Limits::min())) return Limits::min();
  if (x >= static_cast<From>(Limits::max())) return Limits::max();
  return x == x ? static_cast<To>(x) : To{0};
}

/// Elements of `bits` bits, 4 or 2: the first of a byte in its lowest ones.
inline uint8_t packed(const void* tensor, int64_t i, int bits) {
  const int64_t each = 8 / bits;
  return (static_cast<const uint8_t*>(tensor)[i / each] >> (i % each * bits)) & ((1 << bits) - 1);
}
inline void set_packed(void* tensor, int64_t i, int bits, int64_t v) {
  const int64_t each = 8 / bits;
  uint8_t& byte = static_cast<uint8_t*>(tensor)[i / each];
  const int shift = static_cast<int>(i % each * bits), mask = (1 << bits) - 1;
  byte = static_cast<uint8_t>((byte & ~(mask << shift)) | ((v & mask) << shift));
}
/// The low bits of an integer as an element of a packed integer type.
inline int64_t narrowed(int64_t v, int bits, bool is_signed) {
  const int64_t low = v & ((1 << bits) - 1), sign = int64_t{1} << (bits - 1);
  return is_signed ? (low ^ sign) - sign : low;
}

}  // namespace ferrule
