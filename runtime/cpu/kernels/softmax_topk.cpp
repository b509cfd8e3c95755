// A softmax and the selection of its largest (or smallest) elements along the last axis as one
// parallel region over rows. What is selected is found on the operand, whose order the softmax
// keeps, while it is read; then the exponentials are summed, and only what was selected is
// normalised. Rounding may make equal what was not, and the order of equals is by index: so
// everything within a few roundings of the last one selected is normalised, and compared, too.
#include "engine/contract/softmax_topk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernel.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kTopKGrain = 8192;  // elements a thread at least
constexpr float kInf = std::numeric_limits<float>::infinity();
/// Below this exponent, and for operands this close (relative to it), a softmax may be the same
/// number.
constexpr float kFarBelow = -70, kClose = 1e-6f;

/// The exponential as the formulas' programs compute it (engine/semantics/polynomials.cpp), so that
/// equals are the same.
[[gnu::always_inline]] inline float exponential(float x) {
  x = 89 < x ? 89 : x;
  x = -104 > x ? -104 : x;
  const float shifted = __builtin_fmaf(x, 1.44269504088896341f, 0x1.8p23f), n = shifted - 0x1.8p23f;
  const float r = __builtin_fmaf(n, -0x1.efa39efp-25f, __builtin_fmaf(n, -0x1.62e42ep-1f, x));
  float p = __builtin_fmaf(1.382073387503624e-3f, r, 8.368677459657192e-3f);
  p = __builtin_fmaf(p, r, 4.166826605796814e-2f);
  p = __builtin_fmaf(p, r, 1.666652113199234e-1f);
  p = __builtin_fmaf(p, r, 4.999999403953552e-1f);
  p = __builtin_fmaf(__builtin_fmaf(p, r, 1.0f), r, 1.0f);
  const int32_t whole = std::bit_cast<int32_t>(shifted), half = whole >> 1;
  auto power = [](int32_t k) {
    return std::bit_cast<float>((static_cast<uint32_t>(k) << 23) + 0x3f800000u);
  };
  return p * power(half) * power(whole - half);
}

/// Elements of a row that are looked at together.
constexpr int64_t kBlock = 32;

/// The loops over a row, for the instruction sets below.
[[gnu::always_inline]] inline float largest_of(const float* x, int64_t n) {
  float m = -kInf;
#pragma omp simd reduction(max : m)
  for (int64_t k = 0; k < n; ++k) m = x[k] > m ? x[k] : m;
  return m;
}
/// How many elements, times `sign`, are at least `bound`; n below 2^31.
[[gnu::always_inline]] inline int32_t count_from(const float* x, int64_t n, float sign,
                                                 float bound) {
  int32_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t k = 0; k < n; ++k) count += sign * x[k] >= bound ? 1 : 0;
  return count;
}
/// Sum of e^(x - m); NaN where an element is.
[[gnu::always_inline]] inline double sum_exponentials(const float* x, int64_t n, float m) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < n; ++k) sum += static_cast<double>(exponential(x[k] - m));
  return sum;
}

struct Loops {
  float (*largest)(const float*, int64_t);
  int32_t (*count_from)(const float*, int64_t, float, float);
  double (*sum)(const float*, int64_t, float);
  float (*exponential)(float);
};

#define FERRULE_LOOPS(name, isa)                                                                   \
  __attribute__((target(isa))) float largest_##name(const float* x, int64_t n) {                   \
    return largest_of(x, n);                                                                       \
  }                                                                                                \
  __attribute__((target(isa))) int32_t count_##name(const float* x, int64_t n, float s, float b) { \
    return count_from(x, n, s, b);                                                                 \
  }                                                                                                \
  __attribute__((target(isa))) double sum_##name(const float* x, int64_t n, float m) {             \
    return sum_exponentials(x, n, m);                                                              \
  }                                                                                                \
  __attribute__((target(isa))) float exponential_##name(float x) { return exponential(x); }        \
  constexpr Loops k_##name = {largest_##name, count_##name, sum_##name, exponential_##name};

FERRULE_LOOPS(avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
FERRULE_LOOPS(avx2, "avx2,fma")

struct Ranked {
  float key = 0;  ///< sign times the operand, later times the result
  int64_t index = 0;
};
/// The better one in front: the larger key, then the smaller index.
bool before(const Ranked& a, const Ranked& b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}

class SoftmaxTopKKernel final : public Kernel {
 public:
  SoftmaxTopKKernel(const KernelCall& call, const SoftmaxTopK& s, bool wide)
      : loops_(wide ? k_avx512 : k_avx2),
        x_slot_(call.inputs[0].slot),
        value_slot_(s.values ? call.outputs[*s.values].slot : -1),
        index_slot_(s.indices ? call.outputs[*s.indices].slot : -1),
        n_(call.inputs[0].dims.back()),
        k_(s.k),
        form_(s.form),
        sign_(s.largest ? 1.0f : -1.0f) {
    if (call.inputs[0].constant) x_ = call.inputs[0].constant->data();
    rows_ = n_ ? call.inputs[0].numel() / n_ : 0;
    team_ = std::clamp<int64_t>(std::min(rows_, rows_ * n_ / kTopKGrain), 1, threads());
  }

  /// The selected of a row, and room for all that may be equal to the last of them.
  int64_t scratch_bytes() const override { return team_ * (k_ + n_) * int64_t{sizeof(Ranked)}; }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    if (value_slot_ >= 0) binder.cell(value_slot_, &values_);
    if (index_slot_ >= 0) binder.cell(index_slot_, &indices_);
    scratch_ = static_cast<Ranked*>(binder.scratch());
  }
  std::string text() const override {
    return &loops_ == &k_avx512 ? "softmax_topk:avx512" : "softmax_topk:avx2";
  }

  Status run() override {
    if (k_ == 0) return {};
    on_team(team_, [&](int me, int team) {
      for (int64_t r = rows_ * me / team; r < rows_ * (me + 1) / team; ++r)
        row(r, scratch_ + me * (k_ + n_));
    });
    return {};
  }

 private:
  using Form = SoftmaxTopK::Form;

  void row(int64_t r, Ranked* room) const {
    const float* x = static_cast<const float*>(x_) + r * n_;
    Ranked* best = select(x, room);
    if (!best) return nothing(r);
    const float m =
        sign_ > 0 ? std::min_element(best, best + k_, before)->key : loops_.largest(x, n_);
    const auto sum = static_cast<float>(loops_.sum(x, n_, m));
    if (std::isnan(sum)) return nothing(r);
    const float last = best->key, d = sign_ * last - m;
    const float bound = d > kFarBelow ? last - kClose * (16 - d) : -kInf;
    int64_t count = k_;
    if (loops_.count_from(x, n_, sign_, bound) > k_) {  // what was found is found again
      count = 0;
      for (int64_t j = 0; j < n_; ++j)
        if (sign_ * x[j] >= bound) room[count++] = {0, j};
    }
    const float log_sum = form_ == Form::log_softmax ? std::log(sum) : 0;
    for (int64_t j = 0; j < count; ++j)
      best[j].key = sign_ * result(x[best[j].index] - m, sum, log_sum);
    if (count == k_)
      std::sort(best, best + k_, before);
    else
      std::partial_sort(best, best + k_, best + count, before);
    for (int64_t j = 0; j < k_; ++j) give(r, j, sign_ * best[j].key, best[j].index);
  }

  float result(float d, float sum, float log_sum) const {
    if (form_ == Form::log_softmax) return d - log_sum;
    const float p = loops_.exponential(d) / sum;
    return form_ == Form::softmax ? p : std::log(p);
  }

  /// The k best of the operand as a heap whose first is the worst; null where NaN left fewer.
  Ranked* select(const float* x, Ranked* heap) const {
    int64_t have = 0;
    float above = -kInf;  // the least number that is better than the worst of the heap
    for (int64_t begin = 0; begin < n_; begin += kBlock) {
      const int64_t end = std::min(n_, begin + kBlock);
      if (have == k_ && loops_.count_from(x + begin, end - begin, sign_, above) == 0) continue;
      for (int64_t j = begin; j < end; ++j) {
        const Ranked c{sign_ * x[j], j};
        if (have < k_ && c.key == c.key) {
          heap[have++] = c;
          if (have == k_) std::make_heap(heap, heap + k_, before);
        } else if (have == k_ && c.key > heap->key) {
          std::pop_heap(heap, heap + k_, before);
          heap[k_ - 1] = c;
          std::push_heap(heap, heap + k_, before);
        }
      }
      if (have == k_) above = std::nextafter(heap->key, kInf);
    }
    return have == k_ ? heap : nullptr;
  }

  /// A row of which nothing but NaN comes: all are equal, the first are taken.
  void nothing(int64_t r) const {
    for (int64_t j = 0; j < k_; ++j) give(r, j, std::numeric_limits<float>::quiet_NaN(), j);
  }
  /// Results that nobody reads have no memory.
  void give(int64_t r, int64_t j, float value, int64_t index) const {
    if (values_) static_cast<float*>(values_)[r * k_ + j] = value;
    if (indices_) static_cast<int64_t*>(indices_)[r * k_ + j] = index;
  }

  const Loops& loops_;
  int x_slot_, value_slot_, index_slot_;
  int64_t n_, k_, rows_ = 0, team_ = 1;
  Form form_;
  float sign_;
  const void* x_ = nullptr;
  void* values_ = nullptr;
  void* indices_ = nullptr;
  Ranked* scratch_ = nullptr;
};

}  // namespace

Applicable<KernelPtr> make_softmax_topk(Context& context, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "softmax_topk", why);
  };
  const SoftmaxTopK s = softmax_topk_of(*call.roles);
  const Operand& x = call.inputs[s.x];
  if (x.dtype != DType::f32) return refuse(name(x.dtype));
  if (!x.lies(Layout::plain)) return refuse("another layout");
  if (x.dims.back() > std::numeric_limits<int32_t>::max())
    return refuse("a row of more than 2^31 elements");
  if (s.k < 0 || s.k > x.dims.back())
    return refuse(fmt::format("the first {} of {}", s.k, x.dims.back()));
  // A rule may bind what is no selection of the last axis: that many are written.
  std::vector<int64_t> made = x.dims;
  made.back() = s.k;
  for (const auto& slot : {s.values, s.indices})
    if (slot && call.outputs[*slot].dims != made) return refuse("results of other sizes");
  return std::make_unique<SoftmaxTopKKernel>(call, s,
                                             context.target && context.target->has_isa("avx512f"));
}

}  // namespace ferrule::cpu
