// DynamicQuantizeLinear: the range of a tensor, and its elements as 8 bits within it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "runtime/cpu/kernel.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kGrain = 32768;  ///< elements a thread at least
constexpr int kLanes = 16;         ///< loops of a known length become vectors

struct Bounds {
  float low = 0, high = 0;  ///< 0 is always within
  void take(float l, float h) { low = std::min(low, l), high = std::max(high, h); }
};

/// NaN is not taken, as in the interpreter.
__attribute__((target_clones("avx512f", "avx2", "default"))) Bounds bounds(const float* x,
                                                                           int64_t n) {
  float low[kLanes] = {}, high[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes)
    for (int i = 0; i < kLanes; ++i) {
      const float v = x[k + i];
      low[i] = v < low[i] ? v : low[i];
      high[i] = v > high[i] ? v : high[i];
    }
  Bounds out;
  for (int i = 0; i < kLanes; ++i) out.take(low[i], high[i]);
  for (; k < n; ++k) out.take(x[k], x[k]);
  return out;
}

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Words32 __attribute__((vector_size(4 * kLanes)));
typedef uint8_t Bytes8 __attribute__((vector_size(kLanes)));

/// Rounded half to even, then moved and saturated; NaN is 0. Written in vectors: of such a loop the
/// compiler makes none.
__attribute__((target_clones("avx512f", "avx2", "default"))) void quantize(const float* x,
                                                                           uint8_t* y, int64_t n,
                                                                           float scale,
                                                                           float zero) {
  constexpr float kToInteger = 12582912;  // 1.5 · 2^23: adding it leaves no fraction
  const auto some = [&](int64_t k, auto count) __attribute__((always_inline)) {
    Floats v{};
    std::memcpy(&v, x + k, count * sizeof(float));
    v /= scale;
    v = v == v ? v : Floats{};
    v = v > -512 ? v : Floats{} - 512;  // beyond it all saturates
    v = v < 512 ? v : Floats{} + 512;
    v = (v + kToInteger) - kToInteger + zero;
    v = v > 0 ? v : Floats{};
    v = v < 255 ? v : Floats{} + 255;
    const Bytes8 bytes = __builtin_convertvector(__builtin_convertvector(v, Words32), Bytes8);
    std::memcpy(y + k, &bytes, count);
  };
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) some(k, std::integral_constant<size_t, kLanes>());
  if (k < n) some(k, static_cast<size_t>(n - k));
}

class DynamicQuantize final : public Kernel {
 public:
  explicit DynamicQuantize(const KernelCall& call)
      : n_(call.inputs[0].numel()), x_slot_(call.inputs[0].slot) {
    for (size_t k = 0; k < call.outputs.size(); ++k) slots_[k] = call.outputs[k].slot;
  }
  void bind(Binder& binder) override {
    binder.cell(x_slot_, &x_);
    for (int k = 0; k < 3; ++k)
      if (slots_[k] >= 0) binder.cell(slots_[k], &out_[k]);
  }
  std::string text() const override { return "dynamic quantize"; }

  Status run() override {
    const auto* x = static_cast<const float*>(x_);
    Bounds all;
    std::mutex one_at_a_time;
    parallel_for(n_, kGrain, [&](int64_t begin, int64_t end) {
      const Bounds part = bounds(x + begin, end - begin);
      const std::lock_guard lock(one_at_a_time);
      all.take(part.low, part.high);
    });
    const float scale = (all.high - all.low) / 255.0f;
    const float middle = std::nearbyint(std::clamp(-all.low / scale, 0.0f, 255.0f));
    const float zero = scale == 0 || std::isnan(middle) ? 0 : middle;
    if (auto* y = static_cast<uint8_t*>(out_[0]))
      parallel_for(n_, kGrain, [&](int64_t begin, int64_t end) {
        quantize(x + begin, y + begin, end - begin, scale == 0 ? 1 : scale, zero);
      });
    if (out_[1]) *static_cast<float*>(out_[1]) = scale;
    if (out_[2]) *static_cast<uint8_t*>(out_[2]) = static_cast<uint8_t>(zero);
    return {};
  }

 private:
  int64_t n_;
  int x_slot_, slots_[3] = {-1, -1, -1};
  const void* x_ = nullptr;
  void* out_[3] = {};
};

}  // namespace

Applicable<KernelPtr> make_dynamic_quantize(Context&, const KernelCall& call) {
  const Operand& x = call.inputs[0];
  if (x.dtype != DType::f32 || !x.lies(Layout::plain) || x.slot < 0)
    return not_applicable(escape(call.layer), call.node->op.text(), "another type or layout");
  for (const Operand& o : call.outputs)
    if (o.present() && !o.lies(Layout::plain))
      return not_applicable(escape(call.layer), call.node->op.text(), "another layout");
  return std::make_unique<DynamicQuantize>(call);
}

}  // namespace ferrule::cpu
