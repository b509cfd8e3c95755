// Convolutions with few filters (masks, heat maps): the library's code, whose vectors hold filters,
// would leave most lanes empty. Each thread keeps the rows of the image that its window covers as
// planes, in a ring.
#include "runtime/cpu/kernels/few_filters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/cpu/kernels/vector_tail.h"
#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

using namespace few_filters;

constexpr int64_t kThreadProducts = 262144;  // below this much a thread is not worth waking
constexpr int64_t kMostRows = 64;            // of a window
constexpr int64_t kMostRingFloats = 1 << 22;
constexpr int64_t kMostStride = 8;  // every tap of a row has pixels to itself beyond it

const Functions* functions(const Context& context) {
  const VectorIsa isa = vector_isa(context);
  return isa == VectorIsa::none ? nullptr : isa == VectorIsa::avx512 ? &kAvx512 : &kAvx2;
}

/// An image of one or two spatial dimensions that lies channels-last.
bool is_row_or_image(const Operand& o) {
  return (o.rank() == 3 || o.rank() == 4) && o.dtype == DType::f32 && o.lies(Layout::channels_last);
}
int64_t height(const Operand& o) { return o.rank() == 4 ? o.dims[2] : 1; }

class FewFilters final : public Kernel {
 public:
  FewFilters(const Functions& f, const KernelCall& call, const Window& w) : f_(f) {
    const Operand &x = call.inputs[kX], &y = call.outputs[0];
    const bool image = x.rank() == 4;
    images_ = x.dims[0], height_ = height(x), filters_ = y.dims[1], out_height_ = height(y);
    out_width_ = y.dims.back();
    if (image) stride_ = w.strides[0], dilation_ = w.dilations[0] + 1, pad_top_ = w.pads_begin[0];
    s_.channels = x.dims[1];
    s_.window_rows = image ? w.kernel[0] : 1, s_.kernel = w.kernel.back();
    s_.y_pixel = y.pixel();
    x_row_ = x.dims.back() * x.pixel();
    window_reach_ = (s_.window_rows - 1) * dilation_ + 1;
    ring_rows_ = std::min(window_reach_, height_);
    x_slot_ = x.slot, y_slot_ = y.slot;
    cut(x, w.strides.back(), w.dilations.back() + 1, image ? w.pads_begin[1] : w.pads_begin[0]);
    const int64_t products = taps() * filters_ * width_;
    grain_ = std::max(kThreadProducts / std::max<int64_t>(1, products),
                      std::min(2 * window_reach_, out_height_));
  }

  Applicable<> build(Context& context, const KernelCall& call) {
    FERRULE_TRY(tail_.build(call, "few filters"));
    if (const Operand* b = call.own_input(kB)) {
      bias_slot_ = b->slot;
      bias_ = b->constant ? b->constant->data() : nullptr;
    }
    weights_ = context.library.derive(
        *call.inputs[kW].constant, "few_filters", taps() * filters_ * 4, [&](void* to) {
          const float* from = call.inputs[kW].constant->as<float>().data();
          auto* w = static_cast<float*>(to);
          for (int64_t r = 0; r < s_.window_rows; ++r)
            for (int64_t c = 0; c < s_.channels; ++c)
              for (int64_t t = 0; t < s_.kernel; ++t)
                for (int64_t f = 0; f < filters_; ++f)
                  *w++ = from[((f * s_.channels + c) * s_.window_rows + r) * s_.kernel + t];
        });
    return {};
  }

  int64_t ring_floats() const { return ring_rows_ * s_.channels * s_.plane; }
  int64_t scratch_bytes() const override { return threads() * ring_floats() * 4; }
  void bind(Binder& binder) override {
    binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
    if (bias_slot_ >= 0) binder.cell(bias_slot_, &bias_);
    ring_ = static_cast<float*>(binder.scratch());
    tail_.bind(binder);
  }
  std::string text() const override {
    return fmt::format("few_filters:{}", f_.lanes == 16 ? "avx512" : "avx2");
  }

  Status run() override {
    const std::vector<Step>& steps = tail_.steps();
    s_.taps = offsets_.data();
    const auto columns = static_cast<int64_t>(columns_.size());
    parallel_for(images_ * columns * out_height_, grain_, [&](int64_t begin, int64_t end) {
      float* ring = ring_ + parallel_thread() * ring_floats();
      int64_t loaded = 0;  // rows of the image before this one are in the ring, or not needed
      for (int64_t k = begin; k < end; ++k) {
        const int64_t row = k % out_height_, column = k / out_height_ % columns;
        if (row == 0) loaded = 0;
        part_of_row(steps, ring, k / out_height_ / columns, row, column, loaded);
      }
    });
    return {};
  }

 private:
  /// What a row of the image is to a part of the result's rows: the pixels whose numbers leave the
  /// same rest when divided by the stride lie side by side, so that a tap reads neighbours.
  struct Rest {
    StridedCopy copy;
    int64_t begin = 0, zeros_from = 0;  ///< of a plane: what is copied; zeros before and behind
  };

  int64_t taps() const { return s_.channels * s_.window_rows * s_.kernel; }
  float* ring_row(float* ring, int64_t row) const {
    return ring + row % ring_rows_ * s_.channels * s_.plane;
  }

  /// Cuts the rows of the result, so that the ring stays in the second cache and that there is
  /// something to do for all threads.
  void cut(const Operand& x, int64_t stride, int64_t dilation, int64_t pad) {
    constexpr int64_t kRingFloats = 1 << 15;
    const int64_t reach = (s_.kernel - 1) * dilation / stride + 1,
                  least = std::max<int64_t>(8 * f_.lanes, 2 * reach),
                  most = std::max(least, kRingFloats / (ring_rows_ * s_.channels * stride) - reach);
    int64_t count = parts(out_width_, most);
    if (images_ * out_height_ < 2 * threads())
      count = std::max(count, std::min<int64_t>(4 * threads(), out_width_ / least));
    width_ = up(parts(out_width_, std::max<int64_t>(1, count)), f_.lanes);
    int64_t rest_floats = up(width_ + reach, 16);
    if (rest_floats * stride % 1024 == 0) rest_floats += 16;  // planes in other sets of the cache
    s_.plane = rest_floats * stride;
    for (int64_t t = 0; t < s_.kernel; ++t)
      offsets_.push_back(t * dilation % stride * rest_floats + t * dilation / stride);
    const int64_t columns = x.dims.back(), pixel = x.pixel();
    for (int64_t at = 0; at < out_width_; at += width_) {
      std::vector<Rest>& rests = columns_.emplace_back();
      for (int64_t rest = 0; rest < stride; ++rest) {
        const int64_t first = at * stride - pad + rest;  // the column of the plane's first element
        const int64_t begin = first < 0 ? parts(-first, stride) : 0;
        const int64_t end =
            std::min(rest_floats, first < columns ? (columns - 1 - first) / stride + 1 : 0);
        Rest& r = rests.emplace_back();
        r.begin = rest * rest_floats + std::min(begin, rest_floats);
        r.zeros_from = r.begin + std::max<int64_t>(0, end - begin);
        if (begin < end)
          r.copy = StridedCopy({s_.channels, end - begin}, {1, stride * pixel}, {s_.plane, 1}, 4,
                               (first + begin * stride) * pixel, r.begin);
      }
    }
    rest_floats_ = rest_floats;
  }

  void load(float* to, const float* from, const std::vector<Rest>& rests) const {
    for (size_t k = 0; k < rests.size(); ++k) {
      const Rest& r = rests[k];
      const int64_t plane = static_cast<int64_t>(k) * rest_floats_;
      for (int64_t c = 0; c < s_.channels; ++c) {
        float* row = to + c * s_.plane;
        std::fill(row + plane, row + r.begin, 0.0f);
        std::fill(row + r.zeros_from, row + plane + rest_floats_, 0.0f);
      }
      r.copy.run(from, to, 0, r.copy.units());
    }
  }

  void part_of_row(const std::vector<Step>& steps, float* ring, int64_t image, int64_t row,
                   int64_t column, int64_t& loaded) const {
    const int64_t top = row * stride_ - pad_top_;
    const float* x = static_cast<const float*>(x_) + image * height_ * x_row_;
    loaded = std::max(loaded, top);
    for (const int64_t end = std::min(height_, top + window_reach_); loaded < end; ++loaded)
      load(ring_row(ring, loaded), x + loaded * x_row_, columns_[static_cast<size_t>(column)]);
    std::array<const float*, kMostRows> rows;
    for (int64_t r = 0; r < s_.window_rows; ++r) {
      const int64_t at = top + r * dilation_;
      rows[static_cast<size_t>(r)] = at < 0 || at >= height_ ? nullptr : ring_row(ring, at);
    }
    const int64_t from = column * width_, pixel = (image * out_height_ + row) * out_width_ + from;
    f_.run[filters_ - 1](s_, {rows.data(), static_cast<const float*>(weights_.data),
                              static_cast<const float*>(bias_), steps.data(),
                              static_cast<int>(steps.size()), std::min(width_, out_width_ - from),
                              pixel * filters_, static_cast<float*>(y_) + pixel * s_.y_pixel});
  }

  const Functions& f_;
  Shape s_;
  int64_t images_ = 0, height_ = 0, out_height_ = 0, out_width_ = 0, filters_ = 0, stride_ = 1,
          dilation_ = 1, pad_top_ = 0, x_row_ = 0, window_reach_ = 1, ring_rows_ = 1, grain_ = 1;
  int64_t width_ = 0, rest_floats_ = 0;  ///< of a part of a row; of the pixels with one rest
  std::vector<int64_t> offsets_;
  std::vector<std::vector<Rest>> columns_;  ///< by part of a row, then by rest
  VectorTail tail_;
  Packed weights_;
  int x_slot_ = -1, y_slot_ = -1, bias_slot_ = -1;
  const void *x_ = nullptr, *bias_ = nullptr;
  void* y_ = nullptr;
  float* ring_ = nullptr;
};

}  // namespace

Applicable<KernelPtr> make_few_filters(Context& context, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "few filters", why);
  };
  const Functions* f = functions(context);
  if (!f) return refuse("neither AVX-512 nor AVX2 here");
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  if (!is_row_or_image(x) || !is_row_or_image(y) || x.constant)
    return refuse("not channels-last images of f32");
  if (!w.constant || w.dtype != DType::f32)
    return refuse("the weights are not constant, or not f32");
  if (const Operand* b = call.own_input(kB); b && b->dtype != DType::f32) return refuse("the bias");
  if (y.dims[1] < 1 || y.dims[1] > kMostFilters || call.node->attrs.i("group", 1) != 1)
    return refuse("many filters, or groups");
  if (x.numel() == 0 || y.numel() == 0) return refuse("an empty operand");
  if (x.pixel() < 0 || y.pixel() < 0) return refuse("pixels that do not lie at one distance");
  FERRULE_ASSIGN(Window win, window_of(call, x.dims, y.dims, {w.dims.begin() + 2, w.dims.end()}));
  if (win.strides.back() > kMostStride) return refuse("a large stride along its rows");
  if (x.rank() == 4 && win.kernel[0] > kMostRows) return refuse("a high window");
  // Zeros that pad a row are multiplied.
  if (!std::ranges::all_of(w.constant->as<float>(), [](float v) { return std::isfinite(v); }))
    return refuse("weights that are not finite");
  auto kernel = std::make_unique<FewFilters>(*f, call, win);
  if (kernel->ring_floats() > kMostRingFloats) return refuse("too many rows of the image at once");
  FERRULE_TRY(kernel->build(context, call));
  return kernel;
}

bool few_filters_pay(const Context& context, const KernelCall& call) {
  const Functions* f = functions(context);
  const auto &w = call.inputs[kW].dims, &y = call.outputs[0].dims;
  if (!f || std::accumulate(w.begin() + 2, w.end(), int64_t{1}, std::multiplies<>()) < 3)
    return false;
  // Lanes in use: of vectors of filters against those of pixels.
  const int64_t filters = y[1], pixels = y.back();
  return 3 * filters * up(pixels, f->lanes) <= 2 * pixels * up(filters, f->lanes);
}

}  // namespace ferrule::cpu
