// GridSample over plain f32 images with 1 to 3 spatial axes. The pixels that a point of the grid
// reads and their weights are worked out once, for a block of points, and serve all channels.
// source: https://onnx.ai/onnx/operators/onnx__GridSample.html
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "engine/base/diagnostics.h"
#include "engine/semantics/resampling.h"
#include "runtime/cpu/kernel.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kPoints = 64;  ///< of a block: what they read of one channel stays in the cache
constexpr size_t kMostAxes = 3, kMostTaps = 4;

/// The sums of what a block's points read of a channel; `pixels`: how many each reads. What has
/// weight 0 takes no part: it may be infinite.
__attribute__((target_clones("avx512f", "avx2", "default"))) void sample(
    const float* x, int64_t pixels, const float* weight, const int32_t* pixel, float* sums) {
  for (int64_t p = 0; p < kPoints; ++p) sums[p] = 0;
  for (int64_t n = 0; n < pixels; ++n, weight += kPoints, pixel += kPoints)
    for (int64_t p = 0; p < kPoints; ++p) {
      const float v = x[pixel[p]] * weight[p];
      sums[p] += weight[p] != 0 ? v : 0.0F;
    }
}

/// Along one axis, by point: the two pixels that are read, and their weights, as GridSampling::read
/// says for linear sampling; 0 and pixel 0 where there is none.
struct LinearTaps {
  double weight[2][kPoints];
  int32_t at[2][kPoints];
};
/// `grid`: the points' coordinates, `step` apart.
__attribute__((target_clones("avx512f", "avx2", "default"))) void linear_taps(
    const float* grid, int64_t step, int64_t points, int64_t size, bool corners, bool border,
    LinearTaps& taps) {
  const auto d = static_cast<double>(size);
  for (int64_t p = 0; p < points; ++p) {
    const double g = grid[p * step];
    double v = corners ? (g + 1) / 2 * (d - 1) : ((g + 1) * d - 1) / 2;
    v = std::fabs(v) <= std::numeric_limits<double>::max() ? v : -1e9;
    v = v < -1e9 ? -1e9 : v > 1e9 ? 1e9 : v;
    if (border) v = v < 0 ? 0 : v > d - 1 ? d - 1 : v;
    const double low = std::floor(v), high = low + 1;
    const bool has_low = low >= 0 && low < d, has_high = high >= 0 && high < d;
    taps.weight[0][p] = has_low ? 1 - std::fabs(v - low) : 0;
    taps.weight[1][p] = has_high ? 1 - std::fabs(v - high) : 0;
    taps.at[0][p] = has_low ? static_cast<int32_t>(low) : 0;
    taps.at[1][p] = has_high ? static_cast<int32_t>(high) : 0;
  }
}

class GridSample final : public Kernel {
 public:
  GridSample(const KernelCall& call, const GridSampling& how)
      : how_(how), axes_(call.inputs[0].dims.size() - 2), channels_(call.inputs[0].dims[1]) {
    const Operand &x = call.inputs[0], &grid = call.inputs[1];
    for (size_t k = axes_; k-- > 0;) {
      sizes_[k] = x.dims[k + 2];
      apart_[k] = plane_;
      plane_ *= sizes_[k];
      points_ *= grid.dims[k + 1];
      pixels_ *= static_cast<int64_t>(how_.taps());
    }
    blocks_ = (points_ + kPoints - 1) / kPoints;
    images_ = x.dims[0];
    team_ = std::clamp<int64_t>(images_ * blocks_, 1, threads());
    slots_ = {x.slot, grid.slot, call.outputs[0].slot};
    if (x.constant) x_ = x.constant->data();
    if (grid.constant) grid_ = grid.constant->data();
  }
  int64_t scratch_bytes() const override { return team_ * bytes_of_a_thread(); }
  void bind(Binder& binder) override {
    if (slots_[0] >= 0) binder.cell(slots_[0], &x_);
    if (slots_[1] >= 0) binder.cell(slots_[1], &grid_);
    binder.cell(slots_[2], &y_);
    scratch_ = static_cast<char*>(binder.scratch());
  }
  std::string text() const override { return "grid_sample"; }

  Status run() override {
    on_team(team_, [&](int me, int team) {
      float* weights = reinterpret_cast<float*>(scratch_ + me * bytes_of_a_thread());
      auto* pixels = reinterpret_cast<int32_t*>(weights + pixels_ * kPoints);
      const int64_t all = images_ * blocks_;
      for (int64_t k = all * me / team; k < all * (me + 1) / team; ++k) {
        const int64_t image = k / blocks_, first = k % blocks_ * kPoints;
        const int64_t points = std::min(kPoints, points_ - first);
        if (axes_ == 2 && how_.mode == GridSampling::Mode::linear &&
            how_.padding != GridSampling::Padding::reflection)
          where_linear(image * points_ + first, points, weights, pixels);
        else
          where(image * points_ + first, points, weights, pixels);
        for (int64_t c = 0; c < channels_; ++c) {
          const int64_t plane = image * channels_ + c;
          float sums[kPoints];
          sample(static_cast<const float*>(x_) + plane * plane_, pixels_, weights, pixels, sums);
          std::copy_n(sums, points, static_cast<float*>(y_) + plane * points_ + first);
        }
      }
    });
    return {};
  }

 private:
  int64_t bytes_of_a_thread() const {
    return pixels_ * kPoints * static_cast<int64_t>(sizeof(float) + sizeof(int32_t));
  }

  /// The same as where(), for images.
  void where_linear(int64_t first, int64_t points, float* weights, int32_t* pixels) const {
    const bool border = how_.padding == GridSampling::Padding::border;
    const float* at = static_cast<const float*>(grid_) + first * 2;
    LinearTaps x{}, y{};
    linear_taps(at, 2, points, sizes_[1], how_.corners, border, x);
    linear_taps(at + 1, 2, points, sizes_[0], how_.corners, border, y);
    for (int n = 0; n < 4; ++n)
      for (int64_t p = 0; p < kPoints; ++p) {
        weights[n * kPoints + p] = static_cast<float>(x.weight[n & 1][p] * y.weight[n >> 1][p]);
        pixels[n * kPoints + p] =
            static_cast<int32_t>(y.at[n >> 1][p] * apart_[0]) + x.at[n & 1][p];
      }
  }

  /// Pixel by pixel, those of all points side by side; a pixel outside has weight 0, as have those
  /// of the points that a last block lacks.
  void where(int64_t first, int64_t points, float* weights, int32_t* pixels) const {
    if (points < kPoints) {
      std::fill_n(weights, pixels_ * kPoints, 0.0F);
      std::fill_n(pixels, pixels_ * kPoints, 0);
    }
    std::array<std::array<ResizeTap, kMostTaps>, kMostAxes> taps;
    const size_t bits = how_.taps() / 2;  // that number an axis's taps: 1, 2 or 4
    for (int64_t p = 0; p < points; ++p) {
      const float* at =
          static_cast<const float*>(grid_) + (first + p) * static_cast<int64_t>(axes_);
      for (size_t k = 0; k < axes_; ++k)  // x comes first in the grid: the last axis
        how_.read(sizes_[k], at[axes_ - 1 - k], std::span(taps[k]).first(how_.taps()));
      for (int64_t n = 0; n < pixels_; ++n) {
        double w = 1;
        int64_t pixel = 0;
        auto rest = static_cast<size_t>(n);
        for (size_t k = axes_; k-- > 0; rest >>= bits) {
          const ResizeTap& tap = taps[k][rest & (how_.taps() - 1)];
          w = tap.at < 0 ? 0 : w * tap.weight;
          pixel += std::max<int64_t>(tap.at, 0) * apart_[k];
        }
        weights[n * kPoints + p] = static_cast<float>(w);
        pixels[n * kPoints + p] = static_cast<int32_t>(pixel);
      }
    }
  }

  GridSampling how_;
  size_t axes_;
  int64_t channels_, images_ = 0, blocks_ = 0, team_ = 1;
  int64_t plane_ = 1, points_ = 1, pixels_ = 1;  ///< of a channel; of an image; of a point
  std::array<int64_t, kMostAxes> sizes_{}, apart_{};
  std::array<int, 3> slots_{};
  const void *x_ = nullptr, *grid_ = nullptr;
  void* y_ = nullptr;
  char* scratch_ = nullptr;
};

}  // namespace

Applicable<KernelPtr> make_grid_sample(Context&, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "grid_sample", why);
  };
  const Operand &x = call.inputs[0], &grid = call.inputs[1];
  for (const Operand* o : {&x, &grid, &call.outputs[0]})
    if (o->dtype != DType::f32 || !o->lies(Layout::plain))
      return refuse("operands of another form");
  const auto how = GridSampling::of(call.node->attrs);
  const auto rank = static_cast<size_t>(x.rank());
  if (!how || rank < 3 || rank > 2 + kMostAxes) return refuse("a mode or a number of axes");
  int64_t plane = 1;
  for (size_t k = 2; k < rank; ++k) plane *= x.dims[k];
  if (plane == 0 || plane > std::numeric_limits<int32_t>::max()) return refuse("the image's size");
  return std::make_unique<GridSample>(call, *how);
}

}  // namespace ferrule::cpu
