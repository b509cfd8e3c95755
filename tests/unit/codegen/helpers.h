// What the tests of generated kernels share: random values full of edge cases for every type,
// tensors as raw bytes, programs of one primitive or many, comparison with the reference
// evaluation.
#pragma once
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/semantics/block_eval.h"
#include "engine/semantics/program_builder.h"
#include "engine/semantics/scalar.h"

namespace ferrule::test {

inline const std::vector<DType> kStorageTypes = {
    DType::f32, DType::f64,      DType::f16,        DType::bf16,   DType::boolean,   DType::u8,
    DType::i8,  DType::u16,      DType::i16,        DType::u32,    DType::i32,       DType::u64,
    DType::i64, DType::f8e4m3fn, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e5m2fnuz};

inline const std::vector<DType> kComputeTypes = {DType::f32, DType::f64, DType::boolean, DType::u8,
                                                 DType::i8,  DType::u16, DType::i16,     DType::u32,
                                                 DType::i32, DType::u64, DType::i64};

/// The widest target whose code runs here.
inline std::string widest_target() {
  return __builtin_cpu_supports("avx512bw") ? "cpu-avx512" : "cpu-avx2";
}

using Rng = std::mt19937_64;

/// `n` elements of type `t`: special values often, else ordinary ones.
inline std::vector<uint8_t> random_bytes(DType t, int64_t n, Rng& rng) {
  auto size = static_cast<size_t>(size_bytes(t, 1));
  std::vector<uint8_t> out(static_cast<size_t>(n) * size);
  auto pick = [&](auto special, auto ordinary) {
    return rng() % 4 == 0 ? special[rng() % std::size(special)] : ordinary();
  };
  double inf = HUGE_VAL, nan = std::nan("");
  std::vector<double> floats{
      0.0,   -0.0, 1,    -1,    0.5,  -0.5, 2,     inf,   -inf, nan, 1e-40, -1e-40,       3e38,
      -3e38, 1e-3, 88.6, -88.6, -100, 100,  65504, 65520, 448,  1e9, -1e9,  2147483648.0, 9.3e18};
  std::vector<int64_t> ints{0,     1,      -1,        2,         -2,        7,
                            31,    32,     63,        64,        127,       -128,
                            32767, -32768, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
  for (int64_t k = 0; k < n; ++k) {
    Scalar s;
    if (is_float(t))
      s.f = pick(floats, [&] {
        return std::ldexp(std::uniform_real_distribution<double>(-2, 2)(rng), int(rng() % 9) - 4);
      });
    else
      s.i = pick(ints, [&] { return static_cast<int64_t>(rng() % 3 ? rng() % 16 : rng()); });
    Scalar v = is_float(t) ? convert(t, DType::f64, s, true) : convert(t, DType::i64, s, false);
    alignas(8) uint8_t block[8];
    DType physical = is_float(t) ? (t == DType::f64 ? DType::f64 : DType::f32) : t;
    if (physical == DType::f32) {
      float f = static_cast<float>(v.f);
      std::memcpy(block, &f, 4);
    } else if (physical == DType::f64)
      std::memcpy(block, &v.f, 8);
    else
      std::memcpy(block, &v.i, 8);
    pack(t, physical, block, 1, out.data(), k);
  }
  return out;
}

inline Scalar read(DType t, const void* tensor, int64_t index) {
  DType physical = is_float(t) ? (t == DType::f64 ? DType::f64 : DType::f32) : t;
  alignas(8) uint8_t block[8] = {};
  unpack(t, physical, tensor, index, 1, block);
  if (physical == DType::f32) {
    float f;
    std::memcpy(&f, block, 4);
    return {f, 0};
  }
  if (physical == DType::f64) {
    double f;
    std::memcpy(&f, block, 8);
    return {f, 0};
  }
  switch (physical) {
    case DType::i8:
      return {0, static_cast<int8_t>(block[0])};
    case DType::i16: {
      int16_t v;
      std::memcpy(&v, block, 2);
      return {0, v};
    }
    case DType::i32: {
      int32_t v;
      std::memcpy(&v, block, 4);
      return {0, v};
    }
    default: {
      int64_t v;
      std::memcpy(&v, block, 8);
      return {0, v};
    }
  }
}

/// Distance in units in the last place of type `t`; 0 for equal numbers and for two NaNs.
inline double ulps(DType t, double got, double want) {
  if (std::isnan(got) || std::isnan(want))
    return std::isnan(got) == std::isnan(want) ? 0 : HUGE_VAL;
  if (got == want) return 0;
  if (std::isinf(got) || std::isinf(want)) {  // a little beyond the largest number is near it
    double largest = t == DType::f64 ? 1.7976931348623157e308 : 3.4028234663852886e38;
    double other = std::isinf(got) ? want : got, infinite = std::isinf(got) ? got : want;
    if (std::signbit(other) != std::signbit(infinite) || std::fabs(other) < 0.99999 * largest)
      return HUGE_VAL;
    return 1;
  }
  int digits = t == DType::f64 ? 52 : 23, lowest = t == DType::f64 ? -1022 : -126;
  int e = std::max(want == 0 ? lowest : std::ilogb(want), lowest);
  return std::fabs(got - want) / std::ldexp(1.0, e - digits);
}

inline std::string describe(DType t, const Scalar& s) {
  return is_float(t) ? std::to_string(s.f) : std::to_string(s.i);
}

inline bool is_function(Prim p) { return (p >= Prim::exp && p <= Prim::atanh) || p == Prim::pow; }

/// One primitive on compute type `t`, or an empty program where it has no such form.
inline Program one(Prim op, DType t) {
  ProgramBuilder b;
  const PrimInfo& pi = info(op);
  using C = PrimInfo::Class;
  bool flt = t == DType::f32 || t == DType::f64, integer = is_int(t), boolean = t == DType::boolean;
  bool ok = pi.cls == C::arith                      ? flt || integer
            : pi.cls == C::flt || pi.cls == C::test ? flt
            : pi.cls == C::bits                     ? integer
            : pi.cls == C::logic                    ? boolean
            : pi.cls == C::cmp                      ? true
                                                    : false;
  if (op == Prim::float_to_bits) ok = flt;
  if (op == Prim::bits_to_float) ok = t == DType::i32 || t == DType::i64;
  if (!ok) return {};
  DType result = pi.cls == C::cmp || pi.cls == C::test ? DType::boolean : t;
  if (op == Prim::float_to_bits) result = t == DType::f32 ? DType::i32 : DType::i64;
  if (op == Prim::bits_to_float) result = t == DType::i32 ? DType::f32 : DType::f64;
  std::array<uint32_t, 3> a{};
  for (int k = 0; k < pi.arity; ++k) a[static_cast<size_t>(k)] = b.input(t);
  b.output(pi.arity == 1   ? b.op(op, result, {a[0]})
           : pi.arity == 2 ? b.op(op, result, {a[0], a[1]})
                           : b.op(op, result, {a[0], a[1], a[2]}));
  return b.take();
}

/// A few inputs of any types, up to 23 instructions over them, two outputs.
inline Program random_program(Rng& rng) {
  ProgramBuilder b;
  std::vector<uint32_t> values;
  for (uint64_t k = 1 + rng() % 4; k-- > 0;) {
    DType t = kStorageTypes[rng() % kStorageTypes.size()];
    values.push_back(b.cast(b.input(t), compute_type(t)));
  }
  values.push_back(b.constant(DType::f32, 0.75, 0));
  for (uint64_t k = 3 + rng() % 20; k-- > 0;) {
    auto any = [&] { return values[rng() % values.size()]; };
    DType t = kComputeTypes[rng() % kComputeTypes.size()];
    uint32_t x = b.cast(any(), t), y = b.cast(any(), t);
    constexpr Prim kArith[] = {Prim::add, Prim::sub, Prim::mul, Prim::div, Prim::min, Prim::max};
    constexpr Prim kCompare[] = {Prim::eq, Prim::ne, Prim::lt, Prim::le, Prim::gt, Prim::ge};
    if (rng() % 4 == 0)
      values.push_back(b.op(kCompare[rng() % 6], DType::boolean, {x, y}));
    else if (rng() % 4 == 0)
      values.push_back(b.op(Prim::select, t, {b.cast(any(), DType::boolean), x, y}));
    else if (t == DType::boolean)
      values.push_back(b.op(Prim::land, t, {x, y}));
    else
      values.push_back(b.op(kArith[rng() % 6], t, {x, y}));
  }
  b.output(values.back());
  DType narrow = kStorageTypes[rng() % kStorageTypes.size()];
  b.output(b.cast(values[values.size() / 2], narrow));
  return b.take();
}

}  // namespace ferrule::test
