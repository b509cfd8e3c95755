// From element types to the C types that hold them.
#pragma once
#include <cstdint>

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

}  // namespace ferrule
