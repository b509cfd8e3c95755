// Pooling: windows through oneDNN (channels-last), global pooling by loops of our own over whole
// channels, all else by make_own_pool.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/cpu/kernels/pool_counted.h"
#include "runtime/cpu/kernels/pool_odd.h"
#include "runtime/cpu/kernels/pool_own.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// What the library's kernels, and ours that are made for whole channels, do not have.
bool needs_own(const KernelCall& call) {
  const Operand& x = call.inputs[0];
  const bool other_type = x.dtype == DType::f64 || x.dtype == DType::i8 || x.dtype == DType::u8;
  return other_type || (call.outputs.size() > 1 && call.outputs[1].present()) ||
         (!x.lies(Layout::channels_last) && !x.plane);
}
/// Gaps in the windows, and windows in the pads alone.
bool unusual(const Window& w) {
  for (size_t k = 0; k < w.kernel.size(); ++k)
    if (w.dilations[k] > 0 || w.pads_begin[k] >= w.kernel[k] || w.asked_end[k] >= w.kernel[k])
      return true;
  return false;
}
Applicable<> check_pool(const KernelCall& call, bool known_type) {
  if (!known_type)
    return not_applicable(escape(call.layer), call.node->op.text(), name(call.inputs[0].dtype));
  return {};
}

/// acc[k] = acc[k] + x[k], or the larger one (NaN wins), over `pixels` pixels of `channels` floats.
__attribute__((target_clones("avx512f", "avx2", "default"))) void add_pixels(const float* x,
                                                                             int64_t pixels,
                                                                             int64_t channels,
                                                                             float* acc) {
  for (int64_t p = 0; p < pixels; ++p, x += channels) {
#pragma omp simd
    for (int64_t k = 0; k < channels; ++k) acc[k] += x[k];
  }
}
__attribute__((target_clones("avx512f", "avx2", "default"))) void max_pixels(const float* x,
                                                                             int64_t pixels,
                                                                             int64_t channels,
                                                                             float* acc) {
  for (int64_t p = 0; p < pixels; ++p, x += channels) {
#pragma omp simd
    for (int64_t k = 0; k < channels; ++k) acc[k] = x[k] > acc[k] || x[k] != x[k] ? x[k] : acc[k];
  }
}

/// Mean or maximum over all pixels of an image, [n, pixels, channels] in memory. Pixels are cut
/// into parts, the same ones whatever the number of threads, so that the result does not depend on
/// it.
class GlobalPool final : public Kernel {
 public:
  GlobalPool(const KernelCall& call, bool mean)
      : n_(call.inputs[0].dims[0]),
        channels_(call.inputs[0].dims[1]),
        mean_(mean),
        x_slot_(call.inputs[0].slot),
        y_slot_(call.outputs[0].slot) {
    pixels_ = n_ > 0 && channels_ > 0 ? call.inputs[0].numel() / (n_ * channels_) : 0;
    parts_ = std::clamp<int64_t>(pixels_ * channels_ / 8192, 1,
                                 std::min<int64_t>(16, std::max<int64_t>(1, pixels_)));
    if (call.inputs[0].constant) x_ = call.inputs[0].constant->data();
  }
  int64_t scratch_bytes() const override {
    return n_ * parts_ * channels_ * int64_t{sizeof(float)};
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
    sums_ = static_cast<float*>(binder.scratch());
  }
  std::string text() const override { return "global_pool"; }

  Status run() override {
    parallel_for(n_ * parts_, std::max<int64_t>(1, parts_ / 8), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) part(k / parts_, k % parts_, sums_ + k * channels_);
    });
    const auto pixels = static_cast<float>(pixels_);
    for (int64_t image = 0; image < n_; ++image) {
      float* sums = sums_ + image * parts_ * channels_;
      float* y = static_cast<float*>(y_) + image * channels_;
      if (mean_)
        add_pixels(sums + channels_, parts_ - 1, channels_, sums);
      else
        max_pixels(sums + channels_, parts_ - 1, channels_, sums);
      for (int64_t k = 0; k < channels_; ++k) y[k] = mean_ ? sums[k] / pixels : sums[k];
    }
    return {};
  }

 private:
  void part(int64_t image, int64_t index, float* sums) const {
    const int64_t begin = pixels_ * index / parts_, end = pixels_ * (index + 1) / parts_;
    const float* x = static_cast<const float*>(x_) + (image * pixels_ + begin) * channels_;
    std::fill_n(sums, channels_, mean_ ? 0.0f : -std::numeric_limits<float>::infinity());
    if (mean_)
      add_pixels(x, end - begin, channels_, sums);
    else
      max_pixels(x, end - begin, channels_, sums);
  }

  int64_t n_, channels_, pixels_ = 0, parts_ = 1;
  bool mean_;
  int x_slot_, y_slot_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
  float* sums_ = nullptr;
};

}  // namespace

Applicable<KernelPtr> make_global_pool(Context&, const KernelCall& call) {
  if (needs_own(call)) return make_own_pool(call);
  FERRULE_TRY(check_pool(call, call.inputs[0].dtype == DType::f32));
  return std::make_unique<GlobalPool>(call, call.work == Work::global_average_pool);
}

Applicable<KernelPtr> make_pool(Context& context, const KernelCall& call) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  FERRULE_ASSIGN(Window w, window_of(call, x.dims, y.dims, call.node->attrs.ints("kernel_shape")));
  if (needs_own(call) || unusual(w)) return make_own_pool(call);
  FERRULE_TRY(check_pool(call, computes(x.dtype)));
  auto algorithm = dnnl::algorithm::pooling_max;
  std::vector<WindowFactor> factors;
  if (call.work == Work::average_pool) {
    const bool include = call.node->attrs.i("count_include_pad") != 0;
    algorithm = include ? dnnl::algorithm::pooling_avg_include_padding
                        : dnnl::algorithm::pooling_avg_exclude_padding;
    if (include && y.numel() > 0) factors = window_factors(w, x.dims, y.dims);
    if (!factors.empty() && x.dtype != DType::f32)  // the result would be rounded twice
      return not_applicable(escape(call.layer), call.node->op.text(), name(x.dtype));
  }
  return guard(call, "pooling", [&]() -> Applicable<KernelPtr> {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::pooling_forward::primitive_desc desc(
        context.library.engine, dnnl::prop_kind::forward_inference, algorithm, image_desc(x),
        image_desc(y), w.strides, w.kernel, w.dilations, w.pads_begin, w.pads_end, attr);
    auto kernel =
        std::make_unique<Prepared>(context, dnnl::pooling_forward(desc), desc.impl_info_str());
    kernel->operand(DNNL_ARG_SRC, desc.src_desc(), x);
    kernel->argument(DNNL_ARG_DST, desc.dst_desc(), y.slot);
    kernel->scratchpad(desc.scratchpad_desc());
    if (algorithm == dnnl::algorithm::pooling_max)
      return with_odd_elements(std::move(kernel), call, w);
    if (!factors.empty()) return with_factors(std::move(kernel), call, std::move(factors));
    return kernel;
  });
}

}  // namespace ferrule::cpu
