// Rows of our convolutions with vectors of 8 floats.
#include <immintrin.h>

#include "runtime/cpu/kernels/convolution_rows.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace ferrule::cpu {
namespace {

using Vector = __m256;
using Mask = __m256i;
constexpr int64_t kLanes = 8;

inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector broadcast(float v) { return _mm256_set1_ps(v); }
inline Vector load(const float* p, Mask m) { return _mm256_maskload_ps(p, m); }
inline Vector load_all(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
inline void store(float* p, Vector v, Mask m) { _mm256_maskstore_ps(p, m, v); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
inline Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
inline Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
inline Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
/// The second operand where one is NaN.
inline Vector maximum(Vector a, Vector b) { return _mm256_max_ps(a, b); }
inline Vector minimum(Vector a, Vector b) { return _mm256_min_ps(a, b); }
inline Mask lanes_of(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Mask both(Mask a, Mask b) { return _mm256_and_si256(a, b); }

/// Where each lane of a vector takes its number from.
using Lanes = __m256i;
inline Lanes lanes_at(const int32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Vector permute(Vector v, Lanes from) { return _mm256_permutevar8x32_ps(v, from); }

#include "runtime/cpu/kernels/depthwise_rows.h"
#include "runtime/cpu/kernels/first_layer_rows.h"

}  // namespace

constinit const RowFn depthwise_row_avx2 = row;
constinit const RowFn first_row_avx2 = first_row;

}  // namespace ferrule::cpu

#pragma GCC pop_options
