#include "runtime/cpu/kernels/integer_sums.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ferrule::cpu {
namespace {

constexpr int kRequantized = 16;  ///< loops of a known length become vectors

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
    requantize(sums + k, bias_.data() + first, factor_.data() + first, to_, y + k,
               std::min(n - k, period_ - first));
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
}

}  // namespace ferrule::cpu
