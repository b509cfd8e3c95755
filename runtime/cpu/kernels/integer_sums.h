// What the two ways of making sums of products of 8-bit integers have in common: the form of the
// sums, the operands, and the step behind the sums. integer_words.cpp multiplies 16-bit numbers,
// integer_bytes.cpp has oneDNN multiply bytes; integer_products.cpp chooses.
#pragma once
#include <array>

#include "runtime/cpu/library.h"

namespace ferrule::cpu {

/// A convolution; a product of matrices is one of images without spatial axes.
struct SumShape {
  int64_t images = 1, groups = 1, channels = 1, filters = 1;  ///< channels and filters of a group
  std::vector<int64_t> in, out, kernel, steps, dilations, before, after;
  std::vector<int64_t> x_apart;  ///< image, channel, spatial axes
  std::vector<int64_t> w_apart;  ///< filter, channel, spatial axes

  static int64_t product(const std::vector<int64_t>& v) {
    int64_t n = 1;
    for (int64_t d : v) n *= d;
    return n;
  }
  int64_t depth() const { return channels * product(kernel); }
  int64_t pixels() const { return images * product(out); }
  int64_t all_filters() const { return groups * filters; }
};

/// What is done to the sums. Slots of the call's inputs; -1: the operator has none.
struct IntegerSlots {
  int x = 0, w = 1, x_zero = -1, w_zero = -1, x_scale = -1, w_scale = -1, y_scale = -1, y_zero = -1,
      bias = -1;
  bool quantizes() const { return y_scale >= 0; }
};

int integer_at(DType t, const void* p, int64_t k);

/// What becomes of a sum: (sum + bias) · factor, within bounds, rounded half to even, moved.
struct To8Bits {
  double low = 0, high = 255;  ///< less the zero point
  int zero = 0;
  uint8_t operator()(int32_t sum, double bias, double factor) const {
    constexpr double kToInteger = 6755399441055744;  // 1.5 · 2^52: adding it leaves no fraction
    double v = (sum + bias) * factor;
    v = v > low ? v : low;
    v = v < high ? v : high;
    return static_cast<uint8_t>(static_cast<int>((v + kToInteger) - kToInteger) + zero);
  }
};

/// f(position in the kernel, offset in the weights) for every tap.
template <class F>
void each_tap(const SumShape& s, const std::vector<int64_t>& apart, F&& f) {
  const size_t rank = s.kernel.size();
  std::vector<int64_t> at(rank, 0);
  const int64_t taps = SumShape::product(s.kernel);
  for (int64_t t = 0; t < taps; ++t) {
    int64_t offset = 0;
    for (size_t a = 0; a < rank; ++a) offset += at[a] * apart[a + 2];
    f(at, offset);
    for (size_t a = rank; a-- > 0 && ++at[a] == s.kernel[a];) at[a] = 0;
  }
}

/// What both ways of making the sums have in common: the operands, and the step behind the sums.
class Integers : public Kernel {
 public:
  Integers(const KernelCall& call, SumShape shape, const IntegerSlots& slots);

  void bind(Binder& binder) override;

 protected:
  static constexpr int64_t kGrain = 8192;  ///< products a thread at least

  bool has(int slot) const {
    return slot >= 0 && static_cast<size_t>(slot) < in_.size() &&
           in_[static_cast<size_t>(slot)].present();
  }
  const Operand& in(int slot) const { return in_[static_cast<size_t>(slot)]; }
  const void* data(int slot) const { return data_[static_cast<size_t>(slot)]; }
  /// An element of an operand that has one for all, or is not there.
  int integer(int slot, int64_t k) const;
  double number(int slot, int64_t k) const;

  void begin() {
    if (!fixed_) read_scales();
  }
  /// `n` sums, the first of filter `first`, in their place or as 8 bits.
  void finish(const int32_t* sums, int64_t at, int64_t first, int64_t n) const;

  SumShape shape_;
  IntegerSlots slots_;
  Operand out_;
  void* result_ = nullptr;

 private:
  void read_scales();

  std::vector<Operand> in_;
  std::vector<const void*> data_;
  std::vector<double> factor_, bias_;
  bool fits_f32_ = false;  ///< then these are factor_ and bias_, too
  std::vector<float> factor_f32_;
  std::vector<int32_t> bias_i32_;
  To8Bits to_;
  int64_t period_ = 1;
  bool fixed_ = false;
};

/// So many products of matrices, one behind the other; elements of x, w from one to the next.
/// `row_zeros`: x has a zero point for each row.
struct IntegerBatch {
  std::vector<std::array<int64_t, 2>> offsets;
  bool row_zeros = false;
};
KernelPtr make_integer_words(const KernelCall& call, SumShape shape, const IntegerSlots& slots,
                             IntegerBatch batch);
/// Constant filters. errors: what oneDNN throws.
KernelPtr make_integer_bytes(Context& context, const KernelCall& call, SumShape shape,
                             const IntegerSlots& slots);

}  // namespace ferrule::cpu
