// Element types. The numbers are ONNX's (TensorProto.DataType), so that import and export are
// casts.
#pragma once
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ferrule {

enum class DType : uint8_t {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  string = 8,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  complex64 = 14,
  complex128 = 15,
  bf16 = 16,
  f8e4m3fn = 17,
  f8e4m3fnuz = 18,
  f8e5m2 = 19,
  f8e5m2fnuz = 20,
  u4 = 21,
  i4 = 22,
  f4e2m1 = 23,
  f8e8m0 = 24,
  u2 = 25,
  i2 = 26,
  // No element types, and without a number in ONNX: what values are that are no tensors.
  sequence = 64,
  optional = 65,
  map = 66,
};
constexpr DType kLastElementType = DType::i2;
constexpr bool is_tensor(DType t) { return t < DType::sequence; }

/// Short name as rules and reports write it: "f32", "i64", "bool", "str", …
std::string_view name(DType t);
std::string_view onnx_name(DType t);  ///< "float", "int64", …, as ONNX's text syntax writes it
/// Inverse of name(); also accepts ONNX's and numpy's names ("float", "float32", "int64", "bool").
std::optional<DType> parse_dtype(std::string_view text);
/// Bits of one element; 0 for strings and undefined.
int size_bits(DType t);
/// Bytes of `n` elements, 4-bit types packed two a byte, 2-bit ones four; 0 for strings.
inline int64_t size_bytes(DType t, int64_t n) { return (n * size_bits(t) + 7) / 8; }
bool is_float(DType t);  ///< f16, bf16, f32, f64 and the 8-bit and 4-bit floats
bool is_signed_int(DType t);
bool is_unsigned_int(DType t);
inline bool is_int(DType t) { return is_signed_int(t) || is_unsigned_int(t); }
/// The type arithmetic is done in: f32 for f16 / bf16 / fp8, itself otherwise.
DType compute_type(DType t);

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);  ///< round to nearest even; overflow to infinity
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);  ///< round to nearest even
/// Inexact results made odd: a second rounding to fewer bits is then right (Boldo, Melquiond).
float round_to_odd(double value);

}  // namespace ferrule
