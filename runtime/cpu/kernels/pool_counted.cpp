#include "runtime/cpu/kernels/pool_counted.h"

#include <algorithm>

#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

class CountedPool final : public Kernel {
 public:
  CountedPool(KernelPtr pool, const KernelCall& call, std::vector<WindowFactor> factors)
      : pool_(std::move(pool)),
        factors_(std::move(factors)),
        y_slot_(call.outputs[0].slot),
        numel_(call.outputs[0].numel()) {
    const std::vector<int64_t> strides = call.outputs[0].strides();
    for (const WindowFactor& f : factors_)
      steps_.push_back({strides[f.axis], strides[f.axis] * call.outputs[0].dims[f.axis]});
  }
  int64_t scratch_bytes() const override { return pool_->scratch_bytes(); }
  void bind(Binder& binder) override {
    pool_->bind(binder);
    binder.cell(y_slot_, reinterpret_cast<void**>(&y_));
  }
  std::string text() const override { return pool_->text(); }
  Status run() override {
    const OneKernel one;  // the last places of an axis are few
    FERRULE_TRY(pool_->run());
    for (size_t k = 0; k < factors_.size(); ++k) {
      const auto [inner, outer] = steps_[k];
      parallel_for(numel_ / outer, std::max<int64_t>(1, kGrain / inner),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t o = begin; o < end; ++o)
                       multiply(y_ + o * outer + factors_[k].at * inner, inner, factors_[k].factor);
                   });
    }
    return {};
  }

 private:
  static constexpr int64_t kGrain = 8192;
  struct Steps {
    int64_t inner, outer;  ///< elements from one place along the axis to the next; from all of them
                           ///< to the next ones
  };
  static void multiply(float* y, int64_t n, float factor) {
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) y[k] *= factor;
  }

  KernelPtr pool_;
  std::vector<WindowFactor> factors_;
  std::vector<Steps> steps_;
  int y_slot_;
  int64_t numel_;
  float* y_ = nullptr;
};

}  // namespace

std::vector<WindowFactor> window_factors(const Window& w, const std::vector<int64_t>& in,
                                         const std::vector<int64_t>& out) {
  std::vector<WindowFactor> factors;
  for (size_t k = 0; k < w.kernel.size(); ++k) {
    const int64_t step = w.dilations[k] + 1, end = in[k + 2] + w.asked_end[k];
    for (int64_t at = 0; at < out[k + 2]; ++at) {
      const int64_t room =
          end - (at * w.strides[k] - w.pads_begin[k]);  // from the window's first element on
      const int64_t count = std::clamp<int64_t>((room + step - 1) / step, 1, w.kernel[k]);
      if (count != w.kernel[k])
        factors.push_back({k + 2, at, static_cast<float>(w.kernel[k]) / static_cast<float>(count)});
    }
  }
  return factors;
}

KernelPtr with_factors(KernelPtr pool, const KernelCall& call, std::vector<WindowFactor> factors) {
  return std::make_unique<CountedPool>(std::move(pool), call, std::move(factors));
}

}  // namespace ferrule::cpu
