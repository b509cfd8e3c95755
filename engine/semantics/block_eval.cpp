#include "engine/semantics/block_eval.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "engine/base/diagnostics.h"
#include "engine/base/minifloat.h"
#include "engine/base/native_type.h"

// Plain loops over blocks; gcc 12 vectorises them only at this level.
#pragma GCC optimize("O3")

namespace ferrule {
namespace {

DType physical_type(DType t, bool f64) {
  if (is_float(t)) return f64 || t == DType::f64 ? DType::f64 : DType::f32;
  if (size_bits(t) >= 8) return t;
  return is_signed_int(t) ? DType::i8 : DType::u8;
}

template <class Out, class A, class F>
void each(Out* __restrict out, const A* __restrict a, int n, F f) {
  for (int i = 0; i < n; ++i) out[i] = f(a[i]);
}
template <class Out, class A, class B, class F>
void each(Out* __restrict out, const A* a, const B* b, int n, F f) {
  for (int i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
}

// --- numbers of one type

/// Unsigned type of at least 32 bits: arithmetic in it wraps and never overflows after promotion.
template <class T>
using Wide = std::conditional_t<sizeof(T) < 4, uint32_t, std::make_unsigned_t<T>>;

template <class T>
T int_div(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return static_cast<T>(Wide<T>{0} - static_cast<Wide<T>>(a));
  return static_cast<T>(a / b);
}
template <class T>
T int_fmod(T a, T b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return 0;
  return static_cast<T>(a % b);
}
template <class T>
T int_mod(T a, T b) {
  T r = int_fmod(a, b);
  if constexpr (std::is_signed_v<T>)
    if (r != 0 && (r < 0) != (b < 0)) r = static_cast<T>(r + b);
  return r;
}
template <class T>
T int_pow(T base, T exponent) {
  if constexpr (std::is_signed_v<T>)
    if (exponent < 0) return base == 1 ? T{1} : base == -1 ? (exponent & 1 ? T{-1} : T{1}) : T{0};
  Wide<T> r = 1, b = static_cast<Wide<T>>(base);
  for (auto e = static_cast<Wide<T>>(exponent); e; e >>= 1, b *= b)
    if (e & 1) r *= b;
  return static_cast<T>(r);
}
template <class T>
T shift_left(T a, T b) {
  auto by = static_cast<uint64_t>(b);
  return by >= sizeof(T) * 8 ? T{0} : static_cast<T>(static_cast<Wide<T>>(a) << by);
}
template <class T>
T shift_right(T a, T b) {
  auto by = static_cast<uint64_t>(b);
  return by >= sizeof(T) * 8 ? T{0} : static_cast<T>(a >> by);
}

template <class T>
T float_mod(T a, T b) {
  T r = std::fmod(a, b);
  if (r == 0) return std::copysign(T{0}, b);
  return (r < 0) != (b < 0) ? r + b : r;
}
template <class T>
T smaller(T a, T b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}
template <class T>
T larger(T a, T b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}
double sigmoid(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  double e = std::exp(x);
  return e / (1 + e);
}

using Function = double (*)(double);
constexpr std::pair<Prim, Function> kFunctions[] = {
    {Prim::exp, std::exp},     {Prim::log, std::log},     {Prim::log1p, std::log1p},
    {Prim::expm1, std::expm1}, {Prim::tanh, std::tanh},   {Prim::sigmoid, sigmoid},
    {Prim::erf, std::erf},     {Prim::sin, std::sin},     {Prim::cos, std::cos},
    {Prim::tan, std::tan},     {Prim::asin, std::asin},   {Prim::acos, std::acos},
    {Prim::atan, std::atan},   {Prim::sinh, std::sinh},   {Prim::cosh, std::cosh},
    {Prim::asinh, std::asinh}, {Prim::acosh, std::acosh}, {Prim::atanh, std::atanh}};

/// Functions are computed in double and rounded once: as good as exact for f32.
Function function(Prim op) {
  for (const auto& [prim, f] : kFunctions)
    if (prim == op) return f;
  bug("no such function", __FILE__, __LINE__);
}

template <class T>
void float_op(Prim op, const T* a, const T* b, const T* c, T* out, int n) {
  switch (op) {
    case Prim::neg:
      return each(out, a, n, [](T x) { return -x; });
    case Prim::add:
      return each(out, a, b, n, [](T x, T y) { return x + y; });
    case Prim::sub:
      return each(out, a, b, n, [](T x, T y) { return x - y; });
    case Prim::mul:
      return each(out, a, b, n, [](T x, T y) { return x * y; });
    case Prim::div:
      return each(out, a, b, n, [](T x, T y) { return x / y; });
    case Prim::mod:
      return each(out, a, b, n, float_mod<T>);
    case Prim::fmod:
      return each(out, a, b, n, [](T x, T y) { return std::fmod(x, y); });
    case Prim::pow:
      return each(out, a, b, n,
                  [](T x, T y) { return static_cast<T>(std::pow(double{x}, double{y})); });
    case Prim::min:
      return each(out, a, b, n, smaller<T>);
    case Prim::max:
      return each(out, a, b, n, larger<T>);
    case Prim::abs:
      return each(out, a, n, [](T x) { return std::fabs(x); });
    case Prim::sign:
      return each(out, a, n, [](T x) { return x > 0 ? T{1} : x < 0 ? T{-1} : x == 0 ? T{0} : x; });
    case Prim::floor:
      return each(out, a, n, [](T x) { return std::floor(x); });
    case Prim::ceil:
      return each(out, a, n, [](T x) { return std::ceil(x); });
    case Prim::trunc:
      return each(out, a, n, [](T x) { return std::trunc(x); });
    case Prim::rint:
      return each(out, a, n, [](T x) { return std::rint(x); });
    case Prim::sqrt:
      return each(out, a, n, [](T x) { return std::sqrt(x); });
    case Prim::fma:
      for (int i = 0; i < n; ++i) out[i] = std::fma(a[i], b[i], c[i]);
      return;
    default:
      return each(out, a, n, [f = function(op)](T x) { return static_cast<T>(f(double{x})); });
  }
}

template <class T>
void int_op(Prim op, const T* a, const T* b, T* out, int n) {
  using W = Wide<T>;
  switch (op) {
    case Prim::neg:
      return each(out, a, n, [](T x) { return static_cast<T>(W{0} - static_cast<W>(x)); });
    case Prim::add:
      return each(out, a, b, n,
                  [](T x, T y) { return static_cast<T>(static_cast<W>(x) + static_cast<W>(y)); });
    case Prim::sub:
      return each(out, a, b, n,
                  [](T x, T y) { return static_cast<T>(static_cast<W>(x) - static_cast<W>(y)); });
    case Prim::mul:
      return each(out, a, b, n,
                  [](T x, T y) { return static_cast<T>(static_cast<W>(x) * static_cast<W>(y)); });
    case Prim::div:
      return each(out, a, b, n, int_div<T>);
    case Prim::mod:
      return each(out, a, b, n, int_mod<T>);
    case Prim::fmod:
      return each(out, a, b, n, int_fmod<T>);
    case Prim::ipow:
      return each(out, a, b, n, int_pow<T>);
    case Prim::min:
      return each(out, a, b, n, [](T x, T y) { return x < y ? x : y; });
    case Prim::max:
      return each(out, a, b, n, [](T x, T y) { return x > y ? x : y; });
    case Prim::abs:
      return each(out, a, n,
                  [](T x) { return x < 0 ? static_cast<T>(W{0} - static_cast<W>(x)) : x; });
    case Prim::sign:
      return each(out, a, n, [](T x) { return static_cast<T>((x > 0) - (x < 0)); });
    case Prim::band:
      return each(out, a, b, n, [](T x, T y) { return static_cast<T>(x & y); });
    case Prim::bor:
      return each(out, a, b, n, [](T x, T y) { return static_cast<T>(x | y); });
    case Prim::bxor:
      return each(out, a, b, n, [](T x, T y) { return static_cast<T>(x ^ y); });
    case Prim::bnot:
      return each(out, a, n, [](T x) { return static_cast<T>(~x); });
    case Prim::shl:
      return each(out, a, b, n, shift_left<T>);
    case Prim::shr:
      return each(out, a, b, n, shift_right<T>);
    default:
      bug("no such integer operation", __FILE__, __LINE__);
  }
}

template <class T>
void compare(Prim op, const T* a, const T* b, uint8_t* out, int n) {
  switch (op) {
    case Prim::eq:
      return each(out, a, b, n, [](T x, T y) { return static_cast<uint8_t>(x == y); });
    case Prim::ne:
      return each(out, a, b, n, [](T x, T y) { return static_cast<uint8_t>(x != y); });
    case Prim::lt:
      return each(out, a, b, n, [](T x, T y) { return static_cast<uint8_t>(x < y); });
    case Prim::le:
      return each(out, a, b, n, [](T x, T y) { return static_cast<uint8_t>(x <= y); });
    case Prim::gt:
      return each(out, a, b, n, [](T x, T y) { return static_cast<uint8_t>(x > y); });
    default:
      return each(out, a, b, n, [](T x, T y) { return static_cast<uint8_t>(x >= y); });
  }
}

void logic(Prim op, const uint8_t* a, const uint8_t* b, uint8_t* out, int n) {
  switch (op) {
    case Prim::land:
      return each(out, a, b, n, [](uint8_t x, uint8_t y) { return static_cast<uint8_t>(x & y); });
    case Prim::lor:
      return each(out, a, b, n, [](uint8_t x, uint8_t y) { return static_cast<uint8_t>(x | y); });
    case Prim::lxor:
      return each(out, a, b, n, [](uint8_t x, uint8_t y) { return static_cast<uint8_t>(x ^ y); });
    default:
      return each(out, a, n, [](uint8_t x) { return static_cast<uint8_t>(!x); });
  }
}

template <class T>
void test(Prim op, const T* a, uint8_t* out, int n) {
  if (op == Prim::isnan)
    each(out, a, n, [](T x) { return static_cast<uint8_t>(x != x); });
  else
    each(out, a, n, [](T x) { return static_cast<uint8_t>(std::isinf(x)); });
}

// --- conversions

/// `x` on the grid of float type `t`, which is not f64.
template <class T>
float on_grid(DType t, T x, bool wrap) {
  switch (t) {
    case DType::f32:
      return static_cast<float>(x);
    case DType::f16:
      return f16_to_float(float_to_f16(round_to_odd(double{x})));
    case DType::bf16:
      return bf16_to_float(float_to_bf16(round_to_odd(double{x})));
    default:
      return decode_mini(t, encode_mini(t, double{x}, wrap));
  }
}

int64_t narrowed(DType t, int64_t v) {
  return ferrule::narrowed(v, size_bits(t), is_signed_int(t));
}

template <class To, class From>
void convert_block(DType to, const From* a, To* out, int n, bool wrap) {
  if (to == DType::boolean) {
    each(out, a, n, [](From x) { return static_cast<To>(x != 0); });
  } else if constexpr (std::is_floating_point_v<To>) {
    if (std::is_same_v<To, double> || to == DType::f32 || std::is_same_v<From, bool>) {
      each(out, a, n, [](From x) { return static_cast<To>(x); });
    } else {
      for (int i = 0; i < n; ++i)
        out[i] = std::is_same_v<From, float> ? on_grid(to, static_cast<float>(a[i]), wrap)
                                             : on_grid(to, static_cast<double>(a[i]), wrap);
    }
  } else if constexpr (std::is_floating_point_v<From>) {
    if (size_bits(to) < 8)  // ONNX: the low bits of the integer
      each(out, a, n, [=](From x) { return static_cast<To>(narrowed(to, saturated<int64_t>(x))); });
    else
      each(out, a, n, [](From x) { return saturated<To>(x); });
  } else {
    if (size_bits(to) < 8)
      each(out, a, n,
           [=](From x) { return static_cast<To>(narrowed(to, static_cast<int64_t>(x))); });
    else
      each(out, a, n, [](From x) { return static_cast<To>(x); });
  }
}

void cast_block(DType to, DType from, const void* a, void* out, int n, bool wrap, bool f64) {
  with_native(physical_type(from, f64), [&]<class From>(From) {
    with_native(physical_type(to, f64), [&]<class To>(To) {
      convert_block<To>(to, static_cast<const From*>(a), static_cast<To*>(out), n, wrap);
    });
  });
}

/// One instruction that is neither load nor constant, on physical blocks.
void run_block(const Inst& in, DType operand, const void* a, const void* b, const void* c,
               void* out, int n, bool f64) {
  auto bytes = static_cast<uint8_t*>(out);
  switch (in.op) {
    case Prim::cast:
      return cast_block(in.type, operand, a, out, n, in.i != 0, f64);
    case Prim::select:
      return with_native(physical_type(in.type, f64), [&]<class T>(T) {
        auto s = static_cast<const uint8_t*>(a);
        auto x = static_cast<const T*>(b), y = static_cast<const T*>(c);
        auto o = static_cast<T*>(out);
        for (int i = 0; i < n; ++i) o[i] = s[i] ? x[i] : y[i];
      });
    case Prim::float_to_bits:
    case Prim::bits_to_float:
      FERRULE_ASSERT(!f64, "bits of a float have no meaning in double precision");
      std::memcpy(out, a, static_cast<size_t>(n) * static_cast<size_t>(size_bits(in.type) / 8));
      return;
    default:
      break;
  }
  with_native(physical_type(operand, f64), [&]<class T>(T) {
    auto x = static_cast<const T*>(a), y = static_cast<const T*>(b);
    switch (info(in.op).cls) {
      case PrimInfo::Class::cmp:
        return compare(in.op, x, y, bytes, n);
      case PrimInfo::Class::logic:
        return logic(in.op, static_cast<const uint8_t*>(a), static_cast<const uint8_t*>(b), bytes,
                     n);
      default:
        break;
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (info(in.op).cls == PrimInfo::Class::test) return test(in.op, x, bytes, n);
      float_op(in.op, x, y, static_cast<const T*>(c), static_cast<T*>(out), n);
    } else {
      int_op(in.op, x, y, static_cast<T*>(out), n);
      if (size_bits(in.type) < 8)
        for (int i = 0; i < n; ++i)
          static_cast<T*>(out)[i] =
              static_cast<T>(narrowed(in.type, static_cast<int64_t>(static_cast<T*>(out)[i])));
    }
  });
}

/// Scalar <-> the first element of a block.
void store(DType t, bool f64, const Scalar& v, void* block) {
  with_native(physical_type(t, f64), [&]<class T>(T) {
    *static_cast<T*>(block) =
        std::is_floating_point_v<T> ? static_cast<T>(v.f) : static_cast<T>(v.i);
  });
}
Scalar fetch(DType t, bool f64, const void* block) {
  return with_native(physical_type(t, f64), [&]<class T>(T) -> Scalar {
    T v = *static_cast<const T*>(block);
    if constexpr (std::is_floating_point_v<T>)
      return {static_cast<double>(v), 0};
    else
      return {0, static_cast<int64_t>(v)};
  });
}

}  // namespace

Scalar apply(Prim op, DType type, DType operand_type, const Scalar* args, bool f64) {
  alignas(8) std::byte in[3][8], out[8];
  Inst inst;
  inst.op = op;
  inst.type = type;
  for (int a = 0; a < info(op).arity; ++a)
    store(op == Prim::select ? (a ? type : DType::boolean) : operand_type, f64, args[a], in[a]);
  run_block(inst, operand_type, in[0], in[1], in[2], out, 1, f64);
  return fetch(type, f64, out);
}

Scalar convert(DType to, DType from, const Scalar& value, bool wrap) {
  alignas(8) std::byte in[8], out[8];
  store(from, false, value, in);
  cast_block(to, from, in, out, 1, wrap, false);
  return fetch(to, false, out);
}

void evaluate(const Program& p, const Scalar* inputs, Scalar* outputs, std::vector<Scalar>& scratch,
              bool f64) {
  scratch.resize(p.insts.size());
  alignas(8) std::byte in[3][8], out[8];
  for (size_t k = 0; k < p.insts.size(); ++k) {
    const Inst& inst = p.insts[k];
    if (inst.op == Prim::load) {
      scratch[k] = inputs[inst.index];
    } else if (inst.op == Prim::constant) {
      scratch[k] = {inst.f, inst.i};
    } else {
      for (int a = 0; a < info(inst.op).arity; ++a) {
        uint32_t arg = inst.args[a];
        store(p.insts[arg].type, f64, scratch[arg], in[a]);
      }
      run_block(inst, p.insts[inst.args[0]].type, in[0], in[1], in[2], out, 1, f64);
      scratch[k] = fetch(inst.type, f64, out);
    }
  }
  for (size_t k = 0; k < p.outputs.size(); ++k) outputs[k] = scratch[p.outputs[k]];
}

DType BlockEvaluator::physical(DType t) const { return physical_type(t, f64_); }

BlockEvaluator::BlockEvaluator(const Program& p, bool f64) : program_(p), f64_(f64) {
  constexpr size_t kStride = kBlock * 8;
  memory_.resize((p.insts.size() + p.inputs.size()) * kStride + 64);
  auto base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) &
                                           ~uintptr_t{63});
  for (size_t k = 0; k < p.inputs.size(); ++k)
    inputs_.push_back(base + (p.insts.size() + k) * kStride);
  for (size_t k = 0; k < p.insts.size(); ++k) {
    const Inst& in = p.insts[k];
    values_.push_back(base + k * kStride);
    if (in.op == Prim::load) {
      values_[k] = inputs_[in.index];
    } else if (in.op == Prim::constant) {
      with_native(physical(in.type), [&]<class T>(T) {
        T v = std::is_floating_point_v<T> ? static_cast<T>(in.f) : static_cast<T>(in.i);
        std::fill_n(static_cast<T*>(values_[k]), kBlock, v);
      });
    } else if (in.op == Prim::cast && is_float(in.type) && is_float(p.insts[in.args[0]].type) &&
               physical(in.type) == physical(p.insts[in.args[0]].type) &&
               (f64_ || in.type == DType::f32 || in.type == DType::f64)) {
      values_[k] = values_[in.args[0]];  // already in that form
    }
  }
}

void BlockEvaluator::run(int n) {
  for (size_t k = 0; k < program_.insts.size(); ++k) {
    const Inst& in = program_.insts[k];
    if (in.op == Prim::load || in.op == Prim::constant) continue;
    if (in.op == Prim::cast && values_[k] == values_[in.args[0]]) continue;
    run_block(in, program_.insts[in.args[0]].type, values_[in.args[0]], values_[in.args[1]],
              values_[in.args[2]], values_[k], n, f64_);
  }
}

namespace {

/// Any float storage -> T.
template <class T>
void unpack_float(DType storage, const void* tensor, int64_t offset, int n, T* out) {
  auto half = static_cast<const uint16_t*>(tensor) + offset;
  auto byte = static_cast<const uint8_t*>(tensor) + offset;
  switch (storage) {
    case DType::f32:
      return each(out, static_cast<const float*>(tensor) + offset, n,
                  [](float x) { return static_cast<T>(x); });
    case DType::f64:
      return each(out, static_cast<const double*>(tensor) + offset, n,
                  [](double x) { return static_cast<T>(x); });
    case DType::f16:
      return each(out, half, n, [](uint16_t x) { return static_cast<T>(f16_to_float(x)); });
    case DType::bf16:
      return each(out, half, n, [](uint16_t x) { return static_cast<T>(bf16_to_float(x)); });
    case DType::f4e2m1:
      for (int i = 0; i < n; ++i)
        out[i] = static_cast<T>(
            decode_mini(storage, static_cast<uint8_t>(packed(tensor, offset + i, 4))));
      return;
    default:
      return each(out, byte, n, [=](uint8_t x) { return static_cast<T>(decode_mini(storage, x)); });
  }
}

template <class T>
void pack_float(DType storage, const T* a, int n, void* tensor, int64_t offset) {
  auto half = static_cast<uint16_t*>(tensor) + offset;
  auto byte = static_cast<uint8_t*>(tensor) + offset;
  switch (storage) {
    case DType::f32:
      return each(static_cast<float*>(tensor) + offset, a, n,
                  [](T x) { return static_cast<float>(x); });
    case DType::f64:
      return each(static_cast<double*>(tensor) + offset, a, n,
                  [](T x) { return static_cast<double>(x); });
    case DType::f16:
      return each(half, a, n, [](T x) { return float_to_f16(round_to_odd(double{x})); });
    case DType::bf16:
      return each(half, a, n, [](T x) { return float_to_bf16(round_to_odd(double{x})); });
    case DType::f4e2m1:
      for (int i = 0; i < n; ++i)
        set_packed(tensor, offset + i, 4, encode_mini(storage, double{a[i]}, false));
      return;
    // The cast decided overflow: what is infinite or NaN by now must stay so.
    default:
      return each(byte, a, n, [=](T x) { return encode_mini(storage, double{x}, true); });
  }
}

}  // namespace

void unpack(DType storage, DType physical, const void* tensor, int64_t offset, int n, void* block) {
  if (is_float(storage)) {
    if (physical == DType::f64)
      unpack_float(storage, tensor, offset, n, static_cast<double*>(block));
    else
      unpack_float(storage, tensor, offset, n, static_cast<float*>(block));
  } else if (size_bits(storage) < 8) {
    for (int i = 0; i < n; ++i)
      static_cast<int8_t*>(block)[i] =
          static_cast<int8_t>(narrowed(storage, packed(tensor, offset + i, size_bits(storage))));
  } else {
    auto size = static_cast<size_t>(size_bits(storage) / 8);
    std::memcpy(block, static_cast<const std::byte*>(tensor) + static_cast<size_t>(offset) * size,
                static_cast<size_t>(n) * size);
    if (storage == DType::boolean)  // any non-zero byte is true
      for (int i = 0; i < n; ++i)
        static_cast<uint8_t*>(block)[i] = static_cast<uint8_t*>(block)[i] != 0;
  }
}

void pack(DType storage, DType physical, const void* block, int n, void* tensor, int64_t offset) {
  if (is_float(storage)) {
    if (physical == DType::f64)
      pack_float(storage, static_cast<const double*>(block), n, tensor, offset);
    else
      pack_float(storage, static_cast<const float*>(block), n, tensor, offset);
  } else if (size_bits(storage) < 8) {
    for (int i = 0; i < n; ++i)
      set_packed(tensor, offset + i, size_bits(storage), static_cast<const int8_t*>(block)[i]);
  } else {
    auto size = static_cast<size_t>(size_bits(storage) / 8);
    std::memcpy(static_cast<std::byte*>(tensor) + static_cast<size_t>(offset) * size, block,
                static_cast<size_t>(n) * size);
  }
}

}  // namespace ferrule
