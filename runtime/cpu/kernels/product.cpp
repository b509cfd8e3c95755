// 1x1 convolutions as products of pixels and filters: image and result may be slices of larger
// ones, which the library's kernels do not take, and rows may be every second pixel.
#include <algorithm>
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

auto refuse(const KernelCall& call, std::string_view why) {
  return not_applicable(escape(call.layer), "product", why);
}

Applicable<Shape> shape_of(const KernelCall& call) {
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  if (!w.constant || w.dtype != DType::f32)
    return refuse(call, "the weights are not constant numbers of type f32");
  if (!is_image(x) || !is_image(y)) return refuse(call, "not channels-last images of type f32");
  if (w.dims[2] != 1 || w.dims[3] != 1 || call.node->attrs.i("group", 1) != 1)
    return refuse(call, "not 1x1, or groups");
  FERRULE_ASSIGN(Window window, window_of(call, x.dims, y.dims, {1, 1}));
  for (const auto& pads : {window.pads_begin, window.pads_end})
    if (std::ranges::any_of(pads, [](int64_t p) { return p > 0; })) return refuse(call, "pads");
  Shape s;
  s.images = x.dims[0], s.c = x.dims[1], s.h = x.dims[2], s.w = x.dims[3];
  s.k = y.dims[1], s.oh = y.dims[2], s.ow = y.dims[3];
  s.stride_h = window.strides[0], s.stride_w = window.strides[1];
  s.x_pixel = x.pixel(), s.y_pixel = y.pixel();
  if (s.x_pixel < 0 || s.y_pixel < 0) return refuse(call, "pixels that do not lie at one distance");
  if (s.rows() == 0 || s.k == 0 || s.c == 0) return refuse(call, "an empty image");
  return s;
}

/// One call of `visit`(weight of the model, of U) for each weight, on all threads.
template <class Visit>
void each_weight(const Shape& s, int lanes, Visit&& visit) {
  const std::vector<int64_t> blocks = channel_blocks(parts(s.k, lanes));
  parallel_for(static_cast<int64_t>(blocks.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    for (auto b = static_cast<size_t>(begin); b < static_cast<size_t>(end); ++b) {
      const int64_t first = blocks[b] * lanes, width = (blocks[b + 1] - blocks[b]) * lanes,
                    count = std::min(width, s.k - first);
      // In squares, so that neither side is far from what was touched before.
      for (int64_t from = 0; from < s.c; from += 16)
        for (int64_t k = 0; k < count; ++k)
          for (int64_t c = from; c < std::min(from + 16, s.c); ++c)
            visit((first + k) * s.c + c, first * s.c + c * width + k);
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
    tail_.bind(binder);
  }

  std::string text() const override {
    return fmt::format("product:{}", f_.lanes == 16 ? "avx512" : "avx2");
  }

  Status run() override {
    Tensors t{static_cast<const float*>(x_),
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
  int x_slot_ = -1, bias_slot_ = -1, y_slot_ = -1;
  const void *x_ = nullptr, *bias_ = nullptr;
  void* y_ = nullptr;
};

}  // namespace

const product::Functions* product_functions(const Context& context) {
  static const Functions kSets[] = {avx2_functions(), avx512_functions()};
  const VectorIsa isa = vector_isa(context);
  return isa == VectorIsa::none ? nullptr : &kSets[isa == VectorIsa::avx512];
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
