// Resize, nearest and linear, over neighbouring axes of a tensor. Positions and weights are tables
// worked out once from the operator's definition, so every coordinate mode costs the same. What is
// resized are pixels, runs of `run` elements: one in plain images, the channels in channels-last
// ones, however the model calls the axes. A linear row is made of the rows above and below it first
// and then along itself, in the interpreter's order: in f64 (integers) the results are the same
// bits. source: https://onnx.ai/onnx/operators/onnx__Resize.html
#include <array>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "engine/semantics/resampling.h"
#include "runtime/cpu/kernel.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kLongPixel = 16;  ///< elements of a pixel that are worth a loop of their own

/// Where an output position of one axis reads: two neighbours and their weights; one: `second` is
/// 0.
struct Tap {
  int64_t low = 0, high = 0;
  double first = 1, second = 0;
};

std::vector<Tap> taps_of(const Resampling& how, const ResizeAxis& a) {
  std::vector<Tap> taps;
  for (int64_t k = 0; k < a.out; ++k) {
    if (how.keeps(a)) {
      taps.push_back({k, k, 1, 0});
      continue;
    }
    const std::vector<ResizeTap> read = resize_taps(a, how, k);
    taps.push_back({read.front().at, read.back().at, read.front().weight,
                    read.size() > 1 ? read.back().weight : 0});
  }
  return taps;
}

/// The axes of an image as they lie in memory: `images` of at most three that are resized (1 where
/// there are fewer), of pixels of `run` elements.
struct ResizePlan {
  int64_t images = 1, run = 1;
  std::array<ResizeAxis, 3> axes{ResizeAxis{1, 1}, ResizeAxis{1, 1}, ResizeAxis{1, 1}};
};

class ResizeKernel : public Kernel {
 public:
  ResizeKernel(const KernelCall& call, const ResizePlan& plan, const Resampling& how)
      : plan_(plan), x_slot_(call.inputs[0].slot), y_slot_(call.outputs[0].slot) {
    for (size_t k = 0; k < 3; ++k) taps_[k] = taps_of(how, plan.axes[k]);
    if (call.inputs[0].constant) x_ = call.inputs[0].constant->data();
    const int64_t grain = 1 + 16384 / (1 + row());
    team_ = static_cast<int>(std::clamp<int64_t>(rows() / grain, 1, threads()));
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
    scratch_ = static_cast<char*>(binder.scratch());
  }

 protected:
  int64_t row() const { return plan_.axes[2].out * plan_.run; }  ///< elements of the result
  int64_t row_in() const { return plan_.axes[2].in * plan_.run; }
  int64_t rows() const { return plan_.images * plan_.axes[0].out * plan_.axes[1].out; }
  /// Where row (d, h) of an image begins, in elements.
  int64_t row_at(int64_t image, int64_t d, int64_t h) const {
    return ((image * plan_.axes[0].in + d) * plan_.axes[1].in + h) * row_in();
  }
  struct Row {
    int64_t image;
    const Tap *d, *h;
  };
  Row row_of(int64_t k) const {
    const int64_t h = plan_.axes[1].out, d = plan_.axes[0].out;
    return {k / h / d, &taps_[0][static_cast<size_t>(k / h % d)],
            &taps_[1][static_cast<size_t>(k % h)]};
  }

  ResizePlan plan_;
  std::vector<Tap> taps_[3];
  int team_ = 1;
  int x_slot_, y_slot_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
  char* scratch_ = nullptr;
};

// --- nearest

/// Each element twice.
template <class T, class Two>
__attribute__((target_clones("avx2", "default"))) void doubled(const T* x, int64_t n, T* y) {
  for (int64_t k = 0; k < n; ++k) {
    const Two v = static_cast<Two>(x[k] | static_cast<Two>(x[k]) << (8 * sizeof(T)));
    std::memcpy(y + 2 * k, &v, sizeof v);
  }
}
void twice(const uint8_t* x, int64_t n, uint8_t* y) { doubled<uint8_t, uint16_t>(x, n, y); }
void twice(const uint16_t* x, int64_t n, uint16_t* y) { doubled<uint16_t, uint32_t>(x, n, y); }
void twice(const uint32_t* x, int64_t n, uint32_t* y) { doubled<uint32_t, uint64_t>(x, n, y); }
void twice(const uint64_t* x, int64_t n, uint64_t* y) {
  for (int64_t k = 0; k < n; ++k) y[2 * k] = y[2 * k + 1] = x[k];
}

/// T: an integer of an element's size.
template <class T>
class Nearest final : public ResizeKernel {
 public:
  Nearest(const KernelCall& call, const ResizePlan& plan, const Resampling& how)
      : ResizeKernel(call, plan, how) {
    const auto& along = taps_[2];
    doubles_ = plan_.run == 1 && plan_.axes[2].out == 2 * plan_.axes[2].in;
    for (size_t k = 0; k < along.size(); ++k)
      doubles_ &= along[k].low == static_cast<int64_t>(k / 2);
    if (doubles_ || plan_.run >= kLongPixel) return;
    for (const Tap& t : along)
      for (int64_t c = 0; c < plan_.run; ++c) at_.push_back(t.low * plan_.run + c);
  }
  std::string text() const override { return "resize_nearest"; }

  Status run() override {
    on_team(team_, [this](int me, int team) {
      int64_t before = -1;
      for (int64_t k = rows() * me / team; k < rows() * (me + 1) / team; ++k) {
        const Row r = row_of(k);
        const int64_t from = row_at(r.image, r.d->low, r.h->low);
        T* y = static_cast<T*>(y_) + k * row();
        if (from == before)
          std::memcpy(y, y - row(), static_cast<size_t>(row()) * sizeof(T));
        else
          make_row(static_cast<const T*>(x_) + from, y);
        before = from;
      }
    });
    return {};
  }

 private:
  void make_row(const T* x, T* y) const {
    if (doubles_) return twice(x, plan_.axes[2].in, y);
    if (!at_.empty()) {
      for (size_t k = 0; k < at_.size(); ++k) y[k] = x[at_[k]];
      return;
    }
    for (const Tap& t : taps_[2]) {
      std::memcpy(y, x + t.low * plan_.run, static_cast<size_t>(plan_.run) * sizeof(T));
      y += plan_.run;
    }
  }

  bool doubles_ = false;
  std::vector<int64_t> at_;  ///< of each element of a row, unless pixels are long
};

// --- linear

/// y = a x, or a x + b z.
template <class T, class S>
__attribute__((target_clones("avx512f", "avx2", "default"))) void mixed(const T* x, S a, const T* z,
                                                                        S b, int64_t n, S* y) {
  if (!z) {
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) y[k] = a * static_cast<S>(x[k]);
  } else {
#pragma omp simd
    for (int64_t k = 0; k < n; ++k) y[k] = a * static_cast<S>(x[k]) + b * static_cast<S>(z[k]);
  }
}

/// By element of a row: the two it is made of, and their weights.
template <class S>
struct RowTable {
  std::vector<int32_t> low, high;
  std::vector<S> first, second;
};

/// Elements of weight zero are not read into the sum, so that they cannot bring in NaN.
template <class T, class S>
__attribute__((target_clones("avx512f", "avx2", "default"))) void along(
    const S* x, const int32_t* low, const int32_t* high, const S* first, const S* second, int64_t n,
    T* y) {
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    const S a = first[k] * x[low[k]], b = second[k] * x[high[k]];
    y[k] = static_cast<T>(second[k] == 0 ? a : a + b);
  }
}

/// T: an element; S: what is computed in.
template <class T, class S>
class Linear final : public ResizeKernel {
 public:
  Linear(const KernelCall& call, const ResizePlan& plan, const Resampling& how)
      : ResizeKernel(call, plan, how) {
    if (long_pixels()) return;
    for (const Tap& t : taps_[2])
      for (int64_t c = 0; c < plan_.run; ++c) {
        table_.low.push_back(static_cast<int32_t>(t.low * plan_.run + c));
        table_.high.push_back(static_cast<int32_t>(t.high * plan_.run + c));
        table_.first.push_back(static_cast<S>(t.first));
        table_.second.push_back(static_cast<S>(t.second));
      }
  }
  std::string text() const override { return "resize_linear"; }
  /// Of each thread: two rows.
  int64_t scratch_bytes() const override {
    return team_ * 2 * row_in() * static_cast<int64_t>(sizeof(S));
  }

  Status run() override {
    on_team(team_, [this](int me, int team) {
      S* room = reinterpret_cast<S*>(scratch_) + 2 * row_in() * me;
      for (int64_t k = rows() * me / team; k < rows() * (me + 1) / team; ++k) {
        const Row r = row_of(k);
        T* y = static_cast<T*>(y_) + k * row();
        if (long_pixels() && plan_.axes[2].out <= plan_.axes[2].in && r.d->second == 0 &&
            r.h->second != 0) {
          long_row(source(r, false, false), static_cast<S>(r.h->first), source(r, false, true),
                   static_cast<S>(r.h->second), y);
          continue;
        }
        const S* x = upright(r, room);
        if (long_pixels()) {
          long_row(x, y);
          continue;
        }
        along<T, S>(x, table_.low.data(), table_.high.data(), table_.first.data(),
                    table_.second.data(), row(), y);
      }
    });
    return {};
  }

 private:
  bool long_pixels() const { return plan_.run >= kLongPixel; }

  const T* source(const Row& r, bool far_d, bool far_h) const {
    return static_cast<const T*>(x_) +
           row_at(r.image, far_d ? r.d->high : r.d->low, far_h ? r.h->high : r.h->low);
  }

  /// The row over all axes but the last.
  const S* upright(const Row& r, S* room) const {
    const bool two_d = r.d->second != 0, two_h = r.h->second != 0;
    const S d1 = static_cast<S>(r.d->first), d2 = static_cast<S>(r.d->second),
            h1 = static_cast<S>(r.h->first), h2 = static_cast<S>(r.h->second);
    if constexpr (std::is_same_v<T, S>)
      if (!two_d && !two_h && d1 == 1 && h1 == 1) return source(r, false, false);
    if (two_d && two_h) {
      S* second = room + row_in();
      for (const bool far : {false, true})
        mixed<T, S>(source(r, false, far), d1, source(r, true, far), d2, row_in(),
                    far ? second : room);
      mixed<S, S>(room, h1, second, h2, row_in(), room);
    } else if (two_d) {
      mixed<T, S>(source(r, false, false), d1, source(r, true, false), d2, row_in(), room);
    } else {
      mixed<T, S>(source(r, false, false), h1, two_h ? source(r, false, true) : nullptr, h2,
                  row_in(), room);
    }
    return room;
  }

  /// Pixel by pixel.
  void long_row(const S* x, T* y) const {
    const int64_t run = plan_.run;
    for (const Tap& t : taps_[2]) {
      const S *low = x + t.low * run, *high = x + t.high * run;
      const S a = static_cast<S>(t.first), b = static_cast<S>(t.second);
      if (t.second == 0)
        for (int64_t c = 0; c < run; ++c) y[c] = static_cast<T>(a * low[c]);
      else
        for (int64_t c = 0; c < run; ++c) y[c] = static_cast<T>(a * low[c] + b * high[c]);
      y += run;
    }
  }
  /// The same of two rows, of which fewer pixels are read than there are.
  void long_row(const T* x, S h1, const T* z, S h2, T* y) const {
    const int64_t run = plan_.run;
    for (const Tap& t : taps_[2]) {
      const T *low = x + t.low * run, *high = x + t.high * run;
      const T *low2 = z + t.low * run, *high2 = z + t.high * run;
      const S a = static_cast<S>(t.first), b = static_cast<S>(t.second);
      auto upright = [&](const T* v, const T* w, int64_t c) {
        return h1 * static_cast<S>(v[c]) + h2 * static_cast<S>(w[c]);
      };
      if (t.second == 0)
        for (int64_t c = 0; c < run; ++c) y[c] = static_cast<T>(a * upright(low, low2, c));
      else
        for (int64_t c = 0; c < run; ++c)
          y[c] = static_cast<T>(a * upright(low, low2, c) + b * upright(high, high2, c));
      y += run;
    }
  }

  RowTable<S> table_;
};

// --- what is taken

Applicable<ResizePlan> plan_of(const KernelCall& call, const Resampling& how) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), call.node->op.text(), why);
  };
  if ((how.mode != "nearest" && how.mode != "linear") || how.antialias || how.exclude_outside ||
      how.coordinates == "tf_crop_and_resize")
    return refuse("this mode");
  if (x.rank() != y.rank() || x.rank() < 1 || !call.node->attrs.ints("axes").empty())
    return refuse("these axes");
  Layout layout = Layout::plain;
  if (!x.lies(layout) || !y.lies(layout)) layout = Layout::channels_last;
  if (!x.lies(layout) || !y.lies(layout) || !call.dense()) return refuse("two layouts");
  const Operand* scales =
      call.inputs.size() > 2 && call.inputs[2].constant ? &call.inputs[2] : nullptr;
  std::vector<ResizeAxis> axes;  // as they lie in memory
  for (size_t k = 0; k < x.dims.size(); ++k) {
    ResizeAxis a{x.dims[k], y.dims[k]};
    if (a.in == 0 || a.out == 0) return refuse("an empty image");
    a.scale = static_cast<double>(a.out) / static_cast<double>(a.in);
    if (scales && scales->numel() == x.rank())
      a.scale = scales->constant->at_f64(static_cast<int64_t>(k));
    axes.push_back(a);
  }
  if (layout == Layout::channels_last) std::rotate(axes.begin() + 1, axes.begin() + 2, axes.end());
  size_t first = 0, end = axes.size();
  while (first < end && how.keeps(axes[first])) ++first;
  while (end > first && how.keeps(axes[end - 1])) --end;
  if (end - first > 3) return refuse("more than three axes");
  ResizePlan plan;
  for (size_t k = 0; k < first; ++k) plan.images *= axes[k].in;
  for (size_t k = end; k < axes.size(); ++k) plan.run *= axes[k].in;
  std::copy(axes.begin() + static_cast<std::ptrdiff_t>(first),
            axes.begin() + static_cast<std::ptrdiff_t>(end),
            plan.axes.end() - static_cast<std::ptrdiff_t>(end - first));
  if (plan.axes[2].in * plan.run > INT32_MAX) return refuse("rows of that length");
  return plan;
}

}  // namespace

Applicable<KernelPtr> make_resize(Context&, const KernelCall& call) {
  const Resampling how = Resampling::of(call.node->attrs);
  FERRULE_ASSIGN(const ResizePlan plan, plan_of(call, how));
  const DType t = call.inputs[0].dtype;
  const auto linear = [&]<class T, class S>(T, S) -> Applicable<KernelPtr> {
    return std::make_unique<Linear<T, S>>(call, plan, how);
  };
  if (how.mode == "nearest") switch (size_bits(t)) {
      case 8:
        return std::make_unique<Nearest<uint8_t>>(call, plan, how);
      case 16:
        return std::make_unique<Nearest<uint16_t>>(call, plan, how);
      case 32:
        return std::make_unique<Nearest<uint32_t>>(call, plan, how);
      case 64:
        return std::make_unique<Nearest<uint64_t>>(call, plan, how);
      default:
        break;
    }
  else
    switch (t) {
      case DType::f32:
        return linear(float{}, float{});
      case DType::f64:
        return linear(double{}, double{});
      case DType::i8:
        return linear(int8_t{}, double{});
      case DType::u8:
        return linear(uint8_t{}, double{});
      case DType::i16:
        return linear(int16_t{}, double{});
      case DType::u16:
        return linear(uint16_t{}, double{});
      case DType::i32:
        return linear(int32_t{}, double{});
      default:
        break;
    }
  return not_applicable(escape(call.layer), call.node->op.text(), name(t));
}

}  // namespace ferrule::cpu
