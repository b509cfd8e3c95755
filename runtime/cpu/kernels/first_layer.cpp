// The first layer: a convolution of few planes, read as the model's input lies, written
// channels-last; the input is not reordered. And, for every convolution that cannot do so: the
// reorder in front of it, inside one launch.
#include <algorithm>

#include "runtime/cpu/kernels/convolution_rows.h"
#include "runtime/cpu/kernels/register_tail.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kThreadProductsFirst = 262144;  // below this much a thread is not worth waking

class First final : public Kernel {
 public:
  First(RowFn row, std::string text, RowShape shape, RegisterTail tail)
      : row_(row), text_(std::move(text)), shape_(std::move(shape)), tail_(std::move(tail)) {
    shape_.clipped = tail_.take_clip(shape_.low, shape_.high);
    shape_.ops = tail_.ops();
  }

  Applicable<> load(Context& context, const KernelCall& call, const Window& w) {
    const Operand &x = call.inputs[kX], &y = call.outputs[0];
    x_slot_ = x.slot;
    y_slot_ = y.slot;
    images_ = x.dims[0];
    height_ = x.dims[2];
    out_height_ = y.dims[2];
    filters_ = y.dims[1];
    stride_h_ = w.strides[0];
    dilation_h_ = w.dilations[0] + 1;
    pad_h_ = w.pads_begin[0];
    const int64_t products =
        shape_.out_width * filters_ * shape_.planes * shape_.window_rows * shape_.kernel;
    grain_ = std::max<int64_t>(1, kThreadProductsFirst / std::max<int64_t>(1, products));
    if (const Operand* b = call.own_input(kB))
      bias_ = b->constant->as<float>().data();
    else
      bias_ = (zeros_.assign(static_cast<size_t>(filters_), 0.0f), zeros_.data());
    return guard(call, "reorder", [&]() -> Applicable<> {
      const int64_t taps = shape_.planes * shape_.window_rows * shape_.kernel;
      const memory::desc from({filters_, taps}, memory::data_type::f32, memory::dims{taps, 1});
      const memory::desc to({filters_, taps}, memory::data_type::f32,
                            memory::dims{1, shape_.weight_pixel});
      weights_ = context.library.pack(*call.inputs[kW].constant, from, to);
      return {};
    });
  }

  void bind(Binder& binder) override {
    binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
    tail_.bind(binder);
  }
  Status run() override {
    tail_.refresh(shape_.ops);
    parallel_for(images_ * out_height_, grain_, [this](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) one_row(k / out_height_, k % out_height_);
    });
    return {};
  }
  std::string text() const override { return text_; }

 private:
  void one_row(int64_t image, int64_t row) const {
    const int64_t top = row * stride_h_ - pad_h_, d = dilation_h_;
    const int64_t begin = top < 0 ? (-top + d - 1) / d : 0;
    const int64_t end =
        top >= height_ ? 0 : std::min(shape_.window_rows, (height_ - top + d - 1) / d);
    RowJob j;
    j.rows = std::max<int64_t>(0, end - begin);
    j.x = static_cast<const float*>(x_) + image * shape_.planes * shape_.plane_step;
    j.weights = static_cast<const float*>(weights_.data);
    if (j.rows)
      j.x += (top + begin * d) * shape_.width,
          j.weights += begin * shape_.kernel * shape_.weight_pixel;
    j.bias = bias_;
    const int64_t out = (image * out_height_ + row) * shape_.out_width;
    j.y_offset = out * filters_;
    j.y = static_cast<float*>(y_) + out * shape_.out_pixel;
    j.channels = filters_;
    j.end = shape_.out_width;
    row_(shape_, j);
  }

  RowFn row_;
  std::string text_;
  RowShape shape_;
  RegisterTail tail_;
  int64_t images_ = 0, height_ = 0, out_height_ = 0, filters_ = 0, stride_h_ = 1, dilation_h_ = 1,
          pad_h_ = 0, grain_ = 1;
  int x_slot_ = -1, y_slot_ = -1;
  const void* x_ = nullptr;
  void* y_ = nullptr;
  const float* bias_ = nullptr;
  std::vector<float> zeros_;
  Packed weights_;
};

/// A copy of the input in channels-last order in front of another kernel, in its scratch memory.
class Reordered final : public Kernel {
 public:
  static constexpr int kCopied = -1000;  ///< the slot under which the other kernel knows the copy

  Reordered(const Operand& x, const Operand& copied, KernelPtr inner)
      : x_slot_(x.slot),
        bytes_((x.bytes() + 63) / 64 * 64),
        copy_(x.dims, x.strides(), copied.strides(), 4),
        inner_(std::move(inner)) {}
  int64_t scratch_bytes() const override { return bytes_ + inner_->scratch_bytes(); }
  void bind(Binder& binder) override {
    binder.cell(x_slot_, &x_);
    to_ = binder.scratch();
    Redirected redirected(binder, to_, bytes_);
    inner_->bind(redirected);
  }
  Status run() override {
    const OneKernel one;  // the copy is of an image with few planes
    copy_.run(x_, to_);
    return inner_->run();
  }
  std::string text() const override { return "reorder+" + inner_->text(); }

 private:
  class Redirected final : public Binder {
   public:
    Redirected(Binder& outer, void* copied, int64_t bytes)
        : outer_(outer), copied_(copied), bytes_(bytes) {}
    void cell(int slot, const void** where) override {
      if (slot == kCopied)
        *where = copied_;
      else
        outer_.cell(slot, where);
    }
    void cell(int slot, void** where) override {
      if (slot == kCopied)
        *where = copied_;
      else
        outer_.cell(slot, where);
    }
    void memory(int slot, dnnl_memory* m) override {
      if (slot == kCopied)
        dnnl_memory_set_data_handle(m, copied_);
      else
        outer_.memory(slot, m);
    }
    void* scratch() override { return static_cast<char*>(outer_.scratch()) + bytes_; }

   private:
    Binder& outer_;
    void* copied_;
    int64_t bytes_;
  };

  int x_slot_;
  int64_t bytes_;
  StridedCopy copy_;
  KernelPtr inner_;
  const void* x_ = nullptr;
  void* to_ = nullptr;
};

}  // namespace

Applicable<KernelPtr> make_reordered(Context& context, const KernelCall& call, Factory factory) {
  KernelCall inner = call;
  Operand& x = inner.inputs[kX];
  x.layout = Layout::channels_last;
  x.plane = 0;
  x.slot = Reordered::kCopied;
  FERRULE_ASSIGN(KernelPtr kernel, factory(context, inner));
  return std::make_unique<Reordered>(call.inputs[kX], x, std::move(kernel));
}

Applicable<KernelPtr> make_first(Context& context, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "first layer", why);
  };
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  if (!w.constant || x.constant || x.rank() != 4) return refuse("an operand of another kind");
  if (const Operand* b = call.own_input(kB); b && !b->constant)
    return refuse("the bias is not constant");
  if (x.dtype != DType::f32 || w.dtype != DType::f32 || y.dtype != DType::f32)
    return refuse(name(x.dtype));
  if (!x.lies(Layout::plain) || !channels_last(y)) return refuse("another layout");
  if (call.node->attrs.i("group", 1) != 1 || x.dims[1] > 8)
    return refuse("groups, or many channels");
  if (!x.dense() || y.pixel() < 0) return refuse("a slice");
  if (x.numel() == 0 || y.numel() == 0) return refuse("an empty operand");
  FERRULE_ASSIGN(Window win, window_of(call, x.dims, y.dims, {w.dims.begin() + 2, w.dims.end()}));
  if (win.strides[1] > 2) return refuse("a stride above 2");
  RowShape r;
  r.width = x.dims[3];
  r.out_width = y.dims[3];
  r.out_pixel = y.pixel();
  r.pixel = r.operand_pixel = y.dims[1];
  r.planes = x.dims[1];
  r.plane_step = x.plane ? x.plane : x.dims[2] * x.dims[3];
  r.row_step = (win.dilations[0] + 1) * r.width;
  r.window_rows = win.kernel[0];
  r.kernel = win.kernel[1];
  r.stride = win.strides[1];
  r.dilation = win.dilations[1] + 1;
  r.pad = win.pads_begin[1];
  r.weight_pixel = (y.dims[1] + 15) / 16 * 16;
  RegisterTail tail;
  FERRULE_TRY(tail.build(context, call));
  const bool wide = context.target && context.target->has_isa("avx512f");
  auto kernel =
      std::make_unique<First>(wide ? first_row_avx512 : first_row_avx2,
                              wide ? "first:avx512" : "first:avx2", std::move(r), std::move(tail));
  FERRULE_TRY(kernel->load(context, call, win));
  return kernel;
}

}  // namespace ferrule::cpu
