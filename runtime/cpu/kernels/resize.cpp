// Resize, nearest and linear, over the spatial axes of an image. Positions and weights are tables
// worked out once from the operator's definition, so every coordinate mode costs the same; pixels
// are runs of `channels` floats (channels-last) or single floats (plain). source:
// https://onnx.ai/onnx/operators/onnx__Resize.html
#include <array>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "engine/semantics/resampling.h"
#include "runtime/cpu/kernel.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// Where an output position of one axis reads: two neighbours and the weight of the second.
struct Tap {
  int64_t low = 0, high = 0;
  float weight = 0;
};

std::vector<Tap> taps_of(const Resampling& how, const ResizeAxis& a) {
  std::vector<Tap> taps;
  for (int64_t k = 0; k < a.out; ++k) {
    if (how.keeps(a)) {
      taps.push_back({k, k, 0});
      continue;
    }
    const std::vector<ResizeTap> read = resize_taps(a, how, k);
    taps.push_back({read.front().at, read.back().at,
                    read.size() > 1 ? static_cast<float>(read.back().weight) : 0});
  }
  return taps;
}

class Resize final : public Kernel {
 public:
  Resize(const KernelCall& call, std::array<ResizeAxis, 3> axes, const Resampling& how)
      : linear_(how.mode == "linear"), axes_(axes) {
    const Operand &x = call.inputs[0], &y = call.outputs[0];
    channels_last_ = x.lies(Layout::channels_last) && y.lies(Layout::channels_last);
    images_ = channels_last_ ? x.dims[0] : x.dims[0] * x.dims[1];
    run_ = channels_last_ ? x.dims[1] : 1;
    for (size_t k = 0; k < 3; ++k) taps_[k] = taps_of(how, axes[k]);
    x_slot_ = x.slot;
    y_slot_ = y.slot;
    if (x.constant) x_ = x.constant->data();
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
  }
  std::string text() const override { return linear_ ? "resize_linear" : "resize_nearest"; }

  Status run() override {
    const int64_t rows = axes_[0].out * axes_[1].out, row = axes_[2].out * run_;
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row));
    parallel_for(images_ * rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t d = k / axes_[1].out % axes_[0].out, h = k % axes_[1].out;
        const float* image = static_cast<const float*>(x_) +
                             k / rows * axes_[0].in * axes_[1].in * axes_[2].in * run_;
        float* y = static_cast<float*>(y_) + k * row;
        if (linear_)
          linear_row(image, taps_[0][static_cast<size_t>(d)], taps_[1][static_cast<size_t>(h)], y);
        else
          nearest_row(image, taps_[0][static_cast<size_t>(d)], taps_[1][static_cast<size_t>(h)], y);
      }
    });
    return {};
  }

 private:
  const float* row_at(const float* image, int64_t d, int64_t h) const {
    return image + (d * axes_[1].in + h) * axes_[2].in * run_;
  }

  void nearest_row(const float* image, const Tap& d, const Tap& h, float* y) const {
    const float* x = row_at(image, d.low, h.low);
    if (run_ == 1) {
      for (const Tap& t : taps_[2]) *y++ = x[t.low];
      return;
    }
    for (const Tap& t : taps_[2]) {
      std::memcpy(y, x + t.low * run_, static_cast<size_t>(run_) * sizeof(float));
      y += run_;
    }
  }

  /// Sum over the corners of the cell; corners of weight zero are not read, so that they cannot
  /// bring in NaN.
  void linear_row(const float* image, const Tap& d, const Tap& h, float* y) const {
    struct Corner {
      const float* row;
      float weight;
    } corners[4];
    int count = 0;
    for (int i = 0; i < 4; ++i) {
      const bool far_d = i & 2, far_h = i & 1;
      const float weight = (far_d ? d.weight : 1 - d.weight) * (far_h ? h.weight : 1 - h.weight);
      if (weight != 0)
        corners[count++] = {row_at(image, far_d ? d.high : d.low, far_h ? h.high : h.low), weight};
    }
    for (const Tap& t : taps_[2]) {
      for (int i = 0; i < count; ++i) {
        const float *low = corners[i].row + t.low * run_, *high = corners[i].row + t.high * run_;
        const float a = corners[i].weight * (1 - t.weight), b = corners[i].weight * t.weight;
        if (i == 0 && b == 0)
          for (int64_t c = 0; c < run_; ++c) y[c] = a * low[c];
        else if (i == 0)
          for (int64_t c = 0; c < run_; ++c) y[c] = a * low[c] + b * high[c];
        else if (b == 0)
          for (int64_t c = 0; c < run_; ++c) y[c] += a * low[c];
        else
          for (int64_t c = 0; c < run_; ++c) y[c] += a * low[c] + b * high[c];
      }
      y += run_;
    }
  }

  bool linear_, channels_last_ = false;
  std::array<ResizeAxis, 3> axes_;
  std::vector<Tap> taps_[3];
  int64_t images_ = 0, run_ = 1;
  int x_slot_ = -1, y_slot_ = -1;
  const void* x_ = nullptr;
  void* y_ = nullptr;
};

}  // namespace

Applicable<KernelPtr> make_resize(Context&, const KernelCall& call) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), call.node->op.text(), why);
  };
  if (x.dtype != DType::f32) return refuse(name(x.dtype));
  const Resampling how = Resampling::of(call.node->attrs);
  if ((how.mode != "nearest" && how.mode != "linear") || how.antialias || how.exclude_outside ||
      how.coordinates == "tf_crop_and_resize")
    return refuse("this mode");
  if (x.rank() < 3 || x.rank() > 5 || x.dims[0] != y.dims[0] || x.dims[1] != y.dims[1])
    return refuse("these axes");
  if (!x.lies(y.layout) && !y.lies(x.layout)) return refuse("two layouts");
  std::array<ResizeAxis, 3> axes;
  axes.fill({1, 1});
  const size_t spatial = x.dims.size() - 2;
  const Operand* scales =
      call.inputs.size() > 2 && call.inputs[2].constant ? &call.inputs[2] : nullptr;
  for (size_t k = 0; k < spatial; ++k) {
    ResizeAxis& a = axes[3 - spatial + k];
    a.in = x.dims[k + 2];
    a.out = y.dims[k + 2];
    a.scale = static_cast<double>(a.out) / static_cast<double>(a.in);
    if (scales && scales->numel() == x.rank())
      a.scale = scales->constant->at_f64(static_cast<int64_t>(k) + 2);
  }
  return std::make_unique<Resize>(call, axes, how);
}

}  // namespace ferrule::cpu
