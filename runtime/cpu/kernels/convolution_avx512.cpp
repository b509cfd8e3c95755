// Rows of our convolutions with vectors of 16 floats.
// GCC 12 takes the undefined pass-through operand of its own unmasked min and max for a mistake of
// ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "runtime/cpu/kernels/convolution_rows.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")

namespace ferrule::cpu {
namespace {

using Vector = __m512;
using Mask = __mmask16;
constexpr int64_t kLanes = 16;

inline Vector zero() { return _mm512_setzero_ps(); }
inline Vector broadcast(float v) { return _mm512_set1_ps(v); }
inline Vector load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
inline Vector load_all(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
inline void store(float* p, Vector v, Mask m) { _mm512_mask_storeu_ps(p, m, v); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
inline Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
inline Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
inline Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
/// The second operand where one is NaN.
inline Vector maximum(Vector a, Vector b) { return _mm512_max_ps(a, b); }
inline Vector minimum(Vector a, Vector b) { return _mm512_min_ps(a, b); }
inline Mask lanes_of(int64_t n) { return static_cast<Mask>((1u << n) - 1); }
inline Mask both(Mask a, Mask b) { return static_cast<Mask>(a & b); }

/// Where each lane of a vector takes its number from.
using Lanes = __m512i;
inline Lanes lanes_at(const int32_t* p) { return _mm512_loadu_si512(p); }
inline Vector permute(Vector v, Lanes from) { return _mm512_permutexvar_ps(from, v); }

#include "runtime/cpu/kernels/depthwise_rows.h"
#include "runtime/cpu/kernels/first_layer_rows.h"

}  // namespace

constinit const RowFn depthwise_row_avx512 = row;
constinit const RowFn first_row_avx512 = first_row;

}  // namespace ferrule::cpu

#pragma GCC pop_options
