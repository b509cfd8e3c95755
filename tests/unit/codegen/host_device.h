// CUDA C++ for a host compiler: what stands before generated text (codegen/cuda*.h) when
// host_kernels.cpp compiles it. Keywords become nothing, built-in variables those of the running
// thread, barriers and shuffles calls of host_threads.h. Functions are those of the reference
// (double precision, rounded once): that the text asks for the right ones is what can be seen here;
// how precise CUDA's are cannot. Shared memory is static (of a copy of the file for each block that
// runs at a time) and starts as NaN. FERRULE_RACED: the compiler tells of every access to memory,
// as it would ThreadSanitizer. Not here: dynamic shared memory, spinning on other blocks, textures.
#pragma once
#include "tests/unit/codegen/host_threads.h"

namespace ferrule_host {

using ferrule::test::HostRuntime;
extern HostRuntime* runtime;

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static __attribute__((section("ferrule_shared")))
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (::ferrule_host::runtime->thread)
#define blockIdx (::ferrule_host::runtime->block)
#define blockDim (::ferrule_host::runtime->block_dim)
#define gridDim (::ferrule_host::runtime->grid_dim)
constexpr int warpSize = 32;

// --- bits

template <class To, class From>
inline To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits of another width");
  To out;
  __builtin_memcpy(&out, &x, sizeof out);
  return out;
}
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline double __longlong_as_double(long long x) { return same_bits<double>(x); }
inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

// --- functions, for float and double

#define FERRULE_EXACT(name)                                     \
  inline double name(double x) { return __builtin_##name(x); }  \
  inline float name(float x) { return __builtin_##name##f(x); } \
  inline float name##f(float x) { return __builtin_##name##f(x); }
FERRULE_EXACT(fabs)
FERRULE_EXACT(floor)
FERRULE_EXACT(ceil)
FERRULE_EXACT(trunc)
FERRULE_EXACT(rint)
FERRULE_EXACT(sqrt)
#define FERRULE_ROUNDED(name)                                                            \
  inline double name(double x) { return __builtin_##name(x); }                           \
  inline float name(float x) { return static_cast<float>(__builtin_##name(double{x})); } \
  inline float name##f(float x) { return name(x); }
FERRULE_ROUNDED(exp)
FERRULE_ROUNDED(exp2)
FERRULE_ROUNDED(expm1)
FERRULE_ROUNDED(log)
FERRULE_ROUNDED(log2)
FERRULE_ROUNDED(log1p)
FERRULE_ROUNDED(tanh)
FERRULE_ROUNDED(erf)
FERRULE_ROUNDED(sin)
FERRULE_ROUNDED(cos)
FERRULE_ROUNDED(tan)
FERRULE_ROUNDED(asin)
FERRULE_ROUNDED(acos)
FERRULE_ROUNDED(atan)
FERRULE_ROUNDED(sinh)
FERRULE_ROUNDED(cosh)
FERRULE_ROUNDED(asinh)
FERRULE_ROUNDED(acosh)
FERRULE_ROUNDED(atanh)
#define FERRULE_EXACT_2(name)                                               \
  inline double name(double x, double y) { return __builtin_##name(x, y); } \
  inline float name(float x, float y) { return __builtin_##name##f(x, y); } \
  inline float name##f(float x, float y) { return __builtin_##name##f(x, y); }
FERRULE_EXACT_2(fmod)
FERRULE_EXACT_2(copysign)
FERRULE_EXACT_2(fmax) FERRULE_EXACT_2(fmin) inline double pow(double x, double y) {
  return __builtin_pow(x, y);
}
inline float pow(float x, float y) {
  return static_cast<float>(__builtin_pow(double{x}, double{y}));
}
inline float powf(float x, float y) { return pow(x, y); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double rsqrt(double x) { return 1 / __builtin_sqrt(x); }
inline float rsqrt(float x) { return static_cast<float>(1 / __builtin_sqrt(double{x})); }
inline float rsqrtf(float x) { return rsqrt(x); }
template <class T>
inline int ilogb(T x) {
  return __builtin_ilogb(double{x});
}
inline double ldexp(double x, int e) { return __builtin_ldexp(x, e); }
inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
template <class T>
inline bool isnan(T x) {
  return x != x;
}
template <class T>
inline bool isinf(T x) {
  return __builtin_isinf(x);
}
template <class T>
inline bool isfinite(T x) {
  return __builtin_isfinite(x);
}
template <class T>
inline bool signbit(T x) {
  return __builtin_signbit(x);
}
#define FERRULE_MIN_MAX(T)                         \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
FERRULE_MIN_MAX(int)
FERRULE_MIN_MAX(unsigned)
FERRULE_MIN_MAX(long long) FERRULE_MIN_MAX(unsigned long long) inline float min(float a, float b) {
  return fmin(a, b);
}
inline float max(float a, float b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// The prelude has these in PTX, and overloads of them, in this namespace.
namespace {
inline float f16_to_float(unsigned short x) { return runtime->f16_to_float(x); }
inline unsigned short to_f16(float x) { return runtime->float_to_f16(x); }
}  // namespace

// --- memory

struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T>
inline T __ldcs(const T* p) {
  return *p;
}
template <class T>
inline void __stcs(T* p, T x) {
  *p = x;
}
inline void __threadfence() { runtime->fence(); }
/// Not told of: an atomic operation is one access of its own kind.
#define UNSEEN __attribute__((no_sanitize("thread")))
template <class T, class F>
UNSEEN T atomically(T* p, F next) {
  runtime->begin_atomic(p, sizeof(T));
  T old = *p;
  *p = next(old);
  runtime->end_atomic();
  return old;
}
template <class T>
inline T atomicAdd(T* p, T x) {
  return atomically(p, [=](T old) { return old + x; });
}
template <class T>
inline T atomicExch(T* p, T x) {
  return atomically(p, [=](T) { return x; });
}
template <class T>
inline T atomicMax(T* p, T x) {
  return atomically(p, [=](T old) { return old < x ? x : old; });
}
template <class T>
inline T atomicMin(T* p, T x) {
  return atomically(p, [=](T old) { return x < old ? x : old; });
}
template <class T>
inline T atomicCAS(T* p, T compare, T x) {
  return atomically(p, [=](T old) { return old == compare ? x : old; });
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return atomically(p, [=](unsigned old) { return old >= limit ? 0 : old + 1; });
}

#ifdef FERRULE_RACED
extern "C" {
UNSEEN void __tsan_init() {}
UNSEEN void __tsan_func_entry(void*) {}
UNSEEN void __tsan_func_exit() {}
UNSEEN void __tsan_read_range(void* p, unsigned long n) { runtime->access(p, n, false); }
UNSEEN void __tsan_write_range(void* p, unsigned long n) { runtime->access(p, n, true); }
#define FERRULE_ACCESS(n)                                                         \
  UNSEEN void __tsan_read##n(void* p) { runtime->access(p, n, false); }           \
  UNSEEN void __tsan_write##n(void* p) { runtime->access(p, n, true); }           \
  UNSEEN void __tsan_unaligned_read##n(void* p) { runtime->access(p, n, false); } \
  UNSEEN void __tsan_unaligned_write##n(void* p) { runtime->access(p, n, true); }
FERRULE_ACCESS(1)
FERRULE_ACCESS(2)
FERRULE_ACCESS(4)
FERRULE_ACCESS(8)
FERRULE_ACCESS(16)
}
#endif

// --- threads

template <class T>
inline unsigned long long widened(T x) {
  static_assert(sizeof(T) <= 8, "shuffles move up to eight bytes");
  unsigned long long out = 0;
  __builtin_memcpy(&out, &x, sizeof x);
  return out;
}
/// What lane `source` of the part of the warp that has this lane brought; out of the part: one's
/// own.
template <class T>
inline T shuffled(int line, unsigned mask, T x, int source, int width) {
  int lane = static_cast<int>(runtime->lane), first = lane / width * width;
  if (source < first || source >= first + width) source = lane;
  const auto* met = runtime->warp_meeting(line, mask, widened(x));
  T out;
  __builtin_memcpy(&out, &met->value[source], sizeof out);
  return out;
}
template <class T>
inline T shuffled_from(int line, unsigned mask, T x, int source, int width = 32) {
  return shuffled(line, mask, x, static_cast<int>(runtime->lane) / width * width + source % width,
                  width);
}
template <class T>
inline T shuffled_xor(int line, unsigned mask, T x, int with, int width = 32) {
  return shuffled(line, mask, x, static_cast<int>(runtime->lane) ^ with, width);
}
template <class T>
inline T shuffled_by(int line, unsigned mask, T x, int by, int width = 32) {
  return shuffled(line, mask, x, static_cast<int>(runtime->lane) + by, width);
}
inline unsigned ballot(int line, unsigned mask, bool vote) {
  const auto* met = runtime->warp_meeting(line, mask, vote);
  unsigned out = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    out |= (met->there >> lane & 1 && met->value[lane] ? 1u : 0u) << lane;
  return out;
}
inline bool all_vote(int line, unsigned mask, bool vote) { return !ballot(line, mask, !vote); }
#define __syncthreads() ::ferrule_host::runtime->block_barrier(__LINE__)
#define __syncwarp(...) \
  ::ferrule_host::runtime->warp_meeting(__LINE__, 0xffffffffu __VA_OPT__(&(__VA_ARGS__)), 0)
#define __shfl_sync(...) ::ferrule_host::shuffled_from(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) ::ferrule_host::shuffled_xor(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(mask, x, by, ...) \
  ::ferrule_host::shuffled_by(__LINE__, mask, x, (int)(by)__VA_OPT__(, ) __VA_ARGS__)
#define __shfl_up_sync(mask, x, by, ...) \
  ::ferrule_host::shuffled_by(__LINE__, mask, x, -(int)(by)__VA_OPT__(, ) __VA_ARGS__)
#define __ballot_sync(mask, vote) ::ferrule_host::ballot(__LINE__, mask, vote)
#define __any_sync(mask, vote) (::ferrule_host::ballot(__LINE__, mask, vote) != 0)
#define __all_sync(mask, vote) ::ferrule_host::all_vote(__LINE__, mask, vote)

// --- what a compiled file shows: its kernels in order, and how their shared memory starts

struct Entry {
  ferrule::test::HostEntry run;
  unsigned long argument_bytes;
};
template <auto kKernel>
struct Called;
template <class Arguments, void (*kKernel)(Arguments)>
struct Called<kKernel> {
  static void run(const void* arguments) { kKernel(*static_cast<const Arguments*>(arguments)); }
  static constexpr Entry entry{run, sizeof(Arguments)};
};

}  // namespace ferrule_host
