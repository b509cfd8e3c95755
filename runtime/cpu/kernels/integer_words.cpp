// Sums of products of 8-bit integers as 16-bit ones: where the processor has nothing better, and
// where the second operand is computed.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "runtime/cpu/kernels/integer_sums.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kPatchBlock = 15;  ///< pixels whose patches are made at once
constexpr int kDepthwiseTaps = 128;  ///< of a depthwise kernel that is read channel by channel
constexpr int kFilterLanes = 8;      ///< filters of a vector
constexpr int kPatches = 5;          ///< patches that read filters together
constexpr int64_t kPair = 2;         ///< numbers of a patch that are multiplied at once
constexpr int kTapLanes = 16;        ///< loops of a known length become vectors

/// Sums of products of `patches` with `vectors` · kFilterLanes filters (Words::pack says how they
/// lie); a patch's sums stand `apart` from the next one's.
template <int patches, int vectors>
__attribute__((target("avx2"))) void dot_words(const int16_t* patch, const int16_t* filters,
                                               int64_t depth, int32_t* sums, int64_t apart) {
  __m256i all[patches][vectors] = {};
  for (int64_t k = 0; k < depth; k += kPair) {
    __m256i w[vectors];
    for (int v = 0; v < vectors; ++v)
      w[v] = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(filters + (v * depth + k) * kFilterLanes));
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
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + p * apart + v * kFilterLanes),
                          all[p][v]);
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
  for (; c + kTapLanes <= channels; c += kTapLanes) {
    int32_t all[kTapLanes] = {};
    for (int k = 0; k < taps; ++k) {
      const T* from = x + where[k] + c;
      const int16_t* w = weights + which[k] + c;
      for (int i = 0; i < kTapLanes; ++i) all[i] += (from[i] - zero) * w[i];
    }
    std::copy_n(all, kTapLanes, sums + c);
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

/// Patches and filters less their zero points, as 16-bit numbers, and their products.
class Words final : public Integers {
 public:
  Words(const KernelCall& call, SumShape shape, const IntegerSlots& slots, IntegerBatch batch)
      : Integers(call, std::move(shape), slots), batch_(std::move(batch)) {
    depth_ = (shape_.depth() + kPair - 1) / kPair * kPair;
    per_group_ = (shape_.filters + kFilterLanes - 1) / kFilterLanes * kFilterLanes;
    constant_ = in(slots_.w).constant && (!has(slots_.w_zero) || in(slots_.w_zero).constant) &&
                batch_.offsets.size() == 1;
    depthwise_ = constant_ && shape_.groups > 1 && shape_.channels == 1 && shape_.filters == 1 &&
                 shape_.x_apart[1] == 1 && shape_.depth() <= kDepthwiseTaps;
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
    return (constant_ ? 0 : filter_bytes()) + threads() * (kPatchBlock * depth_ * 2 + sums_bytes());
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
      const int64_t blocks = (pixels + kPatchBlock - 1) / kPatchBlock;
      const int64_t work =
          kPatchBlock * shape_.all_filters() * (depthwise_ ? shape_.depth() : depth_);
      parallel_for(blocks, 1 + kGrain / (work + 1), [&](int64_t begin, int64_t end) {
        char* mine = own + parallel_thread() * (kPatchBlock * depth_ * 2 + sums_bytes());
        for (int64_t k = begin; k < end; ++k)
          block(b, k * kPatchBlock, std::min(pixels, (k + 1) * kPatchBlock), filters, mine);
      });
    }
    return {};
  }

 private:
  int64_t filter_bytes() const { return shape_.groups * per_group_ * depth_ * 2; }
  int64_t sums_bytes() const {
    return ((depthwise_ ? shape_.groups : kPatchBlock * per_group_) * 4 + 63) / 64 * 64;
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

  /// kFilterLanes filters of a group side by side, a pair of numbers of each after the other.
  void pack(int16_t* to, int64_t offset) const {
    std::fill_n(to, filter_bytes() / 2, int16_t{0});
    const Operand& w = in(slots_.w);
    const int64_t channels = shape_.channels;
    for (int64_t m = 0; m < shape_.all_filters(); ++m) {
      const int64_t of_group = m % shape_.filters, lane = of_group % kFilterLanes;
      int16_t* filter =
          to + (m / shape_.filters * per_group_ + of_group - lane) * depth_ + lane * kPair;
      int64_t k = 0;
      const int zero = integer(slots_.w_zero, m);
      const int64_t start = offset + m * shape_.w_apart[0];
      each_tap(shape_, shape_.w_apart, [&](const auto&, int64_t tap) {
        for (int64_t c = 0; c < channels; ++c, ++k)
          filter[k / kPair * kPair * kFilterLanes + k % kPair] = static_cast<int16_t>(
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
    auto* sums = reinterpret_cast<int32_t*>(mine + kPatchBlock * depth_ * 2);
    const int64_t each = shape_.all_filters(), first = static_cast<int64_t>(b) * shape_.pixels();
    for (int64_t g = 0; g < shape_.groups; ++g) {
      for (int64_t p = begin; p < end; ++p) patch(b, p, g, patches + (p - begin) * depth_);
      // Filters outside: they stay in the first cache for all patches of the block.
      for (int64_t m = 0; m < per_group_; m += 2 * kFilterLanes) {
        const auto dot = m + kFilterLanes < per_group_ ? dot_block<2> : dot_block<1>;
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
    std::array<int64_t, kDepthwiseTaps> where, which;
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

  IntegerBatch batch_;
  int64_t depth_ = 0, per_group_ = 0;
  bool constant_ = false;
  bool depthwise_ = false;  ///< filters of one channel each, which lie side by side
  std::vector<int16_t> packed_;
  std::vector<int64_t> taps_;  ///< what each moves the patch by, along each axis
  char* scratch_ = nullptr;
};

}  // namespace

KernelPtr make_integer_words(const KernelCall& call, SumShape shape, const IntegerSlots& slots,
                             IntegerBatch batch) {
  return std::make_unique<Words>(call, std::move(shape), slots, std::move(batch));
}

}  // namespace ferrule::cpu
