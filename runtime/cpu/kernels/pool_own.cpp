// Pooling by loops of our own, for what the library has no kernel for: other element types, windows
// with gaps or in the pads alone, positions of the maxima, and images that lie plain. Pixels are
// runs of all channels (channels-last) or single elements (plain). The rows of a window are
// combined first, then the pixels of that one row, so that both steps go over memory in order.
#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernels/pool_own.h"
#include "runtime/parallel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kRowGrain = 16384;  ///< elements of windows that are worth a thread

struct Largest {
  template <class T>
  static constexpr T start() {
    if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::lowest();
  }
  /// NaN wins.
  template <class T>
  static T of(T a, T b) {
    return b > a || b != b ? b : a;
  }
};
struct Sum {
  template <class T>
  static constexpr T start() {
    return 0;
  }
  template <class T>
  static T of(T a, T b) {
    return a + b;
  }
};

/// Results [begin, end) of a row read pixels `at`, `at` + stride, ….
struct Column {
  int64_t begin, end, at;
};
/// The windows of one row of the result, pixels as runs of `run` elements.
template <class T>
struct RowOfWindows {
  const T* x;                          ///< the first row that they hold; null: they hold none
  std::array<int64_t, 2> taps, apart;  ///< how many in depth and height, and how far apart
  int64_t in_row, out_row, run, stride;
  std::span<const Column> columns;
  T* combined;  ///< room for a row of the image
  T* y;
};

template <class How, class T>
[[gnu::always_inline]] inline void combine(const T* x, int64_t step, int64_t n, T* y) {
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) y[k] = How::of(y[k], x[step * k]);
}

/// As one function, since rows are short and calls of clones dear.
template <class How, class T>
__attribute__((target_clones("avx2", "default"))) void pool_row(const RowOfWindows<T>& w) {
  std::fill_n(w.y, w.out_row, How::template start<T>());
  if (!w.x) return;
  const T* row = w.x;
  if (w.taps[0] * w.taps[1] > 1) {
    std::copy_n(row, w.in_row, w.combined);
    for (int64_t d = 0; d < w.taps[0]; ++d)
      for (int64_t h = d == 0; h < w.taps[1]; ++h)
        combine<How>(w.x + d * w.apart[0] + h * w.apart[1], 1, w.in_row, w.combined);
    row = w.combined;
  }
  for (const auto& [begin, end, at] : w.columns) {
    const T* x = row + at * w.run;
    T* y = w.y + begin * w.run;
    if (w.stride == 1)
      combine<How>(x, 1, (end - begin) * w.run, y);
    else if (w.run > 1)
      for (int64_t o = 0; o < end - begin; ++o)
        combine<How>(x + o * w.stride * w.run, 1, w.run, y + o * w.run);
    else if (w.stride == 2)  // which the compiler knows instructions for
      combine<How>(x, 2, end - begin, y);
    else
      for (int64_t o = 0; o < end - begin; ++o) y[o] = How::of(y[o], x[o * w.stride]);
  }
}
template <class T>
__attribute__((target_clones("avx2", "default"))) void larger_at(const T* x, int64_t n, int64_t at,
                                                                 T* best, int64_t* where) {
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    const bool take = x[k] > best[k] || (x[k] != x[k] && best[k] == best[k]);
    best[k] = take ? x[k] : best[k];
    where[k] = take ? at : where[k];
  }
}

/// One axis of the window.
struct Axis {
  int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, begin = 0, end = 0;
  /// Where the window's first element lies; less than 0 in the pads.
  int64_t first(int64_t o) const { return o * stride - begin; }
  /// Its elements [low, high) that lie in the image.
  int64_t low(int64_t o) const { return first(o) >= 0 ? 0 : (dilation - 1 - first(o)) / dilation; }
  int64_t high(int64_t o) const { return within(in - first(o)); }
  /// How many lie in the image or in the pads that the model asks for.
  int64_t padded(int64_t o) const { return within(in + end - first(o)); }
  int64_t inside(int64_t o) const { return std::max<int64_t>(0, high(o) - low(o)); }

 private:
  int64_t within(int64_t room) const {
    return room <= 0 ? 0 : std::min(kernel, (room + dilation - 1) / dilation);
  }
};
using Axes = std::array<Axis, 3>;  ///< depth, height, width

class OwnPool : public Kernel {
 public:
  OwnPool(const KernelCall& call, const Axes& axes, bool channels_last)
      : axes_(axes),
        columns_(columns_of(axes[2])),
        x_slot_(call.inputs[0].slot),
        y_slot_(call.outputs[0].slot) {
    const Operand& x = call.inputs[0];
    images_ = channels_last ? x.dims[0] : x.dims[0] * x.dims[1];
    run_ = channels_last ? x.dims[1] : 1;
    if (x.constant) x_ = x.constant->data();
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
  }
  std::string text() const override { return "own_pool"; }

 protected:
  int64_t rows() const { return axes_[0].out * axes_[1].out; }  ///< of an image's result
  int64_t in_row() const { return axes_[2].in * run_; }
  int64_t out_row() const { return axes_[2].out * run_; }
  /// f(image, position in the result) for all rows of it.
  template <class F>
  void each_row(F&& f) const {
    const int64_t window = axes_[0].kernel * axes_[1].kernel * axes_[2].kernel;
    const int64_t grain = 1 + kRowGrain / (out_row() * window + 1);
    parallel_for(images_ * rows(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k)
        f(k / rows(), k % rows() / axes_[1].out, k % axes_[1].out, k * out_row());
    });
  }
  int64_t row_at(int64_t image, int64_t d, int64_t h) const {
    return ((image * axes_[0].in + d) * axes_[1].in + h) * in_row();
  }
  static std::vector<Column> columns_of(const Axis& w) {
    std::vector<Column> columns;
    for (int64_t t = 0; t < w.kernel; ++t) {
      const int64_t at = t * w.dilation - w.begin;  // what result 0 reads
      const int64_t begin = at >= 0 ? 0 : (w.stride - 1 - at) / w.stride;
      const int64_t end = std::min(w.out, w.in - at <= 0 ? 0 : (w.in - at - 1) / w.stride + 1);
      if (begin < end) columns.push_back({begin, end, begin * w.stride + at});
    }
    return columns;
  }

  Axes axes_;
  std::vector<Column> columns_;
  int64_t images_ = 0, run_ = 1;
  int x_slot_, y_slot_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
};

template <class T, class How>
class RowsThenColumns final : public OwnPool {
 public:
  RowsThenColumns(const KernelCall& call, const Axes& axes, bool channels_last)
      : OwnPool(call, axes, channels_last), include_(call.node->attrs.i("count_include_pad") != 0) {
    if (call.work == Work::global_average_pool) include_ = false;
  }
  int64_t scratch_bytes() const override {
    return threads() * in_row() * static_cast<int64_t>(sizeof(T));
  }
  void bind(Binder& binder) override {
    OwnPool::bind(binder);
    combined_ = static_cast<T*>(binder.scratch());
  }

  Status run() override {
    const auto& [depth, height, width] = axes_;
    each_row([&](int64_t image, int64_t d, int64_t h, int64_t to) {
      RowOfWindows<T> w{nullptr,
                        {depth.inside(d), height.inside(h)},
                        {depth.dilation * height.in * in_row(), height.dilation * in_row()},
                        in_row(),
                        out_row(),
                        run_,
                        width.stride,
                        columns_,
                        combined_ + parallel_thread() * in_row(),
                        static_cast<T*>(y_) + to};
      if (w.taps[0] > 0 && w.taps[1] > 0)
        w.x = static_cast<const T*>(x_) + row_at(image,
                                                 depth.first(d) + depth.low(d) * depth.dilation,
                                                 height.first(h) + height.low(h) * height.dilation);
      pool_row<How>(w);
      if constexpr (std::is_same_v<How, Sum>) divide(d, h, w.y);
    });
    return {};
  }

 private:
  void divide(int64_t d, int64_t h, T* y) const {
    auto count = [&](const Axis& a, int64_t o) {
      return static_cast<T>(include_ ? a.padded(o) : a.inside(o));
    };
    const T rows = count(axes_[0], d) * count(axes_[1], h);
    for (int64_t o = 0; o < axes_[2].out; ++o) {
      const T all = rows * count(axes_[2], o);
      for (int64_t k = 0; k < run_; ++k, ++y) *y /= all;
    }
  }

  bool include_;
  T* combined_ = nullptr;
};

/// The first of the largest elements, in the window's order, and where it lies in the plain image.
template <class T>
class LargestAndWhere final : public OwnPool {
 public:
  LargestAndWhere(const KernelCall& call, const Axes& axes, bool channels_last)
      : OwnPool(call, axes, channels_last),
        where_slot_(call.outputs[1].slot),
        column_major_(call.node->attrs.i("storage_order") != 0) {}
  void bind(Binder& binder) override {
    OwnPool::bind(binder);
    binder.cell(where_slot_, reinterpret_cast<void**>(&where_));
  }

  Status run() override {
    each_row([&](int64_t image, int64_t d, int64_t h, int64_t to) {
      row(image, d, h, static_cast<T*>(y_) + to, where_ + to);
    });
    return {};
  }

 private:
  void row(int64_t image, int64_t d, int64_t h, T* y, int64_t* where) const {
    const auto& [depth, height, width] = axes_;
    const int64_t plane = depth.in * height.in * width.in;
    std::fill_n(y, out_row(), Largest::start<T>());
    std::fill_n(where, out_row(), -1);
    for (int64_t t = depth.low(d); t < depth.high(d); ++t)
      for (int64_t u = height.low(h); u < height.high(h); ++u) {
        const int64_t i = depth.first(d) + t * depth.dilation,
                      j = height.first(h) + u * height.dilation;
        const T* x = static_cast<const T*>(x_) + row_at(image, i, j);
        for (const auto& [begin, end, first] : columns_)
          for (int64_t o = begin, at = first; o < end; ++o, at += width.stride)
            larger(x + at * run_,
                   column_major_ ? (at * height.in + j) * depth.in + i
                                 : (i * height.in + j) * width.in + at,
                   y + o * run_, where + o * run_);
      }
    for (int64_t k = 0; k < out_row(); ++k)  // there is no place in a window without elements
      where[k] = where[k] < 0 ? 0 : (image * run_ + k % run_) * plane + where[k];
  }
  /// The first element counts whatever it is.
  void larger(const T* x, int64_t place, T* y, int64_t* where) const {
    if (where[0] < 0) {
      std::copy_n(x, run_, y);
      std::fill_n(where, run_, place);
    } else if (run_ == 1) {
      const bool take = *x > *y || (*x != *x && *y == *y);
      *y = take ? *x : *y;
      *where = take ? place : *where;
    } else {
      larger_at(x, run_, place, y, where);
    }
  }

  int where_slot_;
  bool column_major_;
  int64_t* where_ = nullptr;
};

template <class T>
KernelPtr make(const KernelCall& call, const Axes& axes, bool channels_last) {
  if (call.outputs.size() > 1 && call.outputs[1].present())
    return std::make_unique<LargestAndWhere<T>>(call, axes, channels_last);
  const bool mean = call.work == Work::average_pool || call.work == Work::global_average_pool;
  if (!mean) return std::make_unique<RowsThenColumns<T, Largest>>(call, axes, channels_last);
  if constexpr (std::is_floating_point_v<T>)
    return std::make_unique<RowsThenColumns<T, Sum>>(call, axes, channels_last);
  return nullptr;
}

}  // namespace

Applicable<KernelPtr> make_own_pool(const KernelCall& call) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), call.node->op.text(), why);
  };
  if (x.rank() < 3 || x.rank() > 5) return refuse("these axes");
  if (!call.dense() || x.plane || y.plane) return refuse("rows that lie apart");
  const bool channels_last = x.lies(Layout::channels_last) && y.lies(Layout::channels_last);
  if (!channels_last && !(x.lies(Layout::plain) && y.lies(Layout::plain)))
    return refuse("two layouts");
  const bool global = call.work == Work::global_max_pool || call.work == Work::global_average_pool;
  FERRULE_ASSIGN(const Window w,
                 window_of(call, x.dims, y.dims,
                           global ? std::vector<int64_t>(x.dims.begin() + 2, x.dims.end())
                                  : call.node->attrs.ints("kernel_shape")));
  Axes axes;
  const size_t spatial = w.kernel.size();
  for (size_t k = 0; k < spatial; ++k)
    axes[3 - spatial + k] = {x.dims[k + 2],      y.dims[k + 2],   w.kernel[k],   w.strides[k],
                             w.dilations[k] + 1, w.pads_begin[k], w.asked_end[k]};
  KernelPtr made;
  switch (x.dtype) {
    case DType::f32:
      made = make<float>(call, axes, channels_last);
      break;
    case DType::f64:
      made = make<double>(call, axes, channels_last);
      break;
    case DType::i8:
      made = make<int8_t>(call, axes, channels_last);
      break;
    case DType::u8:
      made = make<uint8_t>(call, axes, channels_last);
      break;
    default:
      break;
  }
  if (!made) return refuse(name(x.dtype));
  return made;
}

}  // namespace ferrule::cpu
