// Functions that generated code calls, by symbol: SLEEF's vector functions, libm's, and ours for
// what has no vector form (integer powers, 8-bit floats). The symbols name their instruction set,
// so that the host's choice of variant does not matter.
#include <array>
#include <cmath>

#include "codegen/cpu/llvm.h"
#include "engine/base/minifloat.h"

#define FERRULE_SLEEF_UNARY(X) \
  X(exp)                       \
  X(log)                       \
  X(log1p)                     \
  X(expm1)                     \
  X(tanh)                      \
  X(erf)                       \
  X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(asinh) X(acosh) X(atanh) X(pow)

// Their real signatures have vector types; only the addresses are used here.
extern "C" {
#define FERRULE_DECLARE(f)          \
  void Sleef_##f##f16_u10avx512f(); \
  void Sleef_##f##d8_u10avx512f();  \
  void Sleef_##f##f8_u10avx2();     \
  void Sleef_##f##d4_u10avx2();
FERRULE_SLEEF_UNARY(FERRULE_DECLARE)
#undef FERRULE_DECLARE
}

namespace ferrule {
namespace {

uint64_t power(uint64_t base, uint64_t exponent) {
  uint64_t r = 1;
  for (; exponent; exponent >>= 1, base *= base)
    if (exponent & 1) r *= base;
  return r;
}
uint64_t ipow_unsigned(uint64_t base, uint64_t exponent) { return power(base, exponent); }
int64_t ipow_signed(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  return static_cast<int64_t>(power(static_cast<uint64_t>(base), static_cast<uint64_t>(exponent)));
}

template <DType type, bool wrap>
uint8_t to_f8(double x) {
  return encode_mini(type, x, wrap);
}

/// As std::fmod, which divides bit by bit. Below 2^28, a quotient of two f32 that is no integer
/// lies so far from the next one that f64 does not round it there, and the rest is exact.
float remainder(float a, float b) {
  const double q = std::trunc(static_cast<double>(a) / b);
  if (!(std::fabs(q) < 0x1p28) || std::isinf(b)) return std::fmod(a, b);
  return std::copysign(static_cast<float>(a - q * b), a);
}

template <class R, class... A>
void* address(R (*f)(A...)) {
  return reinterpret_cast<void*>(f);
}

const auto kSymbols = std::to_array<SupportSymbol>({
#define FERRULE_SYMBOLS(f)                                               \
  {"Sleef_" #f "f16_u10avx512f", address(&Sleef_##f##f16_u10avx512f)},   \
      {"Sleef_" #f "d8_u10avx512f", address(&Sleef_##f##d8_u10avx512f)}, \
      {"Sleef_" #f "f8_u10avx2", address(&Sleef_##f##f8_u10avx2)},       \
      {"Sleef_" #f "d4_u10avx2", address(&Sleef_##f##d4_u10avx2)},
    FERRULE_SLEEF_UNARY(FERRULE_SYMBOLS)
#undef FERRULE_SYMBOLS
#define FERRULE_LIBM(f) {#f, address(static_cast<double (*)(double)>(&std::f))},
        FERRULE_LIBM(sinh) FERRULE_LIBM(cosh) FERRULE_LIBM(asinh) FERRULE_LIBM(acosh)
#undef FERRULE_LIBM
            {"fmodf", address(&remainder)},
    {"fmod", address(static_cast<double (*)(double, double)>(&std::fmod))},
    {"ferrule_ipow_signed", address(&ipow_signed)},
    {"ferrule_ipow_unsigned", address(&ipow_unsigned)},
#define FERRULE_F8(t)                                   \
  {"ferrule_to_" #t, address(&to_f8<DType::t, false>)}, \
      {"ferrule_to_" #t "_wrap", address(&to_f8<DType::t, true>)},
    FERRULE_F8(f8e4m3fn) FERRULE_F8(f8e4m3fnuz) FERRULE_F8(f8e5m2) FERRULE_F8(f8e5m2fnuz)
#undef FERRULE_F8
});

}  // namespace

std::span<const SupportSymbol> support_symbols() { return kSymbols; }

}  // namespace ferrule
