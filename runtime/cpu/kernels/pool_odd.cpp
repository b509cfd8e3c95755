#include "runtime/cpu/kernels/pool_odd.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// Without its sign, what is not finite is at least infinity as bits, too. bf16 is the upper half
/// of f32.
__attribute__((target_clones("avx512f", "avx2", "default"))) bool any_odd(const uint32_t* x,
                                                                          int64_t n) {
  uint32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t k = 0; k < n; ++k) most = std::max(most, x[k] & 0x7fffffffu);
  return most >= 0x7f800000u;
}
__attribute__((target_clones("avx2", "default"))) bool any_odd(const uint16_t* x, int64_t n) {
  uint16_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t k = 0; k < n; ++k) most = std::max(most, static_cast<uint16_t>(x[k] & 0x7fffu));
  return most >= 0x7f80u;
}
float number(uint32_t bits) { return std::bit_cast<float>(bits); }
float number(uint16_t bits) { return bf16_to_float(bits); }

template <class Bits>
class OddPool final : public Kernel {
 public:
  using Dims = std::vector<int64_t>;
  OddPool(KernelPtr pool, const KernelCall& call, Window window)
      : pool_(std::move(pool)),
        w_(std::move(window)),
        x_slot_(call.inputs[0].slot),
        y_slot_(call.outputs[0].slot),
        in_(call.inputs[0].dims),
        out_(call.outputs[0].dims),
        x_strides_(call.inputs[0].strides()),
        y_strides_(call.outputs[0].strides()) {
    if (call.inputs[0].constant) x_ = static_cast<const Bits*>(call.inputs[0].constant->data());
    // Rows of larger plain images lie apart, plane by plane; all else is one run.
    apart_ = call.inputs[0].plane;
    runs_ = apart_ ? in_[0] * in_[1] : 1;
    run_ = runs_ ? call.inputs[0].numel() / runs_ : 0;
  }
  int64_t scratch_bytes() const override { return pool_->scratch_bytes(); }
  void bind(Binder& binder) override {
    pool_->bind(binder);
    if (x_slot_ >= 0) binder.cell(x_slot_, reinterpret_cast<const void**>(&x_));
    binder.cell(y_slot_, reinterpret_cast<void**>(&y_));
  }
  std::string text() const override { return pool_->text(); }
  Status run() override {
    const OneKernel one;  // the image that is looked at is in the cache
    FERRULE_TRY(pool_->run());
    std::atomic<bool> found{false};
    for (int64_t r = 0; r < runs_; ++r)
      parallel_for(run_, 1 << 14, [&](int64_t begin, int64_t end) {
        if (any_odd(x_ + r * apart_ + begin, end - begin)) found = true;
      });
    if (!found) return {};
    Dims at(in_.size(), 0), result(in_.size(), 0);
    do {
      if (any_odd(x_ + position(at, x_strides_), 1)) reach(at, 2, result);
    } while (next(at, in_));
    return {};
  }

 private:
  static int64_t position(const Dims& at, const Dims& strides) {
    int64_t p = 0;
    for (size_t a = 0; a < at.size(); ++a) p += at[a] * strides[a];
    return p;
  }
  static bool next(Dims& at, const Dims& dims) {
    for (size_t a = at.size(); a-- > 0;) {
      if (++at[a] < dims[a]) return true;
      at[a] = 0;
    }
    return false;
  }
  /// The results along `axis`, and the axes behind it, whose windows hold the element, again.
  void reach(const Dims& at, size_t axis, Dims& result) {
    if (axis == at.size()) {
      result[0] = at[0], result[1] = at[1];
      y_[position(result, y_strides_)] = maximum(result);
      return;
    }
    const size_t k = axis - 2;
    for (int64_t t = 0; t < w_.kernel[k]; ++t) {
      const int64_t first = at[axis] + w_.pads_begin[k] - t * (w_.dilations[k] + 1);
      result[axis] = first / w_.strides[k];
      if (first >= 0 && first % w_.strides[k] == 0 && result[axis] < out_[axis])
        reach(at, axis + 1, result);
    }
  }
  Bits maximum(const Dims& result) const {
    Dims tap(w_.kernel.size(), 0), at = result;
    Bits best{};
    bool any = false;
    do {
      bool inside = true;
      for (size_t k = 0; k < tap.size(); ++k) {
        at[k + 2] =
            result[k + 2] * w_.strides[k] - w_.pads_begin[k] + tap[k] * (w_.dilations[k] + 1);
        inside = inside && at[k + 2] >= 0 && at[k + 2] < in_[k + 2];
      }
      if (!inside) continue;
      const Bits x = x_[position(at, x_strides_)];
      if (!any || number(x) > number(best) || std::isnan(number(x))) best = x;
      any = true;
    } while (next(tap, w_.kernel));
    return best;
  }

  KernelPtr pool_;
  Window w_;
  int x_slot_, y_slot_;
  Dims in_, out_, x_strides_, y_strides_;
  int64_t runs_ = 1, run_ = 0, apart_ = 0;
  const Bits* x_ = nullptr;
  Bits* y_ = nullptr;
};

}  // namespace

KernelPtr with_odd_elements(KernelPtr pool, const KernelCall& call, Window window) {
  if (call.inputs[0].dtype == DType::f32)
    return std::make_unique<OddPool<uint32_t>>(std::move(pool), call, std::move(window));
  return std::make_unique<OddPool<uint16_t>>(std::move(pool), call, std::move(window));
}

}  // namespace ferrule::cpu
