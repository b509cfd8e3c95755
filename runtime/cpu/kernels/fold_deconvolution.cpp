// Deconvolution in three steps: a product makes of every pixel of the input what it adds to the
// result ([pixels, in] x [in, kernel * out]), windows that overlap are added up along rows of the
// result, and the tail goes over it. Of one filter a channel there is no product: rows of the
// result take pixels times weights. It pays where filters are few, which leaves most lanes of the
// library's vectors empty, and where windows are large; and it stands in where the library's code
// is wrong (convolution.cpp).
#include <algorithm>
#include <array>
#include <optional>

#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kMostFloats = 1 << 24;  // of what all pixels add
constexpr int64_t kSegment = 256;         // pixels of a row of the result that one thread makes
constexpr int64_t kThreadSums = 1 << 15;  // below this many a thread is not worth waking
constexpr int64_t kFewFilters = 4;

/// One axis of the image.
struct Axis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, pad = 0;
};

struct FoldedSizes {
  int64_t images, in, out;  ///< in, out: channels
  std::array<Axis, 3> axes;
  bool depthwise;
  int64_t pixels() const { return images * axes[0].in * axes[1].in * axes[2].in; }
  int64_t taps() const { return axes[0].kernel * axes[1].kernel * axes[2].kernel; }
};

class FoldedDeconvolution final : public Kernel {
 public:
  FoldedDeconvolution(const KernelCall& call, const FoldedSizes& s) : s_(s) {
    x_slot_ = call.inputs[kX].slot, y_slot_ = call.outputs[0].slot;
    if (call.inputs[kX].constant) x_ = call.inputs[kX].constant->data();
    if (const Operand* b = call.own_input(kB)) {
      bias_slot_ = b->slot;
      if (b->constant) bias_ = b->constant->data();
    }
  }

  Applicable<> build(Context& context, const KernelCall& call) {
    const Tensor& weights = *call.inputs[kW].constant;
    // [in, out, taps] -> [in, taps, out]
    const int64_t rows = s_.depthwise ? 1 : s_.in, columns = s_.depthwise ? s_.in : s_.out;
    weights_ = context.library.derive(weights, "fold", weights.numel() * 4, [&](void* to) {
      StridedCopy({rows, s_.taps(), columns}, {s_.taps() * columns, 1, s_.taps()},
                  {s_.taps() * columns, columns, 1}, 4)
          .run(weights.data(), to);
    });
    return guard(call, "deconvolution", [&]() -> Applicable<> {
      if (!s_.depthwise) add_product(context);
      if (!call.post_ops.empty()) FERRULE_TRY(add_tail(context, call));
      return {};
    });
  }

  int64_t scratch_bytes() const override {
    return std::max(product_ ? parts_at_ + s_.pixels() * s_.taps() * s_.out * 4 : 0,
                    tail_ ? tail_->scratch_bytes() : 0);
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    if (bias_slot_ >= 0) binder.cell(bias_slot_, &bias_);
    binder.cell(y_slot_, &y_);
    char* scratch = static_cast<char*>(binder.scratch());
    parts_ = product_ ? reinterpret_cast<float*>(scratch + parts_at_) : nullptr;
    if (product_) {
      dnnl_memory_set_data_handle(memories_[kTo].get(), parts_);
      if (parts_at_) dnnl_memory_set_data_handle(memories_[kPad].get(), scratch);
    }
    if (tail_) tail_->bind(binder);  // its scratch is what the windows needed until then
  }
  std::string text() const override { return "fold:" + text_; }

  Status run() override {
    const OneKernel one;
    if (product_) {
      dnnl_memory_set_data_handle(memories_[kFrom].get(), const_cast<void*>(x_));
      if (int status = dnnl_primitive_execute(
              product_.get(), stream_, static_cast<int>(arguments_.size()), arguments_.data()))
        return error(Code::library_failed, text_, "oneDNN", fmt::format("status {}", status));
    }
    const Axis &d = s_.axes[0], &h = s_.axes[1], &w = s_.axes[2];
    const int64_t segments = (w.out + kSegment - 1) / kSegment;
    const int64_t sums =
        std::max<int64_t>(1, s_.pixels() * s_.taps() * s_.out /
                                 std::max<int64_t>(1, s_.images * d.out * h.out * segments));
    parallel_for(s_.images * d.out * h.out * segments, std::max<int64_t>(1, kThreadSums / sums),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t k = begin; k < end; ++k) {
                     const int64_t row = k / segments, from = k % segments * kSegment;
                     segment(row / h.out / d.out, row / h.out % d.out, row % h.out, from,
                             std::min(w.out, from + kSegment));
                   }
                 });
    return tail_ ? tail_->run() : Status{};
  }

 private:
  enum : size_t { kFrom, kTo, kWeights, kPad };

  void add_product(Context& context) {
    const auto f32 = memory::data_type::f32;
    const int64_t columns = s_.taps() * s_.out;
    const memory::desc a({s_.pixels(), s_.in}, f32, memory::format_tag::ab),
        plain({s_.in, columns}, f32, memory::format_tag::ab),
        any({s_.in, columns}, f32, memory::format_tag::any),
        c({s_.pixels(), columns}, f32, memory::format_tag::ab);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc desc(context.library.engine, a, any, c, attr);
    product_ = dnnl::matmul(desc);
    stream_ = context.library.stream.get();
    text_ = desc.impl_info_str();
    // The product's own order; what it was made from may go.
    const Tensor ordered(DType::f32, {s_.in, columns}, weights_.owner, weights_.data);
    packed_ = context.library.pack(ordered, plain, desc.weights_desc());
    auto add = [&](int id, const memory::desc& d, const void* data) {
      memories_.emplace_back(d, context.library.engine, const_cast<void*>(data));
      arguments_.push_back({id, memories_.back().get()});
    };
    add(DNNL_ARG_SRC, a, nullptr);
    add(DNNL_ARG_DST, c, nullptr);
    add(DNNL_ARG_WEIGHTS, desc.weights_desc(), packed_->data);
    const auto own = static_cast<int64_t>(desc.scratchpad_desc().get_size());
    parts_at_ = (own + 63) / 64 * 64;
    if (own) add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), nullptr);
  }

  /// The tail as that of a product with 1, in place.
  Applicable<> add_tail(Context& context, const KernelCall& call) {
    // There the library makes numbers of NaN in these.
    for (const PostOp& op : call.post_ops)
      if (op.alg == "soft_relu" || op.alg == "logistic" || op.alg == "mish")
        return not_applicable(escape(call.layer), "fold", op.alg);
    const memory::desc y = image_desc(call.outputs[0]);
    FERRULE_ASSIGN(const Epilogue epilogue, make_epilogue(call, {y}));
    const std::vector<int64_t> dims(y.get_dims().size(), 1);
    const memory::desc one(dims, memory::data_type::f32, strides_of(dims, Layout::plain));
    const dnnl::binary::primitive_desc desc(context.library.engine, dnnl::algorithm::binary_mul, y,
                                            one, y, epilogue.attr);
    tail_ = std::make_unique<Prepared>(context, dnnl::binary(desc), desc.impl_info_str());
    tail_->argument(DNNL_ARG_SRC_0, y, y_slot_);
    tail_->constant(DNNL_ARG_SRC_1, one,
                    context.library.pack(Tensor::scalar(DType::f32, 1), one, one));
    tail_->argument(DNNL_ARG_DST, y, y_slot_);
    bind_epilogue(*tail_, call, epilogue);
    tail_->scratchpad(desc.scratchpad_desc());
    return {};
  }

  /// Pixels [from, to) of one row of the result.
  void segment(int64_t image, int64_t d, int64_t h, int64_t from, int64_t to) const {
    const Axis &ad = s_.axes[0], &ah = s_.axes[1], &aw = s_.axes[2];
    float* y = static_cast<float*>(y_) + ((image * ad.out + d) * ah.out + h) * aw.out * s_.out;
    const auto* bias = static_cast<const float*>(bias_);
    for (int64_t k = from; k < to; ++k)
      for (int64_t c = 0; c < s_.out; ++c) y[k * s_.out + c] = bias ? bias[c] : 0;
    for (int64_t kd = 0; kd < ad.kernel; ++kd)
      for (int64_t kh = 0; kh < ah.kernel; ++kh) {
        const std::optional<int64_t> xd = pixel_of(ad, d, kd), xh = pixel_of(ah, h, kh);
        if (!xd || !xh) continue;
        const int64_t row = ((image * ad.in + *xd) * ah.in + *xh) * aw.in;
        const int64_t tap = (kd * ah.kernel + kh) * aw.kernel;
        // Taps of neighbours lie side by side in both.
        const int64_t step = aw.dilation == 1 && !s_.depthwise ? aw.kernel : 1;
        for (int64_t kw = 0; kw < aw.kernel; kw += step) add(y, row, tap + kw, kw, step, from, to);
      }
  }

  /// Which pixel's tap `k` falls on `at`.
  static std::optional<int64_t> pixel_of(const Axis& a, int64_t at, int64_t k) {
    const int64_t from = at + a.pad - k * a.dilation;
    if (from < 0 || from % a.stride != 0 || from / a.stride >= a.in) return std::nullopt;
    return from / a.stride;
  }

  /// What `taps` taps of a row of pixels, `tap` and on, add to y[from, to).
  void add(float* y, int64_t row, int64_t tap, int64_t kw, int64_t taps, int64_t from,
           int64_t to) const {
    const Axis& a = s_.axes[2];
    const int64_t shift = kw * a.dilation - a.pad;
    // The first pixel that reaches beyond `from`, and the first that begins behind `to`.
    const int64_t first = std::max<int64_t>(0, ceil_of(from - shift - taps + 1, a.stride));
    const int64_t last = std::min(a.in, ceil_of(to - shift, a.stride));
    const auto* w = static_cast<const float*>(weights_.data);
    for (int64_t p = first; p < last; ++p) {
      const int64_t at = p * a.stride + shift;
      const int64_t begin = std::max(from - at, int64_t{0}), end = std::min(taps, to - at);
      const int64_t n = (end - begin) * s_.out;
      float* sum = y + (at + begin) * s_.out;
      if (s_.depthwise) {
        const float *x = static_cast<const float*>(x_) + (row + p) * s_.in, *f = w + tap * s_.in;
        for (int64_t c = 0; c < n; ++c) sum[c] += x[c] * f[c];
      } else {
        const float* part = parts_ + ((row + p) * s_.taps() + tap + begin) * s_.out;
        for (int64_t c = 0; c < n; ++c) sum[c] += part[c];
      }
    }
  }
  static int64_t ceil_of(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

  FoldedSizes s_;
  int x_slot_ = -1, y_slot_ = -1, bias_slot_ = -1;
  const void *x_ = nullptr, *bias_ = nullptr;
  void* y_ = nullptr;
  float* parts_ = nullptr;
  Packed weights_;
  std::optional<Packed> packed_;
  dnnl::primitive product_;
  dnnl_stream_t stream_ = nullptr;
  std::string text_ = "depthwise";
  std::vector<memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
  int64_t parts_at_ = 0;  ///< in scratch, behind the product's own
  std::unique_ptr<Prepared> tail_;
};

}  // namespace

bool folding_pays(const KernelCall& call) {
  const Operand &x = call.inputs[kX], &w = call.inputs[kW];
  if (call.outputs[0].dims[1] <= kFewFilters || call.node->attrs.i("group", 1) > 1) return true;
  // The library goes over all weights again and again where windows are larger than the image.
  int64_t pixels = 1, taps = 1;
  for (size_t k = 2; k < x.dims.size(); ++k) pixels *= x.dims[k], taps *= w.dims[k];
  return taps > pixels;
}

Applicable<KernelPtr> make_folded_deconvolution(Context& context, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "fold", why);
  };
  const Operand &x = call.inputs[kX], &y = call.outputs[0], &w = call.inputs[kW];
  if (x.dtype != DType::f32 || !w.constant || !call.dense()) return refuse("its operands");
  if (!channels_last(x) || !channels_last(y) || x.rank() > 5) return refuse("a layout");
  if (call.sum_input >= 0) return refuse("a residual");
  const int64_t groups = call.node->attrs.i("group", 1);
  const bool depthwise = groups > 1 && groups == w.dims[0] && w.dims[1] == 1;
  if (groups > 1 && !depthwise) return refuse("groups of several channels");
  FERRULE_ASSIGN(const Window window,
                 transposed_window_of(call, x.dims, y.dims, {w.dims.begin() + 2, w.dims.end()}));
  FoldedSizes s{x.dims[0], x.dims[1], y.dims[1], {}, depthwise};
  const size_t axes = x.dims.size() - 2;
  for (size_t k = 0; k < axes; ++k)
    s.axes[3 - axes + k] = {x.dims[k + 2],     y.dims[k + 2],           window.kernel[k],
                            window.strides[k], window.dilations[k] + 1, window.pads_begin[k]};
  if (!depthwise && s.pixels() * s.taps() * s.out > kMostFloats) return refuse("its size");
  auto kernel = std::make_unique<FoldedDeconvolution>(call, s);
  FERRULE_TRY(kernel->build(context, call));
  return kernel;
}

}  // namespace ferrule::cpu
