// winograd_functions.h, product.h and few_filters.h for AVX-512; compiled for it, see
// CMakeLists.txt.
#include <immintrin.h>

#include "runtime/cpu/kernels/few_filters.h"
#include "runtime/cpu/kernels/product.h"
#include "runtime/cpu/kernels/winograd_functions.h"

namespace ferrule::cpu {
namespace {

template <int...>
struct Counts {};

struct Avx512 {
  using V = __m512;
  using Mask = __mmask16;
  using RowCounts = Counts<0, 1, 2, 3, 4, 5, 6, 7>;
  static constexpr int kLanes = 16, kRows = 8;
  static inline V zero() { return _mm512_setzero_ps(); }
  static inline V set(float f) { return _mm512_set1_ps(f); }
  static inline V load(const float* p) { return _mm512_loadu_ps(p); }
  static inline V load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
  static inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static inline void store(float* p, V v, Mask m) { _mm512_mask_storeu_ps(p, m, v); }
  static inline Mask first(int64_t n) { return static_cast<Mask>((1u << n) - 1); }
  static inline void prefetch(const void* p) { _mm_prefetch(p, _MM_HINT_T1); }
  static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
  static inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static inline V div(V a, V b) { return _mm512_div_ps(a, b); }
  static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static inline V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
  static inline V max(V a, V b) { return _mm512_max_ps(a, b); }  // b where one is NaN
  static inline V min(V a, V b) { return _mm512_min_ps(a, b); }
  static inline V abs(V a) { return _mm512_abs_ps(a); }
  static inline V round(V a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  /// a * 2^n for integral n
  static inline V scale(V a, V n) { return _mm512_scalef_ps(a, n); }
  static inline bool any_nan(V a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
  /// a where x < 0, else b
  static inline V negative(V x, V a, V b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ), b, a);
  }
};

#include "runtime/cpu/kernels/vector_tail_kernels.h"

}  // namespace

namespace winograd {
namespace {
#include "runtime/cpu/kernels/winograd_kernels.h"
}  // namespace
constinit const Functions kAvx512[2] = {functions_of<Avx512>(2), functions_of<Avx512>(4)};
}  // namespace winograd

namespace product {
namespace {
#include "runtime/cpu/kernels/product_kernels.h"
}  // namespace
constinit const Functions kAvx512 = {Avx512::kLanes, Avx512::kRows, rows_of<Avx512>};
}  // namespace product

namespace few_filters {
namespace {
#include "runtime/cpu/kernels/few_filters_kernels.h"
}  // namespace
constinit const Functions kAvx512 = functions_of<Avx512>();
}  // namespace few_filters

}  // namespace ferrule::cpu
