#include "engine/base/dtype.h"

#include <array>
#include <cmath>

namespace ferrule {
namespace {

struct Info {
  std::string_view name, onnx, numpy;
  int bits;
  char kind;  // f, i, u, b(ool), c(omplex), s(tring)
};

constexpr std::array<Info, 27> kInfo = {{
    {"?", "?", "", 0, '?'},
    {"f32", "float", "float32", 32, 'f'},
    {"u8", "uint8", "uint8", 8, 'u'},
    {"i8", "int8", "int8", 8, 'i'},
    {"u16", "uint16", "uint16", 16, 'u'},
    {"i16", "int16", "int16", 16, 'i'},
    {"i32", "int32", "int32", 32, 'i'},
    {"i64", "int64", "int64", 64, 'i'},
    {"str", "string", "object", 0, 's'},
    {"bool", "bool", "bool", 8, 'b'},
    {"f16", "float16", "float16", 16, 'f'},
    {"f64", "double", "float64", 64, 'f'},
    {"u32", "uint32", "uint32", 32, 'u'},
    {"u64", "uint64", "uint64", 64, 'u'},
    {"c64", "complex64", "complex64", 64, 'c'},
    {"c128", "complex128", "complex128", 128, 'c'},
    {"bf16", "bfloat16", "bfloat16", 16, 'f'},
    {"f8e4m3fn", "float8e4m3fn", "float8_e4m3fn", 8, 'f'},
    {"f8e4m3fnuz", "float8e4m3fnuz", "float8_e4m3fnuz", 8, 'f'},
    {"f8e5m2", "float8e5m2", "float8_e5m2", 8, 'f'},
    {"f8e5m2fnuz", "float8e5m2fnuz", "float8_e5m2fnuz", 8, 'f'},
    {"u4", "uint4", "uint4", 4, 'u'},
    {"i4", "int4", "int4", 4, 'i'},
    {"f4e2m1", "float4e2m1", "float4_e2m1fn", 4, 'f'},
    {"f8e8m0", "float8e8m0", "float8_e8m0fnu", 8, 'f'},
    {"u2", "uint2", "uint2", 2, 'u'},
    {"i2", "int2", "int2", 2, 'i'},
}};

constexpr std::array<Info, 3> kNoTensors = {{{"sequence", "seq", "", 0, '?'},
                                             {"optional", "optional", "", 0, '?'},
                                             {"map", "map", "", 0, '?'}}};

const Info& info(DType t) {
  const size_t i = static_cast<size_t>(t), first = static_cast<size_t>(DType::sequence);
  if (i >= first && i - first < kNoTensors.size()) return kNoTensors[i - first];
  return kInfo[i < kInfo.size() ? i : 0];
}

}  // namespace

std::string_view name(DType t) { return info(t).name; }
std::string_view onnx_name(DType t) { return info(t).onnx; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (size_t i = 1; i < kInfo.size(); ++i)
    if (text == kInfo[i].name || text == kInfo[i].onnx || text == kInfo[i].numpy)
      return static_cast<DType>(i);
  if (text == "str") return DType::string;
  return std::nullopt;
}

int size_bits(DType t) { return info(t).bits; }
bool is_float(DType t) { return info(t).kind == 'f'; }
bool is_signed_int(DType t) { return info(t).kind == 'i'; }
bool is_unsigned_int(DType t) { return info(t).kind == 'u'; }

DType compute_type(DType t) { return is_float(t) && size_bits(t) < 32 ? DType::f32 : t; }

float f16_to_float(uint16_t bits) {
  uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  uint32_t exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24, exact in f32
    float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

uint16_t float_to_f16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)  // NaN stays a quiet NaN and keeps the top of its payload
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520: infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, rounded by the hardware's own addition
    float shifted = std::bit_cast<float>(magnitude) + 0.5f;  // ulp of 0.5 is 2^-24
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t float_to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

float round_to_odd(double value) {
  auto f = static_cast<float>(value);
  if (std::isnan(value) || double{f} == value) return f;
  auto bits = std::bit_cast<uint32_t>(f);
  if (std::fabs(double{f}) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

}  // namespace ferrule
