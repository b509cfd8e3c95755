// Depthwise convolutions of channels-last images, one filter a channel, and those with groups of 2
// or 4 channels and as many filters, for which the library has no vectors. Memory decides the
// speed of the former: a unit of work is a strip of columns and a chunk of channels whose window
// rows stay in the L1 cache while it walks down the image, so that every pixel comes from the outer
// caches once. Of images that the L2 cache does not hold it is whole rows.
#include "runtime/cpu/kernels/convolution_rows.h"

#include <algorithm>
#include <cstring>

#include "runtime/cpu/kernels/register_tail.h"
#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kStripBytes = 36864;               // of the L1 cache
constexpr int64_t kChunkChannels = 256;              // 1 KiB of neighbouring memory
constexpr int64_t kUsualL2 = 1 << 20;                // where a target does not say
constexpr int64_t kLeastChannels = 64, kLine = 32;   // two vectors of 16
constexpr int64_t kThreadProductsDepthwise = 98304;  // below this much a thread is not worth waking

int64_t round_up(int64_t n, int64_t to) { return parts(n, to) * to; }

struct Sizes {
  int64_t images, channels, height, width, out_height, out_width;
  int64_t kernel_h, stride_h, dilation_h, pad_h;
};

/// How the result is cut: rows x strips of columns x chunks of channels.
struct Cut {
  int64_t rows, columns, channels;  ///< of a unit
  int64_t row_parts, column_parts, channel_parts;
};

/// `block`: columns of a register block.
Cut cut_of(const Sizes& s, const RowShape& r, int64_t block, int64_t l2_bytes) {
  Cut c{};
  if (s.channels * s.height * s.width * 4 > 2 * l2_bytes) {
    // From the outer caches whole rows come faster than parts of them.
    c.channels = s.channels;
    c.columns = s.out_width;
  } else {
    // As many channels as leave a block's window in the L1 cache, in whole lines of it.
    const int64_t block_inputs =
        (std::min(block, s.out_width) - 1) * r.stride + (r.kernel - 1) * r.dilation + 1;
    const int64_t near = kStripBytes / (s.kernel_h * block_inputs * 4) / kLine * kLine;
    c.channels = std::min(s.channels, std::clamp(near, kLeastChannels, kChunkChannels));
    const int64_t window = s.kernel_h * c.channels * 4;
    const int64_t inputs = std::max<int64_t>(1, kStripBytes / window);
    const int64_t fit = (inputs - (r.kernel - 1) * r.dilation - 1) / r.stride + 1;
    c.columns = std::min(s.out_width, std::max(block, fit / block * block));
  }
  c.column_parts = parts(s.out_width, c.columns);
  c.channel_parts = parts(s.channels, c.channels);
  const int64_t others = s.images * c.column_parts * c.channel_parts;
  // Several units a thread, so that halves are even; rows at the seam are read twice, so not more
  // than needed.
  c.row_parts =
      std::clamp<int64_t>(parts(4 * threads(), others), 1, std::max<int64_t>(1, s.out_height / 2));
  if (threads() == 1) c.row_parts = 1;
  c.rows = parts(s.out_height, c.row_parts);
  c.row_parts = parts(s.out_height, c.rows);
  return c;
}

class Depthwise final : public Kernel {
 public:
  Depthwise(bool wide, int64_t l2_bytes, const Sizes& s, RowShape shape, RegisterTail tail)
      : row_(wide ? depthwise_row_avx512 : depthwise_row_avx2),
        text_(wide ? "depthwise:avx512" : "depthwise:avx2"),
        s_(s),
        shape_(std::move(shape)),
        cut_(cut_of(s_, shape_, depthwise_columns(wide ? 16 : 8), l2_bytes)),
        tail_(std::move(tail)) {
    shape_.clipped = tail_.take_clip(shape_.low, shape_.high);
    shape_.ops = tail_.ops();
    const int64_t products =
        cut_.rows * cut_.columns * cut_.channels * s_.kernel_h * shape_.kernel * shape_.group;
    if (shape_.group > 1) text_ = text_.replace(0, std::strlen("depthwise"), "grouped");
    grain_ = std::max<int64_t>(1, parts(kThreadProductsDepthwise, products));
  }

  Applicable<> load(Context& context, const KernelCall& call) {
    x_slot_ = call.inputs[kX].slot;
    y_slot_ = call.outputs[0].slot;
    if (const Operand* b = call.own_input(kB))
      bias_ = b->constant->as<float>().data();
    else
      bias_ = (zeros_.assign(static_cast<size_t>(s_.channels), 0.0f), zeros_.data());
    return guard(call, "reorder", [&]() -> Applicable<> {
      const int64_t k = shape_.kernel, g = shape_.group, tap = shape_.weight_pixel;
      const std::vector<int64_t> dims{s_.channels, g, s_.kernel_h, k};
      const memory::desc from(dims, memory::data_type::f32,
                              {g * s_.kernel_h * k, s_.kernel_h * k, k, 1});
      const memory::desc to(dims, memory::data_type::f32, {1, tap, k * g * tap, g * tap});
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
    const int64_t units = s_.images * cut_.row_parts * cut_.column_parts * cut_.channel_parts;
    parallel_for(units, grain_, [this](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) unit(k);
    });
    return {};
  }
  std::string text() const override { return text_; }

 private:
  void unit(int64_t k) const {
    const int64_t chunk = k % cut_.channel_parts,
                  strip = (k /= cut_.channel_parts) % cut_.column_parts;
    const int64_t part = (k /= cut_.column_parts) % cut_.row_parts, image = k / cut_.row_parts;
    RowJob j;
    j.c = chunk * cut_.channels;
    j.channels = std::min(cut_.channels, s_.channels - j.c);
    j.begin = strip * cut_.columns;
    j.end = std::min(s_.out_width, j.begin + cut_.columns);
    j.bias = bias_ + j.c;
    const int64_t first = part * cut_.rows, last = std::min(s_.out_height, first + cut_.rows);
    for (int64_t row = first; row < last; ++row) one_row(j, image, row);
  }

  void one_row(RowJob& j, int64_t image, int64_t row) const {
    const int64_t top = row * s_.stride_h - s_.pad_h, d = s_.dilation_h;
    const int64_t begin = top < 0 ? parts(-top, d) : 0;
    const int64_t end = std::min(s_.kernel_h, top >= s_.height ? 0 : parts(s_.height - top, d));
    j.rows = std::max<int64_t>(0, end - begin);
    const int64_t line = s_.width * shape_.pixel;
    j.x = static_cast<const float*>(x_) +
          (j.rows ? (image * s_.height + top + begin * d) * line : 0) + j.c;
    j.weights = static_cast<const float*>(weights_.data) +
                (j.rows ? begin * shape_.kernel * shape_.group * shape_.weight_pixel : 0) + j.c;
    const int64_t out = (image * s_.out_height + row) * s_.out_width;
    j.y = static_cast<float*>(y_) + out * shape_.out_pixel + j.c;
    j.y_offset = out * s_.channels + j.c;
    row_(shape_, j);
  }

  RowFn row_;
  std::string text_;
  Sizes s_;
  RowShape shape_;
  Cut cut_;
  RegisterTail tail_;
  int64_t grain_ = 1;
  int x_slot_ = -1, y_slot_ = -1;
  const void* x_ = nullptr;
  void* y_ = nullptr;
  const float* bias_ = nullptr;
  std::vector<float> zeros_;
  Packed weights_;
};

/// Groups of so many channels and as many filters are taken: with more the library is faster (group
/// 8 of 128 channels, 28x28, AVX2: 0.47 ms against 0.77; group 4: 1.43 against 0.43).
bool fits_group(int64_t width) { return width == 1 || width == 2 || width == 4; }

Applicable<> check_depthwise(const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "depthwise", why);
  };
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  if (!w.constant || x.constant) return refuse("an operand of another kind");
  if (const Operand* b = call.own_input(kB); b && !b->constant)
    return refuse("the bias is not constant");
  if (x.dtype != DType::f32 || w.dtype != DType::f32 || y.dtype != DType::f32)
    return refuse(name(x.dtype));
  if (x.rank() != 3 && x.rank() != 4) return refuse(fmt::format("rank {}", x.rank()));
  if (w.dims[0] != x.dims[1] || !fits_group(w.dims[1]) ||
      call.node->attrs.i("group", 1) * w.dims[1] != x.dims[1])
    return refuse("not as many filters as channels in groups of a vector's part");
  if (!channels_last(x) || !channels_last(y)) return refuse("not channels-last");
  if (x.pixel() < 0 || y.pixel() < 0) return refuse("pixels that do not lie at one distance");
  if (x.numel() == 0 || y.numel() == 0) return refuse("an empty operand");
  return {};
}

}  // namespace

Applicable<KernelPtr> make_depthwise(Context& context, const KernelCall& call) {
  FERRULE_TRY(check_depthwise(call));
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  FERRULE_ASSIGN(Window win, window_of(call, x.dims, y.dims, {w.dims.begin() + 2, w.dims.end()}));
  const size_t column = win.kernel.size() - 1;
  const bool image = column == 1;  // else a line: one row of it
  Sizes s{x.dims[0],
          x.dims[1],
          image ? x.dims[2] : 1,
          x.dims.back(),
          image ? y.dims[2] : 1,
          y.dims.back(),
          image ? win.kernel[0] : 1,
          image ? win.strides[0] : 1,
          image ? win.dilations[0] + 1 : 1,
          image ? win.pads_begin[0] : 0};
  RowShape r;
  r.width = s.width;
  r.out_width = s.out_width;
  r.pixel = x.pixel();
  r.out_pixel = y.pixel();
  r.operand_pixel = s.channels;
  r.row_step = s.dilation_h * s.width * r.pixel;
  r.kernel = win.kernel[column];
  r.stride = win.strides[column];
  r.dilation = win.dilations[column] + 1;
  r.pad = win.pads_begin[column];
  r.weight_pixel = round_up(s.channels, 16);
  r.group = w.dims[1];
  for (int32_t n = 0; r.group > 1 && n < r.group; ++n) {
    auto& pick = r.picks.emplace_back();
    for (int32_t lane = 0; lane < std::ssize(pick); ++lane)
      pick[static_cast<size_t>(lane)] = lane - lane % static_cast<int32_t>(r.group) + n;
  }
  RegisterTail tail;
  FERRULE_TRY(tail.build(context, call));
  const bool wide = context.target && context.target->has_isa("avx512f");
  const int64_t l2_bytes =
      context.target && context.target->l2_bytes ? context.target->l2_bytes : kUsualL2;
  auto kernel = std::make_unique<Depthwise>(wide, l2_bytes, s, std::move(r), std::move(tail));
  FERRULE_TRY(kernel->load(context, call));
  return kernel;
}

}  // namespace ferrule::cpu
