// Products and convolutions of 8-bit integers, with zero points and, where the operator asks for
// it, back to 8 bits: ConvInteger, MatMulInteger, QLinearConv and QLinearMatMul. Sums are exact, in
// 32 bits, and scaled in f64 as the interpreter does it. oneDNN makes the sums where the processor
// multiplies bytes without saturating on the way; else, and where the second operand is computed,
// 16-bit products do.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "runtime/cpu/library.h"
#include "runtime/parallel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kMostDepth = 32768;  ///< so many products of 8-bit numbers fit into 32 bits
constexpr int64_t kSumGrain = 8192;    ///< products a thread at least
constexpr int64_t kBlock = 15;         ///< pixels whose patches are made at once
constexpr int kMostTaps = 128;         ///< of a depthwise kernel that is read channel by channel
constexpr int kSide = 8;               ///< filters of a vector
constexpr int kPatches = 5;            ///< patches that read filters together
constexpr int64_t kPair = 2;           ///< numbers of a patch that are multiplied at once
constexpr int kLanes = 16;             ///< loops of a known length become vectors

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
struct Slots {
  int x = 0, w = 1, x_zero = -1, w_zero = -1, x_scale = -1, w_scale = -1, y_scale = -1, y_zero = -1,
      bias = -1;
  bool quantizes() const { return y_scale >= 0; }
};
constexpr Slots kInteger{0, 1, 2, 3}, kQLinear{0, 3, 2, 5, 1, 4, 6, 7, 8};

int integer_at(DType t, const void* p, int64_t k) {
  return t == DType::u8   ? static_cast<const uint8_t*>(p)[k]
         : t == DType::i8 ? static_cast<const int8_t*>(p)[k]
                          : static_cast<const int32_t*>(p)[k];
}
double number_at(DType t, const void* p, int64_t k) {
  if (t == DType::f16) return f16_to_float(static_cast<const uint16_t*>(p)[k]);
  if (t == DType::bf16) return bf16_to_float(static_cast<const uint16_t*>(p)[k]);
  return static_cast<const float*>(p)[k];
}
bool eight_bits(DType t) { return t == DType::u8 || t == DType::i8; }

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

__attribute__((target_clones("avx512f", "avx2", "default"))) void requantize(
    const int32_t* __restrict sums, const double* __restrict bias, const double* __restrict factor,
    To8Bits to, uint8_t* __restrict y, int64_t n) {
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes)
    for (int i = 0; i < kLanes; ++i) y[k + i] = to(sums[k + i], bias[k + i], factor[k + i]);
  for (; k < n; ++k) y[k] = to(sums[k], bias[k], factor[k]);
}

/// Sums of products of `patches` with `vectors` · kSide filters (Words::pack says how they lie); a
/// patch's sums stand `apart` from the next one's.
template <int patches, int vectors>
__attribute__((target("avx2"))) void dot_words(const int16_t* patch, const int16_t* filters,
                                               int64_t depth, int32_t* sums, int64_t apart) {
  __m256i all[patches][vectors] = {};
  for (int64_t k = 0; k < depth; k += kPair) {
    __m256i w[vectors];
    for (int v = 0; v < vectors; ++v)
      w[v] =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(filters + (v * depth + k) * kSide));
    for (int p = 0; p < patches; ++p) {
      int32_t pair;
      std::memcpy(&pair, patch + p * depth + k, sizeof pair);
      const __m256i x = _mm256_set1_epi32(pair);
      for (int v = 0; v < vectors; ++v)
        all[p][v] = _mm256_add_epi32(all[p][v], _mm256_madd_epi16(x, w[v]));
    }
  }
  for (int p = 0; p < patches; ++p)
    for (int v = 0; v < vectors; ++v)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + p * apart + v * kSide), all[p][v]);
}
/// The same of any number of patches.
template <int vectors>
void dot_block(const int16_t* patch, int64_t patches, const int16_t* filters, int64_t depth,
               int32_t* sums, int64_t apart) {
  for (; patches >= kPatches; patches -= kPatches) {
    dot_words<kPatches, vectors>(patch, filters, depth, sums, apart);
    patch += kPatches * depth, sums += kPatches * apart;
  }
  for (; patches > 0; --patches) {
    dot_words<1, vectors>(patch, filters, depth, sums, apart);
    patch += depth, sums += apart;
  }
}

/// Numbers less their zero point, `apart` from one to the next.
template <class T>
void as_words(const T* x, int64_t apart, int zero, int16_t* __restrict to, int64_t n) {
  if (apart == 1)
    for (int64_t k = 0; k < n; ++k) to[k] = static_cast<int16_t>(x[k] - zero);
  else
    for (int64_t k = 0; k < n; ++k) to[k] = static_cast<int16_t>(x[k * apart] - zero);
}

/// Sums of one pixel of a depthwise convolution: `taps` rows of channels, x + where[k], times rows
/// of weights, weights + which[k].
template <class T>
[[gnu::always_inline]] inline void add_taps(const T* x, const int64_t* where,
                                            const int16_t* weights, const int64_t* which, int taps,
                                            int zero, int64_t channels, int32_t* __restrict sums) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    int32_t all[kLanes] = {};
    for (int k = 0; k < taps; ++k) {
      const T* from = x + where[k] + c;
      const int16_t* w = weights + which[k] + c;
      for (int i = 0; i < kLanes; ++i) all[i] += (from[i] - zero) * w[i];
    }
    std::copy_n(all, kLanes, sums + c);
  }
  for (; c < channels; ++c) {
    sums[c] = 0;
    for (int k = 0; k < taps; ++k) sums[c] += (x[where[k] + c] - zero) * weights[which[k] + c];
  }
}
__attribute__((target_clones("avx512f", "avx2", "default"))) void add_taps_u8(
    const uint8_t* x, const int64_t* where, const int16_t* weights, const int64_t* which, int taps,
    int zero, int64_t channels, int32_t* sums) {
  add_taps(x, where, weights, which, taps, zero, channels, sums);
}
__attribute__((target_clones("avx512f", "avx2", "default"))) void add_taps_i8(
    const int8_t* x, const int64_t* where, const int16_t* weights, const int64_t* which, int taps,
    int zero, int64_t channels, int32_t* sums) {
  add_taps(x, where, weights, which, taps, zero, channels, sums);
}

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
  Integers(const KernelCall& call, SumShape shape, const Slots& slots)
      : shape_(std::move(shape)), slots_(slots), out_(call.outputs[0]) {
    for (const Operand& o : call.inputs) {
      in_.push_back(o);
      data_.push_back(o.constant ? o.constant->data() : nullptr);
    }
    period_ = std::lcm(shape_.all_filters(), int64_t{kLanes});  // whole vectors of several pixels
    factor_.resize(static_cast<size_t>(period_));
    bias_.resize(factor_.size());
    fixed_ = std::ranges::all_of(
        std::array{slots.x_scale, slots.w_scale, slots.y_scale, slots.y_zero, slots.bias},
        [&](int k) { return !has(k) || in_[static_cast<size_t>(k)].constant; });
    if (fixed_) read_scales();
  }

  void bind(Binder& binder) override {
    for (size_t k = 0; k < in_.size(); ++k)
      if (in_[k].slot >= 0) binder.cell(in_[k].slot, &data_[k]);
    binder.cell(out_.slot, &result_);
  }

 protected:
  bool has(int slot) const {
    return slot >= 0 && static_cast<size_t>(slot) < in_.size() &&
           in_[static_cast<size_t>(slot)].present();
  }
  const Operand& in(int slot) const { return in_[static_cast<size_t>(slot)]; }
  const void* data(int slot) const { return data_[static_cast<size_t>(slot)]; }
  /// An element of an operand that has one for all, or is not there.
  int integer(int slot, int64_t k) const {
    if (!has(slot)) return 0;
    const Operand& o = in(slot);
    return integer_at(o.dtype, data(slot), o.numel() == 1 ? 0 : k);
  }
  double number(int slot, int64_t k) const {
    const Operand& o = in(slot);
    return number_at(o.dtype, data(slot), o.numel() == 1 ? 0 : k);
  }

  void begin() {
    if (!fixed_) read_scales();
  }
  /// `n` sums, the first of filter `first`, in their place or as 8 bits.
  void finish(const int32_t* sums, int64_t at, int64_t first, int64_t n) const {
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

  SumShape shape_;
  Slots slots_;
  Operand out_;
  void* result_ = nullptr;

 private:
  void read_scales() {
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

  std::vector<Operand> in_;
  std::vector<const void*> data_;
  std::vector<double> factor_, bias_;
  To8Bits to_;
  int64_t period_ = 1;
  bool fixed_ = false;
};

/// Patches and filters less their zero points, as 16-bit numbers, and their products.
class Words final : public Integers {
 public:
  /// `batch`: so many products of matrices, one behind the other; elements of x, w from one to the
  /// next. `row_zeros`: x has a zero point for each row.
  struct Batch {
    std::vector<std::array<int64_t, 2>> offsets;
    bool row_zeros = false;
  };
  Words(const KernelCall& call, SumShape shape, const Slots& slots, Batch batch)
      : Integers(call, std::move(shape), slots), batch_(std::move(batch)) {
    depth_ = (shape_.depth() + kPair - 1) / kPair * kPair;
    per_group_ = (shape_.filters + kSide - 1) / kSide * kSide;
    constant_ = in(slots_.w).constant && (!has(slots_.w_zero) || in(slots_.w_zero).constant) &&
                batch_.offsets.size() == 1;
    depthwise_ = constant_ && shape_.groups > 1 && shape_.channels == 1 && shape_.filters == 1 &&
                 shape_.x_apart[1] == 1 && shape_.depth() <= kMostTaps;
    if (depthwise_) {
      depth_ = 0, per_group_ = 1;
      pack_taps();
    } else if (constant_) {
      packed_.resize(static_cast<size_t>(filter_bytes() / 2));
      pack(packed_.data(), 0);
    }
    tables();
  }
  std::string text() const override { return depthwise_ ? "words:depthwise" : "words"; }
  int64_t scratch_bytes() const override {
    return (constant_ ? 0 : filter_bytes()) + threads() * (kBlock * depth_ * 2 + sums_bytes());
  }
  void bind(Binder& binder) override {
    Integers::bind(binder);
    scratch_ = static_cast<char*>(binder.scratch());
  }

  Status run() override {
    const OneKernel one;
    begin();
    const int64_t pixels = shape_.pixels();
    for (size_t b = 0; b < batch_.offsets.size(); ++b) {
      const int16_t* filters = packed_.data();
      char* own = scratch_;
      if (!constant_) {
        pack(reinterpret_cast<int16_t*>(own), batch_.offsets[b][1]);
        filters = reinterpret_cast<const int16_t*>(own);
        own += filter_bytes();
      }
      const int64_t blocks = (pixels + kBlock - 1) / kBlock;
      const int64_t work = kBlock * shape_.all_filters() * (depthwise_ ? shape_.depth() : depth_);
      parallel_for(blocks, 1 + kSumGrain / (work + 1), [&](int64_t begin, int64_t end) {
        char* mine = own + parallel_thread() * (kBlock * depth_ * 2 + sums_bytes());
        for (int64_t k = begin; k < end; ++k)
          block(b, k * kBlock, std::min(pixels, (k + 1) * kBlock), filters, mine);
      });
    }
    return {};
  }

 private:
  int64_t filter_bytes() const { return shape_.groups * per_group_ * depth_ * 2; }
  int64_t sums_bytes() const {
    return ((depthwise_ ? shape_.groups : kBlock * per_group_) * 4 + 63) / 64 * 64;
  }

  /// A row of all channels for each tap.
  void pack_taps() {
    const Operand& w = in(slots_.w);
    packed_.resize(static_cast<size_t>(shape_.depth() * shape_.groups));
    int16_t* to = packed_.data();
    each_tap(shape_, shape_.w_apart, [&](const auto&, int64_t tap) {
      for (int64_t m = 0; m < shape_.groups; ++m)
        *to++ =
            static_cast<int16_t>(integer_at(w.dtype, data(slots_.w), m * shape_.w_apart[0] + tap) -
                                 integer(slots_.w_zero, m));
    });
  }

  /// kSide filters of a group side by side, a pair of numbers of each after the other.
  void pack(int16_t* to, int64_t offset) const {
    std::fill_n(to, filter_bytes() / 2, int16_t{0});
    const Operand& w = in(slots_.w);
    const int64_t channels = shape_.channels;
    for (int64_t m = 0; m < shape_.all_filters(); ++m) {
      const int64_t of_group = m % shape_.filters, lane = of_group % kSide;
      int16_t* filter =
          to + (m / shape_.filters * per_group_ + of_group - lane) * depth_ + lane * kPair;
      int64_t k = 0;
      const int zero = integer(slots_.w_zero, m);
      const int64_t start = offset + m * shape_.w_apart[0];
      each_tap(shape_, shape_.w_apart, [&](const auto&, int64_t tap) {
        for (int64_t c = 0; c < channels; ++c, ++k)
          filter[k / kPair * kPair * kSide + k % kPair] = static_cast<int16_t>(
              integer_at(w.dtype, data(slots_.w), start + tap + c * shape_.w_apart[1]) - zero);
      });
    }
  }

  void tables() {
    each_tap(shape_, shape_.w_apart, [&](const std::vector<int64_t>& at, int64_t) {
      for (size_t a = 0; a < at.size(); ++a) taps_.push_back(at[a] * (shape_.dilations[a] + 1));
    });
  }

  /// Pixels [begin, end): a group after the other.
  void block(size_t b, int64_t begin, int64_t end, const int16_t* filters, char* mine) const {
    if (depthwise_) return depthwise_pixels(begin, end, reinterpret_cast<int32_t*>(mine));
    auto* patches = reinterpret_cast<int16_t*>(mine);
    auto* sums = reinterpret_cast<int32_t*>(mine + kBlock * depth_ * 2);
    const int64_t each = shape_.all_filters(), first = static_cast<int64_t>(b) * shape_.pixels();
    for (int64_t g = 0; g < shape_.groups; ++g) {
      for (int64_t p = begin; p < end; ++p) patch(b, p, g, patches + (p - begin) * depth_);
      // Filters outside: they stay in the first cache for all patches of the block.
      for (int64_t m = 0; m < per_group_; m += 2 * kSide) {
        const auto dot = m + kSide < per_group_ ? dot_block<2> : dot_block<1>;
        dot(patches, end - begin, filters + (g * per_group_ + m) * depth_, depth_, sums + m,
            per_group_);
      }
      for (int64_t p = begin; p < end; ++p)
        finish(sums + (p - begin) * per_group_, (first + p) * each + g * shape_.filters,
               g * shape_.filters, shape_.filters);
    }
  }

  /// Where the pixel's window begins; its image.
  int64_t window_of(int64_t pixel, std::array<int64_t, 3>& at) const {
    for (size_t a = shape_.out.size(); a-- > 0; pixel /= shape_.out[a])
      at[a] = pixel % shape_.out[a] * shape_.steps[a] - shape_.before[a];
    return pixel;
  }
  /// Elements from the image to a tap's; nothing beyond its border.
  std::optional<int64_t> tap_at(const std::array<int64_t, 3>& at, int64_t tap) const {
    const size_t rank = shape_.out.size();
    int64_t offset = 0;
    for (size_t a = 0; a < rank; ++a) {
      const int64_t i = at[a] + taps_[static_cast<size_t>(tap) * rank + a];
      if (i < 0 || i >= shape_.in[a]) return std::nullopt;
      offset += i * shape_.x_apart[a + 2];
    }
    return offset;
  }

  void depthwise_pixels(int64_t begin, int64_t end, int32_t* sums) const {
    const int zero = integer(slots_.x_zero, 0);
    std::array<int64_t, kMostTaps> where, which;
    for (int64_t p = begin; p < end; ++p) {
      std::array<int64_t, 3> at{};
      const int64_t image = window_of(p, at) * shape_.x_apart[0];
      int taps = 0;
      for (int64_t t = 0; t < shape_.depth(); ++t)
        if (const auto offset = tap_at(at, t)) {
          where[static_cast<size_t>(taps)] = batch_.offsets[0][0] + image + *offset;
          which[static_cast<size_t>(taps++)] = t * shape_.groups;
        }
      if (in(slots_.x).dtype == DType::u8)
        add_taps_u8(static_cast<const uint8_t*>(data(slots_.x)), where.data(), packed_.data(),
                    which.data(), taps, zero, shape_.groups, sums);
      else
        add_taps_i8(static_cast<const int8_t*>(data(slots_.x)), where.data(), packed_.data(),
                    which.data(), taps, zero, shape_.groups, sums);
      finish(sums, p * shape_.groups, 0, shape_.groups);
    }
  }

  void patch(size_t b, int64_t pixel, int64_t group, int16_t* to) const {
    std::array<int64_t, 3> at{};
    const int64_t image = window_of(pixel, at);
    const Operand& x = in(slots_.x);
    const int zero = integer(slots_.x_zero, batch_.row_zeros ? pixel : 0);
    const int64_t start = batch_.offsets[b][0] + image * shape_.x_apart[0] +
                          group * shape_.channels * shape_.x_apart[1];
    int16_t* const end = to + depth_;
    const int64_t taps = SumShape::product(shape_.kernel);
    for (int64_t t = 0; t < taps; ++t, to += shape_.channels) {
      const auto offset = tap_at(at, t);
      if (!offset) {
        std::fill_n(to, shape_.channels, int16_t{0});
        continue;
      }
      if (x.dtype == DType::u8)
        as_words(static_cast<const uint8_t*>(data(slots_.x)) + start + *offset, shape_.x_apart[1],
                 zero, to, shape_.channels);
      else
        as_words(static_cast<const int8_t*>(data(slots_.x)) + start + *offset, shape_.x_apart[1],
                 zero, to, shape_.channels);
    }
    std::fill(to, end, int16_t{0});
  }

  Batch batch_;
  int64_t depth_ = 0, per_group_ = 0;
  bool constant_ = false;
  bool depthwise_ = false;  ///< filters of one channel each, which lie side by side
  std::vector<int16_t> packed_;
  std::vector<int64_t> taps_;  ///< what each moves the patch by, along each axis
  char* scratch_ = nullptr;
};

/// oneDNN's sums. Filters of u8 are moved into i8, and zero points that are left cost one filter of
/// ones more a group: sum (x - zx)(w - zw) = sum (x - zx) w - zw sum (x - zx).
class Bytes final : public Integers {
 public:
  Bytes(Context& context, const KernelCall& call, SumShape shape, const Slots& slots)
      : Integers(call, std::move(shape), slots), library_(context.library) {
    moved_ = in(slots_.w).dtype == DType::u8 ? 128 : 0;
    extra_ = needs_extra();
    const int64_t filters = shape_.all_filters();
    per_group_ = shape_.filters + (extra_ ? 1 : 0);
    direct_ = !extra_ && !slots_.quantizes();
    if (shape_.in.empty()) {
      columns_.resize(static_cast<size_t>(filters));
      make_product();
    } else {
      make_convolution();
    }
  }

  std::string text() const override { return text_; }
  int64_t scratch_bytes() const override { return sums_bytes() + library_scratch_; }
  void bind(Binder& binder) override {
    Integers::bind(binder);
    auto* scratch = static_cast<char*>(binder.scratch());
    binder.memory(in(slots_.x).slot, source_.get());
    if (direct_)
      binder.memory(out_.slot, sums_.get());
    else
      sums_.set_data_handle(scratch);
    if (library_scratch_) scratchpad_.set_data_handle(scratch + sums_bytes());
    where_ = reinterpret_cast<int32_t*>(scratch);
  }

  Status run() override {
    const OneKernel one;
    begin();
    zero_of_x_ = integer(slots_.x_zero, 0);
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), library_.stream.get(),
                               static_cast<int>(arguments_.size()), arguments_.data());
    if (status != dnnl_success)
      return error(Code::library_failed, text_, "oneDNN",
                   fmt::format("status {}", static_cast<int>(status)));
    const bool moves = !columns_.empty() && zero_of_x_;
    if (direct_ && !moves) return {};
    const int64_t each = shape_.groups * per_group_, filters = shape_.filters;
    parallel_for(shape_.pixels(), 1 + kSumGrain / (each + 1), [&](int64_t begin, int64_t end) {
      if (!extra_ && !moves)
        return finish(where_ + begin * each, begin * each, 0, (end - begin) * each);
      for (int64_t p = begin; p < end; ++p) {
        int32_t* sums = (direct_ ? static_cast<int32_t*>(result_) : where_) + p * each;
        if (moves)
          for (int64_t m = 0; m < filters; ++m)
            sums[m] -= zero_of_x_ * columns_[static_cast<size_t>(m)];
        if (!extra_) {
          finish(sums, p * each, 0, shape_.all_filters());
          continue;
        }
        for (int64_t g = 0; g < shape_.groups; ++g, sums += per_group_) {
          const int32_t all = sums[filters] - (moves ? zero_of_x_ * whole_depth() : 0);
          for (int64_t m = 0; m < filters; ++m)
            sums[m] -= (integer(slots_.w_zero, g * filters + m) - moved_) * all;
          finish(sums, (p * shape_.groups + g) * filters, g * filters, filters);
        }
      }
    });
    return {};
  }

 private:
  int32_t whole_depth() const { return static_cast<int32_t>(shape_.depth()); }
  int64_t sums_bytes() const {
    return direct_ ? 0 : (shape_.pixels() * shape_.groups * per_group_ * 4 + 63) / 64 * 64;
  }
  bool needs_extra() const {
    if (!has(slots_.w_zero)) return moved_ != 0;
    const Operand& zero = in(slots_.w_zero);
    if (!zero.constant) return true;
    for (int64_t k = 0; k < zero.numel(); ++k)
      if (integer(slots_.w_zero, k) != moved_) return true;
    return false;
  }

  /// Filters as i8, dense: groups, filters, channels, taps.
  std::vector<int8_t> filters_as_bytes() {
    const Operand& w = in(slots_.w);
    std::vector<int8_t> all;
    all.reserve(static_cast<size_t>(shape_.groups * per_group_ * shape_.depth()));
    for (int64_t m = 0; m < shape_.all_filters(); ++m) {
      for (int64_t c = 0; c < shape_.channels; ++c)
        each_tap(shape_, shape_.w_apart, [&](const auto&, int64_t tap) {
          const int v = integer_at(w.dtype, data(slots_.w),
                                   m * shape_.w_apart[0] + c * shape_.w_apart[1] + tap);
          all.push_back(static_cast<int8_t>(v - moved_));
        });
      if (extra_ && (m + 1) % shape_.filters == 0)
        all.insert(all.end(), static_cast<size_t>(shape_.depth()), int8_t{1});
    }
    return all;
  }

  void make_product() {
    using enum memory::data_type;
    const int64_t depth = shape_.depth(), rows = shape_.images;
    const memory::desc x({rows, depth}, *data_type(in(slots_.x).dtype),
                         memory::dims{shape_.x_apart[0], 1});
    const memory::desc any({depth, per_group_}, s8, memory::format_tag::any);
    const memory::desc sums({rows, per_group_}, s32, memory::dims{per_group_, 1});
    const dnnl::matmul::primitive_desc desc(library_.engine, x, any, sums, attributes());
    // Filters lie one behind the other: columns of the product's second operand.
    const memory::desc plain({depth, per_group_}, s8, memory::dims{1, depth});
    const Packed filters = weights(plain, desc.weights_desc());
    sum_columns();
    assemble(desc, dnnl::matmul(desc), x, filters);
  }
  void sum_columns() {
    const Operand& w = in(slots_.w);
    for (size_t m = 0; m < columns_.size(); ++m)
      for (int64_t c = 0; c < shape_.channels; ++c)
        columns_[m] +=
            integer_at(w.dtype, data(slots_.w),
                       static_cast<int64_t>(m) * shape_.w_apart[0] + c * shape_.w_apart[1]) -
            moved_;
  }

  void make_convolution() {
    using enum memory::data_type;
    const auto with = [&](std::vector<int64_t> first, const std::vector<int64_t>& rest) {
      first.insert(first.end(), rest.begin(), rest.end());
      return first;
    };
    const memory::desc x = image_desc(in(slots_.x));
    std::vector<int64_t> dims = with({per_group_, shape_.channels}, shape_.kernel);
    if (shape_.groups > 1) dims.insert(dims.begin(), shape_.groups);
    Operand y = out_;
    y.dtype = DType::i32, y.layout = Layout::channels_last;
    y.dims = with({shape_.images, shape_.groups * per_group_}, shape_.out);
    dnnl::primitive_attr attr = attributes();
    const bool moves =
        has(slots_.x_zero) && !(in(slots_.x_zero).constant && !integer(slots_.x_zero, 0));
    if (moves) attr.set_zero_points_mask(DNNL_ARG_SRC, 0);
    const dnnl::convolution_forward::primitive_desc desc(
        library_.engine, dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, x,
        memory::desc(dims, s8, memory::format_tag::any), image_desc(y), shape_.steps,
        shape_.dilations, shape_.before, shape_.after, attr);
    const memory::desc plain(dims, s8, strides_of(dims, Layout::plain));
    assemble(desc, dnnl::convolution_forward(desc), x, weights(plain, desc.weights_desc()));
    if (!moves) return;
    zero_memory_ =
        memory(memory::desc({1}, s32, memory::format_tag::a), library_.engine, &zero_of_x_);
    arguments_.push_back({DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, zero_memory_.get()});
  }

  static dnnl::primitive_attr attributes() {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attr;
  }

  Packed weights(const memory::desc& plain, const memory::desc& packed) {
    const std::string recipe = fmt::format(
        "bytes {} {} {} {} {} {} {}", extra_, in(slots_.x).dtype == DType::u8, packed.get_size(),
        fmt::join(plain.get_strides(), ","), fmt::join(packed.get_strides(), ","),
        fmt::join(packed.get_inner_blks(), ","), fmt::join(packed.get_inner_idxs(), ","));
    const auto bytes = static_cast<int64_t>(packed.get_size());
    return library_.derive(*in(slots_.w).constant, recipe, bytes, [&](void* to) {
      std::vector<int8_t> all = filters_as_bytes();
      std::memset(to, 0, static_cast<size_t>(bytes));
      memory source(plain, library_.engine, all.data()), target(packed, library_.engine, to);
      dnnl::reorder(source, target).execute(library_.stream, source, target);
      library_.stream.wait();
    });
  }

  template <class Desc>
  void assemble(const Desc& desc, dnnl::primitive primitive, const memory::desc& x,
                const Packed& filters) {
    primitive_ = std::move(primitive);
    text_ = desc.impl_info_str();
    packed_ = filters;
    source_ = memory(x, library_.engine, nullptr);
    weights_ = memory(desc.weights_desc(), library_.engine, const_cast<void*>(packed_.data));
    sums_ = memory(desc.dst_desc(), library_.engine, nullptr);
    arguments_ = {{DNNL_ARG_SRC, source_.get()},
                  {DNNL_ARG_WEIGHTS, weights_.get()},
                  {DNNL_ARG_DST, sums_.get()}};
    library_scratch_ = static_cast<int64_t>(desc.scratchpad_desc().get_size());
    if (!library_scratch_) return;
    scratchpad_ = memory(desc.scratchpad_desc(), library_.engine, nullptr);
    arguments_.push_back({DNNL_ARG_SCRATCHPAD, scratchpad_.get()});
  }

  Library& library_;
  int moved_ = 0;        ///< what the filters are less than the model's
  bool extra_ = false;   ///< a filter of ones behind each group's
  bool direct_ = false;  ///< sums are the result
  int64_t per_group_ = 0, library_scratch_ = 0;
  std::vector<int32_t> columns_;  ///< of products: sums of filters, for the zero point of x
  int32_t zero_of_x_ = 0;
  dnnl::primitive primitive_;
  std::string text_;
  Packed packed_;
  memory source_, weights_, sums_, zero_memory_, scratchpad_;
  std::vector<dnnl_exec_arg_t> arguments_;
  int32_t* where_ = nullptr;
};

// --- what is taken

class IntegerTaker {
 public:
  IntegerTaker(Context& context, const KernelCall& call, const Slots& slots)
      : context_(context), call_(call), slots_(slots) {}

  Applicable<KernelPtr> convolution() const {
    FERRULE_TRY(operands());
    const Operand &x = in(slots_.x), &w = in(slots_.w), &y = call_.outputs[0];
    if (x.rank() < 3 || x.rank() > 5 || w.rank() != x.rank() || !w.lies(Layout::plain))
      return refuse("images of another rank, or filters in another layout");
    if (!channels_last(y)) return refuse("another layout");
    SumShape s;
    s.kernel = {w.dims.begin() + 2, w.dims.end()};
    FERRULE_ASSIGN(Window window, window_of(call_, x.dims, y.dims, s.kernel));
    s.images = x.dims[0];
    s.groups = std::max<int64_t>(1, call_.node->attrs.i("group", 1));
    s.channels = w.dims[1];
    s.filters = w.dims[0] / s.groups;
    if (s.channels * s.groups != x.dims[1] || s.filters * s.groups != w.dims[0])
      return refuse("groups that do not divide the channels");
    s.in = {x.dims.begin() + 2, x.dims.end()};
    s.out = {y.dims.begin() + 2, y.dims.end()};
    s.steps = window.strides, s.dilations = window.dilations;
    s.before = window.pads_begin, s.after = window.pads_end;
    s.x_apart = x.strides(), s.w_apart = strides_of(w.dims, Layout::plain);
    FERRULE_TRY(per_filter(s));
    if (has(slots_.x_zero) && in(slots_.x_zero).numel() != 1) return refuse("zero points of rows");
    const bool cut = std::ranges::any_of(s.before, [](int64_t p) { return p < 0; });
    const bool library = has_bytes() && w.constant && x.slot >= 0 && channels_last(x) && !cut;
    if (library)
      if (auto made = bytes(s)) return made;
    return std::make_unique<Words>(call_, std::move(s), slots_, Words::Batch{{{0, 0}}});
  }

  Applicable<KernelPtr> product() const {
    FERRULE_TRY(operands());
    const Operand &a = in(slots_.x), &b = in(slots_.w), &y = call_.outputs[0];
    if (a.rank() < 2 || b.rank() < 2) return refuse("a vector");
    for (const Operand* o : {&a, &b, &y})
      if (!o->lies(Layout::plain)) return refuse("another layout");
    const auto last = [](const Operand& o, int k) {
      return o.dims[o.dims.size() - static_cast<size_t>(k)];
    };
    SumShape s;
    s.channels = last(a, 1), s.filters = last(b, 1);
    s.w_apart = {1, s.filters};
    s.x_apart = {s.channels, 1};
    FERRULE_TRY(per_filter(s));
    const bool one = b.numel() == s.channels * s.filters;
    s.images = one ? a.numel() / s.channels : last(a, 2);
    Words::Batch batch{{{0, 0}}};
    if (!one) batch.offsets = matrices(y, a, b);
    if (has(slots_.x_zero) && in(slots_.x_zero).numel() != 1) {
      if (in(slots_.x_zero).numel() != s.images || in(slots_.x_zero).rank() != 1 || a.rank() != 2)
        return refuse("zero points of another form");
      batch.row_zeros = true;
    }
    if (has_bytes() && one && !batch.row_zeros && b.constant && a.slot >= 0)
      if (auto made = bytes(s)) return made;
    return std::make_unique<Words>(call_, std::move(s), slots_, std::move(batch));
  }

 private:
  bool has(int slot) const {
    return slot >= 0 && call_.own_input(static_cast<size_t>(slot)) != nullptr;
  }
  const Operand& in(int slot) const { return call_.inputs[static_cast<size_t>(slot)]; }
  tl::unexpected<NotApplicable> refuse(std::string_view why) const {
    return not_applicable(escape(call_.layer), call_.node->op.text(), why);
  }
  /// Bytes are multiplied and summed in 32 bits; older instructions saturate in 16.
  bool has_bytes() const {
    constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_vnni);
    return (!context_.target || context_.target->has_isa("avx512f")) &&
           (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
  }
  Applicable<KernelPtr> bytes(const SumShape& s) const {
    return guard(call_, "integer product", [&]() -> Applicable<KernelPtr> {
      auto kernel = std::make_unique<Bytes>(context_, call_, s, slots_);
      if (kernel->text().find("ref") != std::string::npos) return refuse("the library's reference");
      return kernel;
    });
  }

  Applicable<> operands() const {
    if (!call_.dense() || !call_.post_ops.empty()) return refuse("slices or a tail");
    for (int k : {slots_.x, slots_.w})
      if (!eight_bits(in(k).dtype) || in(k).numel() == 0) return refuse("no integers of 8 bits");
    if (call_.outputs[0].numel() == 0) return refuse("an empty result");
    for (int k : {slots_.x_zero, slots_.w_zero, slots_.y_zero})
      if (has(k) && !eight_bits(in(k).dtype)) return refuse("zero points of another type");
    for (int k : {slots_.x_scale, slots_.w_scale, slots_.y_scale})
      if (has(k) && in(k).dtype != DType::f32 && in(k).dtype != DType::f16 &&
          in(k).dtype != DType::bf16)
        return refuse("scales of another type");
    for (int k : {slots_.x_scale, slots_.y_scale, slots_.y_zero})
      if (has(k) && in(k).numel() != 1) return refuse("scales of rows");
    if (!slots_.quantizes()) return {};
    if (has(slots_.x_zero) && in(slots_.x_zero).numel() != 1) return refuse("zero points of rows");
    return {};
  }
  /// What there is one of for each filter.
  Applicable<> per_filter(const SumShape& s) const {
    if (s.depth() > kMostDepth) return refuse("sums that do not fit into 32 bits");
    for (int k : {slots_.w_zero, slots_.w_scale, slots_.bias})
      if (has(k) && in(k).numel() != 1 && (in(k).numel() != s.all_filters() || in(k).rank() != 1))
        return refuse("scales or zero points of another form");
    if (has(slots_.bias) &&
        (in(slots_.bias).dtype != DType::i32 || in(slots_.bias).numel() != s.all_filters()))
      return refuse("a bias of another form");
    return {};
  }
  /// Where the matrices of a product of several lie.
  static std::vector<std::array<int64_t, 2>> matrices(const Operand& y, const Operand& a,
                                                      const Operand& b) {
    std::vector<std::array<int64_t, 2>> all;
    const auto step = [](const Operand& o) { return strides_of(o.dims, Layout::plain); };
    const auto of_a = step(a), of_b = step(b);
    const size_t outer = y.dims.size() - 2;
    int64_t count = 1;
    for (size_t k = 0; k < outer; ++k) count *= y.dims[k];
    const auto along = [&](const Operand& o, const std::vector<int64_t>& apart, size_t k,
                           int64_t i) -> int64_t {
      const size_t missing = y.dims.size() - o.dims.size();
      return k < missing || o.dims[k - missing] == 1 ? 0 : i * apart[k - missing];
    };
    for (int64_t n = 0; n < count; ++n) {
      std::array<int64_t, 2> at{};
      int64_t rest = n;
      for (size_t k = outer; k-- > 0; rest /= y.dims[k]) {
        at[0] += along(a, of_a, k, rest % y.dims[k]);
        at[1] += along(b, of_b, k, rest % y.dims[k]);
      }
      all.push_back(at);
    }
    return all;
  }

  Context& context_;
  const KernelCall& call_;
  const Slots& slots_;
};

}  // namespace

Applicable<KernelPtr> make_conv_integer(Context& context, const KernelCall& call) {
  return IntegerTaker(context, call, kInteger).convolution();
}
Applicable<KernelPtr> make_qlinear_conv(Context& context, const KernelCall& call) {
  return IntegerTaker(context, call, kQLinear).convolution();
}
Applicable<KernelPtr> make_matmul_integer(Context& context, const KernelCall& call) {
  return IntegerTaker(context, call, kInteger).product();
}
Applicable<KernelPtr> make_qlinear_matmul(Context& context, const KernelCall& call) {
  return IntegerTaker(context, call, kQLinear).product();
}

}  // namespace ferrule::cpu
