// Convolutions as products of pixels and filters, where a window is one run of memory: 1x1 ones,
// whose image and result may be slices of larger ones, which the library's kernels do not take, and
// windows along a line. Long sums are added in parts, which rounds less than the library's chains.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "runtime/cpu/kernels/product.h"
#include "runtime/cpu/kernels/vector_tail.h"
#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

using namespace product;

constexpr int64_t kMostBorders = 64;  // windows of a line that are copied because of pads

auto refuse(const KernelCall& call, std::string_view why) {
  return not_applicable(escape(call.layer), "product", why);
}

/// Sizes and window; a line that stands upright is laid down.
Applicable<Shape> sizes_of(const KernelCall& call) {
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  const bool image = x.rank() == 4;
  FERRULE_ASSIGN(Window window,
                 window_of(call, x.dims, y.dims, {w.dims.begin() + 2, w.dims.end()}));
  Shape s;
  s.images = x.dims[0], s.k = y.dims[1], s.w = x.dims.back(), s.ow = y.dims.back();
  s.h = s.oh = 1;
  int64_t kernel_h = 1, pad_h = 0, end_h = 0;
  if (image) {
    s.h = x.dims[2], s.oh = y.dims[2], s.stride_h = window.strides[0];
    kernel_h = window.kernel[0], pad_h = window.pads_begin[0], end_h = window.pads_end[0];
  }
  s.stride_w = window.strides.back(), s.taps = window.kernel.back();
  s.pad = window.pads_begin.back();
  int64_t end_w = window.pads_end.back(), dilation = window.dilations.back();
  if (image && s.w == 1 && s.taps == 1) {
    std::swap(s.h, s.w), std::swap(s.oh, s.ow), std::swap(s.stride_h, s.stride_w);
    std::swap(kernel_h, s.taps), std::swap(pad_h, s.pad), std::swap(end_h, end_w);
    dilation = window.dilations[0];
  }
  if (kernel_h != 1 || (s.taps > 1 && dilation != 0))
    return refuse(call, "windows of several runs");
  if (pad_h != 0 || end_h > 0 || s.pad < 0 || (s.taps == 1 && (s.pad != 0 || end_w > 0)))
    return refuse(call, "pads");
  s.left = std::min(s.ow, parts(s.pad, s.stride_w));
  const int64_t whole = s.w + s.pad < s.taps ? 0 : (s.w + s.pad - s.taps) / s.stride_w + 1;
  s.right = std::clamp(whole, s.left, s.ow);
  return s;
}

Applicable<Shape> shape_of(const KernelCall& call) {
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  if (!w.constant || w.dtype != DType::f32)
    return refuse(call, "the weights are not constant numbers of type f32");
  for (const Operand* o : {&x, &y})
    if ((o->rank() != 3 && o->rank() != 4) || o->dtype != DType::f32 ||
        !o->lies(Layout::channels_last))
      return refuse(call, "not channels-last images of type f32");
  if (call.node->attrs.i("group", 1) != 1) return refuse(call, "groups");
  FERRULE_ASSIGN(Shape s, sizes_of(call));
  s.x_pixel = x.pixel(), s.y_pixel = y.pixel();
  if (s.x_pixel < 0 || s.y_pixel < 0) return refuse(call, "pixels that do not lie at one distance");
  if (s.taps > 1 && s.x_pixel != x.dims[1]) return refuse(call, "pixels with gaps between them");
  s.c = s.taps * x.dims[1];
  if (s.rows() == 0 || s.k == 0 || s.c == 0) return refuse(call, "an empty image");
  if (s.borders() > kMostBorders) return refuse(call, "wide pads");
  // Beyond a line are zeros, which are multiplied: infinity would become NaN.
  if (s.borders() &&
      !std::ranges::all_of(w.constant->as<float>(), [](float v) { return std::isfinite(v); }))
    return refuse(call, "pads, and weights that are not finite");
  return s;
}

/// One call of `visit`(weight of the model, of U) for each weight, on all threads. The model's are
/// [output channel, input channel, tap].
template <class Visit>
void each_weight(const Shape& s, int lanes, Visit&& visit) {
  const std::vector<int64_t> blocks = channel_blocks(parts(s.k, lanes));
  const int64_t channels = s.c / s.taps;
  parallel_for(static_cast<int64_t>(blocks.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    for (auto b = static_cast<size_t>(begin); b < static_cast<size_t>(end); ++b) {
      const int64_t first = blocks[b] * lanes, width = (blocks[b + 1] - blocks[b]) * lanes,
                    count = std::min(width, s.k - first);
      // In squares, so that neither side is far from what was touched before.
      for (int64_t from = 0; from < s.c; from += 16)
        for (int64_t k = 0; k < count; ++k)
          for (int64_t c = from; c < std::min(from + 16, s.c); ++c)
            visit((first + k) * s.c + c % channels * s.taps + c / channels,
                  first * s.c + c * width + k);
    }
  });
}

/// What nearly all tails begin with is done where the sums are; the rest step by step.
void take_tail(std::span<const Step> steps, Tensors& t) {
  if (!steps.empty() && steps[0].kind == Step::Kind::add &&
      steps[0].operand == Step::Operand::full) {
    t.addend = steps[0].data;
    steps = steps.subspan(1);
  }
  if (!steps.empty() && (steps[0].kind == Step::Kind::relu || steps[0].kind == Step::Kind::clip)) {
    const bool relu = steps[0].kind == Step::Kind::relu;
    t.low = relu ? 0 : steps[0].alpha;
    if (!relu) t.high = steps[0].beta;
    steps = steps.subspan(1);
  }
  t.steps = steps.data();
  t.count = static_cast<int>(steps.size());
}

class ProductKernel final : public Kernel {
 public:
  ProductKernel(const Shape& s, const Functions& f)
      : s_(s), f_(f), blocks_(channel_blocks(parts(s.k, f.lanes))) {}

  Applicable<> build(const KernelCall& call) {
    FERRULE_TRY(tail_.build(call, "product"));
    x_slot_ = call.inputs[kX].slot, y_slot_ = call.outputs[0].slot;
    x_ = call.inputs[kX].constant ? call.inputs[kX].constant->data() : nullptr;
    if (const Operand* b = call.own_input(kB)) {
      bias_slot_ = b->slot;
      bias_ = b->constant ? b->constant->data() : nullptr;
    }
    return {};
  }

  void weights(Packed u) { u_ = std::move(u); }

  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    if (bias_slot_ >= 0) binder.cell(bias_slot_, &bias_);
    binder.cell(y_slot_, &y_);
    border_ = static_cast<float*>(binder.scratch());
    tail_.bind(binder);
  }
  int64_t scratch_bytes() const override { return s_.images * s_.oh * s_.borders() * s_.c * 4; }

  std::string text() const override {
    return fmt::format("product:{}", f_.lanes == 16 ? "avx512" : "avx2");
  }

  Status run() override {
    const OneKernel whole;
    if (s_.borders()) fill_borders();
    Tensors t{static_cast<const float*>(x_),
              border_,
              static_cast<const float*>(u_.data),
              static_cast<const float*>(bias_),
              nullptr,
              -std::numeric_limits<float>::infinity(),
              std::numeric_limits<float>::infinity(),
              nullptr,
              0,
              static_cast<float*>(y_)};
    take_tail(tail_.steps(), t);
    const int64_t groups = parts(s_.rows(), f_.rows),
                  blocks = static_cast<int64_t>(blocks_.size()) - 1;
    // Rows are the better split (a thread's pixels stay in its own cache), unless they leave
    // threads with nothing to do. Sums do not depend on it.
    if (imbalance(groups, threads()) < 1.03) {
      parallel_for(groups, 1, [&](int64_t begin, int64_t end) { rows(t, begin, end, 0, blocks); });
    } else {
      parallel_for(groups * blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin / groups; block * groups < end; ++block)
          rows(t, std::max(begin - block * groups, int64_t{0}),
               std::min(end - block * groups, groups), block, block + 1);
      });
    }
    return {};
  }

 private:
  /// The windows that reach beyond their line, with zeros there.
  void fill_borders() const {
    const int64_t channels = s_.x_pixel;
    float* to = border_;
    for (int64_t line = 0; line < s_.images * s_.oh; ++line) {
      const float* from = static_cast<const float*>(x_) +
                          (line / s_.oh * s_.h + line % s_.oh * s_.stride_h) * s_.w * channels;
      for (int64_t k = 0; k < s_.ow; ++k) {
        if (k == s_.left) k = s_.right;
        if (k == s_.ow) break;
        for (int64_t at = k * s_.stride_w - s_.pad, tap = 0; tap < s_.taps;
             ++tap, ++at, to += channels)
          if (at >= 0 && at < s_.w)
            std::copy_n(from + at * channels, channels, to);
          else
            std::fill_n(to, channels, 0.0f);
      }
    }
  }

  /// So many rows at a time that they and their results stay in the second cache while the weights
  /// pass.
  void rows(const Tensors& t, int64_t begin, int64_t end, int64_t block_begin,
            int64_t block_end) const {
    constexpr int64_t kBytes = 256 << 10;
    const int64_t most = std::max<int64_t>(4, kBytes / ((s_.c + s_.k) * 4 * f_.rows)),
                  pieces = parts(end - begin, most);
    for (int64_t p = 0; p < pieces; ++p) {
      const int64_t from = begin + (end - begin) * p / pieces,
                    to = begin + (end - begin) * (p + 1) / pieces;
      f_.run(s_, t, from * f_.rows, std::min(to * f_.rows, s_.rows()),
             blocks_[static_cast<size_t>(block_begin)], blocks_[static_cast<size_t>(block_end)]);
    }
  }

  Shape s_;
  const Functions& f_;
  std::vector<int64_t> blocks_;
  Packed u_;
  VectorTail tail_;
  float* border_ = nullptr;
  int x_slot_ = -1, bias_slot_ = -1, y_slot_ = -1;
  const void *x_ = nullptr, *bias_ = nullptr;
  void* y_ = nullptr;
};

}  // namespace

const product::Functions* product_functions(const Context& context) {
  const VectorIsa isa = vector_isa(context);
  return isa == VectorIsa::none ? nullptr : isa == VectorIsa::avx512 ? &kAvx512 : &kAvx2;
}

Applicable<KernelPtr> make_product(Context& context, const KernelCall& call) {
  FERRULE_ASSIGN(Shape s, shape_of(call));
  const Functions* f = product_functions(context);
  if (!f) return refuse(call, "neither AVX-512 nor AVX2 here");
  auto kernel = std::make_unique<ProductKernel>(s, *f);
  FERRULE_TRY(kernel->build(call));
  const Tensor& weights = *call.inputs[kW].constant;
  const int lanes = f->lanes;
  const int64_t floats = parts(s.k, lanes) * lanes * s.c;
  Packed u =
      context.library.derive(weights, fmt::format("product:{}", lanes), floats * 4, [&](void* to) {
        const float* from = weights.as<float>().data();
        std::fill_n(static_cast<float*>(to), floats, 0.0f);
        each_weight(s, lanes, [&](int64_t w, int64_t k) { static_cast<float*>(to)[k] = from[w]; });
      });
  context.library.turns_back(weights, u, [s, lanes](const void* from, void* to) {
    each_weight(s, lanes, [&](int64_t w, int64_t k) {
      static_cast<float*>(to)[w] = static_cast<const float*>(from)[k];
    });
  });
  kernel->weights(std::move(u));
  return kernel;
}

}  // namespace ferrule::cpu
