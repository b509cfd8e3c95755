// What every generated CUDA source starts with: the meaning of the primitives where C++ has another
// one.
#pragma once

namespace ferrule {

inline constexpr const char* kCudaPrelude = R"cuda(
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;

template <class T> struct Info;
#define INFO(T, U, S, LOW, HIGH) \
  template <> struct Info<T> { typedef U Wide; static constexpr bool is_signed = S; \
    static constexpr T low = LOW, high = HIGH; };
INFO(i8, u32, true, -128, 127) INFO(i16, u32, true, -32768, 32767)
INFO(i32, u32, true, -2147483647 - 1, 2147483647) INFO(i64, u64, true, -9223372036854775807ll - 1, 9223372036854775807ll)
INFO(u8, u32, false, 0, 255) INFO(u16, u32, false, 0, 65535)
INFO(u32, u32, false, 0, 4294967295u) INFO(u64, u64, false, 0, 18446744073709551615ull)
#define WRAP(name, op) template <class T> __device__ __forceinline__ T name(T a, T b) { \
  typedef typename Info<T>::Wide W; return (T)((W)a op (W)b); }
WRAP(iadd, +) WRAP(isub, -) WRAP(imul, *)
template <class T> __device__ __forceinline__ T ineg(T a) { return isub<T>(0, a); }
template <class T> __device__ __forceinline__ T iabs(T a) { return Info<T>::is_signed && a < 0 ? ineg<T>(a) : a; }
template <class T> __device__ __forceinline__ T isign(T a) { return (T)((a > 0) - (a < 0)); }
template <class T> __device__ __forceinline__ T idiv(T a, T b) {
  if (b == 0) return 0;
  if (Info<T>::is_signed && b == (T)-1) return ineg<T>(a);
  return (T)(a / b);
}
template <class T> __device__ __forceinline__ T ifmod(T a, T b) {
  if (b == 0 || (Info<T>::is_signed && b == (T)-1)) return 0;
  return (T)(a % b);
}
template <class T> __device__ __forceinline__ T imod(T a, T b) {
  T r = ifmod<T>(a, b);
  return Info<T>::is_signed && r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
template <class T> __device__ __forceinline__ T ipow(T base, T exponent) {
  typedef typename Info<T>::Wide W;
  if (Info<T>::is_signed && exponent < 0)
    return base == 1 ? (T)1 : base == (T)-1 ? (exponent & 1 ? (T)-1 : (T)1) : (T)0;
  W r = 1, b = (W)base;
  for (W e = (W)exponent; e; e >>= 1, b *= b) if (e & 1) r *= b;
  return (T)r;
}
template <class T> __device__ __forceinline__ T ishl(T a, T b) {
  return (u64)b >= sizeof(T) * 8 ? (T)0 : (T)((typename Info<T>::Wide)a << (u32)b);
}
template <class T> __device__ __forceinline__ T ishr(T a, T b) {
  return (u64)b >= sizeof(T) * 8 ? (T)0 : (T)(a >> (u32)b);
}
template <class T> __device__ __forceinline__ T smaller(T a, T b) { return a != a ? a : b != b ? b : a < b ? a : b; }
template <class T> __device__ __forceinline__ T larger(T a, T b) { return a != a ? a : b != b ? b : a > b ? a : b; }
template <class T> __device__ __forceinline__ T fsign(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : x == 0 ? (T)0 : x; }
template <class T> __device__ __forceinline__ T fmodulo(T a, T b) {
  T r = fmod(a, b);
  if (r == 0) return copysign((T)0, b);
  return (r < 0) != (b < 0) ? r + b : r;
}
template <class T> __device__ __forceinline__ T sigmoid(T x) {
  T e = exp(-fabs(x));
  return (x < 0 ? e : (T)1) / ((T)1 + e);
}
template <class To, class From> __device__ __forceinline__ To saturated(From x) {
  if (x != x) return 0;
  x = trunc(x);
  if (x <= (From)Info<To>::low) return Info<To>::low;
  if (x >= (From)Info<To>::high) return Info<To>::high;
  return (To)x;
}

#ifdef __CUDACC__  // else the host that compiles this text for a test has its own
__device__ __forceinline__ float f16_to_float(u16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
__device__ __forceinline__ u16 to_f16(float x) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
#endif
__device__ __forceinline__ float bf16_to_float(u16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ u16 to_bf16(float x) {
  u32 b = __float_as_uint(x);
  if (x != x) return (u16)((b >> 16) | 0x40u);
  return (u16)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
// Inexact results made odd: a second rounding to fewer bits is then right.
__device__ __forceinline__ float to_odd(double x) {
  float f = (float)x;
  if (x != x || (double)f == x) return f;
  u32 b = __float_as_uint(f);
  if (fabs((double)f) > fabs(x)) --b;
  return __uint_as_float(b | 1u);
}
__device__ __forceinline__ u16 to_f16(double x) { return to_f16(to_odd(x)); }
__device__ __forceinline__ u16 to_bf16(double x) { return to_bf16(to_odd(x)); }

// 8-bit floats. M: fraction bits, BIAS, MAX: code of the largest, INF: has infinities, NZ: has a negative zero.
template <int M, int BIAS, int MAX, bool INF, bool NZ> struct F8 {
  static __device__ __forceinline__ float decode(u8 c) {
    u32 m = c & 0x7f;
    float v = __uint_as_float(m << (23 - M)) * __uint_as_float((u32)(254 - BIAS) << 23);
    if (m > MAX) v = INF && m == MAX + 1 ? __uint_as_float(0x7f800000u) : __uint_as_float(0x7fc00000u);
    if (!NZ && c == 0x80) return __uint_as_float(0x7fc00000u);
    return __uint_as_float(__float_as_uint(v) | ((u32)(c & 0x80) << 24));
  }
  static __device__ __forceinline__ u8 encode(float v, bool wrap) {
    const u32 b = __float_as_uint(v), sign = (b >> 24) & 0x80, nan = NZ ? sign | 0x7f : 0x80;
    u32 m = b & 0x7fffffff, code;
    if (m > 0x7f800000u) return (u8)nan;
    if (m < (u32)(128 - BIAS) << 23) {  // below the normal ones: an addition that leaves as many bits rounds
      const float step = __uint_as_float((u32)(151 - BIAS - M) << 23);
      code = __float_as_uint(__uint_as_float(m) + step) - __float_as_uint(step);
    } else {
      m += (1u << (22 - M)) - 1 + ((m >> (23 - M)) & 1);
      code = (m >> (23 - M)) - ((u32)(127 - BIAS) << M);
    }
    if (code > MAX) return (u8)(!wrap ? sign | MAX : INF ? sign | (MAX + 1) : nan);
    return (u8)(code || NZ ? sign | code : 0);
  }
  static __device__ __forceinline__ u8 encode(double v, bool wrap) { return encode(to_odd(v), wrap); }
};
typedef F8<3, 7, 0x7e, false, true> f8e4m3fn; typedef F8<3, 8, 0x7f, false, false> f8e4m3fnuz;
typedef F8<2, 15, 0x7b, true, true> f8e5m2; typedef F8<2, 16, 0x7f, false, false> f8e5m2fnuz;

template <class T, int N> struct alignas(sizeof(T) * N) Pack { T v[N]; };
)cuda";

}  // namespace ferrule
