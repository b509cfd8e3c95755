#include "runtime/cpu/kernels/integer_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace ferrule::cpu {
namespace {

constexpr int kRequantized = 32;    ///< loops of a known length become vectors
constexpr int64_t kLongRun = 1024;  ///< sums that are worth a call where there are as many

double number_at(DType t, const void* p, int64_t k) {
  if (t == DType::f16) return f16_to_float(static_cast<const uint16_t*>(p)[k]);
  if (t == DType::bf16) return bf16_to_float(static_cast<const uint16_t*>(p)[k]);
  return static_cast<const float*>(p)[k];
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void requantize(
    const int32_t* __restrict sums, const double* __restrict bias, const double* __restrict factor,
    To8Bits to, uint8_t* __restrict y, int64_t n) {
  int64_t k = 0;
  for (; k + kRequantized <= n; k += kRequantized)
    for (int i = 0; i < kRequantized; ++i) y[k + i] = to(sums[k + i], bias[k + i], factor[k + i]);
  for (; k < n; ++k) y[k] = to(sums[k], bias[k], factor[k]);
}

/// The same in f32, which is off by at most 2e-4 for results in range: some of them at once that
/// are no nearer to the middle of two integers than that; the others in f64.
__attribute__((target_clones("avx512f", "avx2", "default"))) void requantize_f32(
    const int32_t* __restrict sums, const int32_t* __restrict bias, const float* __restrict factor,
    const double* __restrict exact_bias, const double* __restrict exact_factor, To8Bits to,
    uint8_t* __restrict y, int64_t n) {
  constexpr float kToInteger = 12582912, kSure = 0.4998F;  // 1.5 · 2^23
  const auto low = static_cast<float>(to.low), high = static_cast<float>(to.high);
  int64_t k = 0;
  for (; k + kRequantized <= n; k += kRequantized) {
    int32_t furthest = 0;  // from an integer, as the bits of a positive float
    for (int i = 0; i < kRequantized; ++i) {
      float v = static_cast<float>(sums[k + i] + bias[k + i]) * factor[k + i];
      v = v > low ? v : low;
      v = v < high ? v : high;
      const float moved = v + kToInteger;
      const int32_t off = std::bit_cast<int32_t>(v - (moved - kToInteger)) & 0x7fffffff;
      furthest = off > furthest ? off : furthest;
      y[k + i] = static_cast<uint8_t>(std::bit_cast<int32_t>(moved) + to.zero);  // its last bits
    }
    if (std::bit_cast<float>(furthest) > kSure)
      for (int i = 0; i < kRequantized; ++i)
        y[k + i] = to(sums[k + i], exact_bias[k + i], exact_factor[k + i]);
  }
  for (; k < n; ++k) y[k] = to(sums[k], exact_bias[k], exact_factor[k]);
}

}  // namespace

int integer_at(DType t, const void* p, int64_t k) {
  return t == DType::u8   ? static_cast<const uint8_t*>(p)[k]
         : t == DType::i8 ? static_cast<const int8_t*>(p)[k]
                          : static_cast<const int32_t*>(p)[k];
}

Integers::Integers(const KernelCall& call, SumShape shape, const IntegerSlots& slots)
    : shape_(std::move(shape)), slots_(slots), out_(call.outputs[0]) {
  for (const Operand& o : call.inputs) {
    in_.push_back(o);
    data_.push_back(o.constant ? o.constant->data() : nullptr);
  }
  period_ =
      std::lcm(shape_.all_filters(), int64_t{kRequantized});  // whole vectors of several pixels
  if (const int64_t most = shape_.pixels() * shape_.all_filters(); most > period_)
    period_ *= std::min((kLongRun + period_ - 1) / period_, (most + period_ - 1) / period_);
  factor_.resize(static_cast<size_t>(period_));
  bias_.resize(factor_.size());
  fixed_ = std::ranges::all_of(
      std::array{slots.x_scale, slots.w_scale, slots.y_scale, slots.y_zero, slots.bias},
      [&](int k) { return !has(k) || in_[static_cast<size_t>(k)].constant; });
  if (fixed_) read_scales();
}

void Integers::bind(Binder& binder) {
  for (size_t k = 0; k < in_.size(); ++k)
    if (in_[k].slot >= 0) binder.cell(in_[k].slot, &data_[k]);
  binder.cell(out_.slot, &result_);
}

int Integers::integer(int slot, int64_t k) const {
  if (!has(slot)) return 0;
  const Operand& o = in(slot);
  return integer_at(o.dtype, data(slot), o.numel() == 1 ? 0 : k);
}

double Integers::number(int slot, int64_t k) const {
  const Operand& o = in(slot);
  return number_at(o.dtype, data(slot), o.numel() == 1 ? 0 : k);
}

void Integers::finish(const int32_t* sums, int64_t at, int64_t first, int64_t n) const {
  if (!slots_.quantizes()) {
    auto* y = static_cast<int32_t*>(result_) + at;
    if (y != sums) std::copy_n(sums, n, y);
    return;
  }
  auto* y = static_cast<uint8_t*>(result_) + at;
  for (int64_t k = 0; k < n; k += period_ - first, first = 0)
    if (const int64_t some = std::min(n - k, period_ - first); fits_f32_)
      requantize_f32(sums + k, bias_i32_.data() + first, factor_f32_.data() + first,
                     bias_.data() + first, factor_.data() + first, to_, y + k, some);
    else
      requantize(sums + k, bias_.data() + first, factor_.data() + first, to_, y + k, some);
}

void Integers::read_scales() {
  if (!slots_.quantizes()) return;
  to_.zero = integer(slots_.y_zero, 0);
  to_.low = (out_.dtype == DType::i8 ? -128 : 0) - to_.zero;
  to_.high = to_.low + 255;
  const int64_t filters = shape_.all_filters();
  for (size_t k = 0; k < factor_.size(); ++k) {
    const int64_t m = static_cast<int64_t>(k) % filters;
    const double f =
        number(slots_.x_scale, 0) * number(slots_.w_scale, m) / number(slots_.y_scale, 0);
    // NaN becomes the zero point, and so does 0 times infinity.
    factor_[k] = std::isnan(f) ? 0 : std::clamp(f, -1e200, 1e200);
    bias_[k] = integer(slots_.bias, m);
  }
  // No sum leaves 32 bits with its bias, and no factor f32.
  constexpr int64_t kDeep = 8192;
  constexpr double kLarge = 1 << 30;
  fits_f32_ = shape_.depth() <= kDeep &&
              std::ranges::all_of(bias_, [](double b) { return std::abs(b) <= kLarge; }) &&
              std::ranges::all_of(factor_, [](double f) {
                return f == 0 || (std::abs(f) > 1e-30 && std::abs(f) < 1e30);
              });
  if (!fits_f32_) return;
  factor_f32_.assign(factor_.begin(), factor_.end());
  bias_i32_.assign(bias_.begin(), bias_.end());
}

}  // namespace ferrule::cpu
