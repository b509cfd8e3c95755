// winograd_functions.h, product.h and few_filters.h for AVX2 with FMA; compiled for it, see
// CMakeLists.txt.
#include <immintrin.h>

#include "runtime/cpu/kernels/few_filters.h"
#include "runtime/cpu/kernels/product.h"
#include "runtime/cpu/kernels/winograd_functions.h"

namespace ferrule::cpu {
namespace {

template <int...>
struct Counts {};

struct Avx2 {
  using V = __m256;
  using Mask = __m256i;
  using RowCounts = Counts<0, 1, 2, 3>;
  static constexpr int kLanes = 8, kRows = 4;
  static inline V zero() { return _mm256_setzero_ps(); }
  static inline V set(float f) { return _mm256_set1_ps(f); }
  static inline V load(const float* p) { return _mm256_loadu_ps(p); }
  static inline V load(const float* p, Mask m) { return _mm256_maskload_ps(p, m); }
  static inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static inline void store(float* p, V v, Mask m) { _mm256_maskstore_ps(p, m, v); }
  static inline Mask first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static inline void prefetch(const void* p) { _mm_prefetch(p, _MM_HINT_T1); }
  static inline V add(V a, V b) { return _mm256_add_ps(a, b); }
  static inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static inline V div(V a, V b) { return _mm256_div_ps(a, b); }
  static inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static inline V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
  static inline V max(V a, V b) { return _mm256_max_ps(a, b); }  // b where one is NaN
  static inline V min(V a, V b) { return _mm256_min_ps(a, b); }
  static inline V abs(V a) { return _mm256_andnot_ps(set(-0.0f), a); }
  static inline V round(V a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static inline V power_of_2(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  /// a * 2^n for integral n: in two steps, because 2^n may be too small to be written
  static inline V scale(V a, V n) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return mul(mul(a, power_of_2(half)), power_of_2(_mm256_sub_epi32(whole, half)));
  }
  static inline bool any_nan(V a) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0;
  }
  /// a where x < 0, else b
  static inline V negative(V x, V a, V b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, zero(), _CMP_LT_OQ));
  }
};

#include "runtime/cpu/kernels/vector_tail_kernels.h"

}  // namespace

namespace winograd {
namespace {
#include "runtime/cpu/kernels/winograd_kernels.h"
}  // namespace
constinit const Functions kAvx2[2] = {functions_of<Avx2>(2), functions_of<Avx2>(4)};
}  // namespace winograd

namespace product {
namespace {
#include "runtime/cpu/kernels/product_kernels.h"
}  // namespace
constinit const Functions kAvx2 = {Avx2::kLanes, Avx2::kRows, rows_of<Avx2>};
}  // namespace product

namespace few_filters {
namespace {
#include "runtime/cpu/kernels/few_filters_kernels.h"
}  // namespace
constinit const Functions kAvx2 = functions_of<Avx2>();
}  // namespace few_filters

}  // namespace ferrule::cpu
