// Operators driven by indices or by the order of elements: GatherElements, ScatterElements,
// ScatterND, OneHot, ArgMax, ArgMin and TopK, over plain tensors. Indices are checked as they are
// read; one that is out of range is the run's error.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <variant>

#include "engine/base/diagnostics.h"
#include "engine/semantics/line_order.h"
#include "runtime/cpu/kernel.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kIndexedGrain = 8192;  ///< elements a thread at least

/// f(T()) with the type of integer indices; false: they are none.
template <class F>
bool with_index_type(DType t, F&& f) {
  switch (t) {
    case DType::i32:
      return f(int32_t{}), true;
    case DType::i64:
      return f(int64_t{}), true;
    case DType::i16:
      return f(int16_t{}), true;
    case DType::i8:
      return f(int8_t{}), true;
    case DType::u8:
      return f(uint8_t{}), true;
    case DType::u16:
      return f(uint16_t{}), true;
    case DType::u32:
      return f(uint32_t{}), true;
    case DType::u64:
      return f(uint64_t{}), true;
    default:
      return false;
  }
}
/// The same with the type of numbers that are compared and added.
template <class F>
bool with_number_type(DType t, F&& f) {
  if (t == DType::f32) return f(float{}), true;
  if (t == DType::f64) return f(double{}), true;
  return with_index_type(t, std::forward<F>(f));
}
/// The same with an integer as large as an element that is only moved.
template <class F>
bool with_size(DType t, F&& f) {
  switch (size_bits(t)) {
    case 8:
      return f(uint8_t{}), true;
    case 16:
      return f(uint16_t{}), true;
    case 32:
      return f(uint32_t{}), true;
    case 64:
      return f(uint64_t{}), true;
    default:
      return false;
  }
}

int64_t product_of(const std::vector<int64_t>& dims, size_t from, size_t to) {
  return std::accumulate(dims.begin() + static_cast<std::ptrdiff_t>(from),
                         dims.begin() + static_cast<std::ptrdiff_t>(to), int64_t{1},
                         std::multiplies());
}

/// Operands and results as plain memory.
class Plain : public Kernel {
 public:
  explicit Plain(const KernelCall& call) : layer_(call.layer), name_(call.node->op.text()) {
    for (const Operand& o : call.inputs) {
      slots_.push_back(o.slot);
      in_.push_back(o.constant ? o.constant->data() : nullptr);
    }
    for (const Operand& o : call.outputs) out_slots_.push_back(o.slot);
    out_.resize(out_slots_.size());
  }
  void bind(Binder& binder) override {
    for (size_t k = 0; k < in_.size(); ++k)
      if (slots_[k] >= 0) binder.cell(slots_[k], &in_[k]);
    for (size_t k = 0; k < out_.size(); ++k)
      if (out_slots_[k] >= 0) binder.cell(out_slots_[k], &out_[k]);
  }
  std::string text() const override { return "indexed"; }

 protected:
  template <class T>
  const T* in(size_t k) const {
    return static_cast<const T*>(in_[k]);
  }
  template <class T>
  T* out(size_t k) const {
    return k < out_.size() ? static_cast<T*>(out_[k]) : nullptr;
  }
  Status out_of_range(int64_t index, int64_t size) const {
    return error(Code::bad_shape, escape(layer_),
                 fmt::format("index {} is out of range for {}", index, size));
  }
  std::string layer_, name_;

 private:
  std::vector<int> slots_, out_slots_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
};

// --- along an axis

/// Positions in an operand of `dims` along `axis`, for each element of a tensor of indices.
class AlongAxis {
 public:
  AlongAxis(const std::vector<int64_t>& dims, const std::vector<int64_t>& indices, size_t axis)
      : indices_(indices), apart_(strides_of(dims, Layout::plain)), axis_(axis), n_(dims[axis]) {}

  /// Whether the indices choose within rows, which are the operand's, too.
  bool along_rows() const { return axis_ + 1 == indices_.size(); }
  int64_t rows() const { return row() ? numel() / row() : 0; }
  int64_t row() const { return indices_.empty() ? 1 : indices_.back(); }
  int64_t numel() const { return product_of(indices_, 0, indices_.size()); }
  int64_t size() const { return n_; }

  /// y[k] = x[index[k]] of rows [begin, end), without a branch for each element.
  template <class E, class T>
  std::optional<int64_t> gather_rows(const E* x, const T* index, int64_t begin, int64_t end,
                                     E* y) const {
    const auto n = static_cast<uint64_t>(n_);
    for (int64_t r = begin; r < end; ++r) {
      const E* from = x + row_start(r);
      const T* at = index + r * row();
      E* to = y + r * row();
      bool wrong = false;
      for (int64_t k = 0; k < row(); ++k) {
        const auto i = static_cast<int64_t>(at[k]);
        const uint64_t j = static_cast<uint64_t>(i) + (i < 0 ? n : 0);
        wrong |= j >= n;
        to[k] = from[j < n ? j : 0];
      }
      if (!wrong) continue;
      for (int64_t k = 0; k < row(); ++k)
        if (const auto i = static_cast<int64_t>(at[k]); i < -n_ || i >= n_) return i;
    }
    return std::nullopt;
  }

  /// f(element of the indices, position) for rows [begin, end); the first index that is out of
  /// range ends it.
  template <class T, class F>
  std::optional<int64_t> each(const T* index, int64_t begin, int64_t end, F&& f) const {
    const size_t last = indices_.size() - 1;
    const int64_t step = axis_ == last ? 0 : apart_[last];
    for (int64_t r = begin; r < end; ++r) {
      const int64_t base = row_start(r);
      for (int64_t k = 0; k < row(); ++k) {
        auto i = static_cast<int64_t>(index[r * row() + k]);
        if (i < -n_ || i >= n_) return i;
        i += i < 0 ? n_ : 0;
        f(r * row() + k, base + k * step + i * apart_[axis_]);
      }
    }
    return std::nullopt;
  }

 private:
  /// Where row r of the indices begins in the operand, at index 0 of the axis.
  int64_t row_start(int64_t r) const {
    int64_t base = 0;
    for (size_t a = indices_.size() - 1; a-- > 0;) {
      if (a != axis_) base += r % indices_[a] * apart_[a];
      r /= indices_[a];
    }
    return base;
  }

  std::vector<int64_t> indices_, apart_;
  size_t axis_;
  int64_t n_;
};

class GatherElementsKernel final : public Plain {
 public:
  GatherElementsKernel(const KernelCall& call, AlongAxis along)
      : Plain(call),
        along_(std::move(along)),
        index_(call.inputs[1].dtype),
        element_(call.inputs[0].dtype) {}

  Status run() override {
    std::atomic<bool> wrong = false;
    int64_t what = 0;
    with_size(element_, [&](auto e) {
      with_index_type(index_, [&](auto i) {
        using E = decltype(e);
        using I = decltype(i);
        const E* x = in<E>(0);
        E* y = out<E>(0);
        parallel_for(
            along_.rows(), 1 + kIndexedGrain / (along_.row() + 1), [&](int64_t begin, int64_t end) {
              const auto bad = along_.along_rows() && along_.size() > 0
                                   ? along_.gather_rows(x, in<I>(1), begin, end, y)
                                   : along_.each(in<I>(1), begin, end,
                                                 [&](int64_t k, int64_t at) { y[k] = x[at]; });
              if (bad && !wrong.exchange(true)) what = *bad;
            });
      });
    });
    return wrong ? out_of_range(what, along_.size()) : Status{};
  }

 private:
  AlongAxis along_;
  DType index_, element_;
};

/// How an update meets what is there.
enum class Reduction : uint8_t { none, add, mul, max, min };

std::optional<Reduction> reduction_of(const KernelCall& call) {
  const std::string how = call.node->attrs.s("reduction", "none");
  if (how == "none" || how.empty()) return Reduction::none;
  if (how == "add") return Reduction::add;
  if (how == "mul") return Reduction::mul;
  if (how == "max") return Reduction::max;
  return how == "min" ? std::optional(Reduction::min) : std::nullopt;
}

/// Integers wrap.
template <class T>
T reduced(Reduction how, T v, T w) {
  using Whole = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  switch (how) {
    case Reduction::add:
      return static_cast<T>(static_cast<Whole>(v) + static_cast<Whole>(w));
    case Reduction::mul:
      return static_cast<T>(static_cast<Whole>(v) * static_cast<Whole>(w));
    case Reduction::max:
      return std::max(v, w);
    case Reduction::min:
      return std::min(v, w);
    default:
      return w;
  }
}

/// The same of slices: the loops are made for each reduction.
template <class T>
void reduce_slice(Reduction how, const T* from, int64_t n, T* to) {
  auto each = [&](auto which) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = reduced(which(), to[i], from[i]);
  };
  switch (how) {
    case Reduction::add:
      return each([] { return Reduction::add; });
    case Reduction::mul:
      return each([] { return Reduction::mul; });
    case Reduction::max:
      return each([] { return Reduction::max; });
    case Reduction::min:
      return each([] { return Reduction::min; });
    default:
      break;
  }
}

/// Positions of the slices that tuples of indices name: the first `depth` axes of an operand.
class Tuples {
 public:
  Tuples(const std::vector<int64_t>& dims, int64_t tuples, size_t depth)
      : dims_(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(depth)),
        apart_(strides_of(dims, Layout::plain)),
        tuples_(tuples),
        slice_(product_of(dims, depth, dims.size())) {}

  /// f(element of the updates, position, length) for all slices; the first index that is out of
  /// range, and what it should be below, end it.
  template <class T, class F>
  std::optional<std::pair<int64_t, int64_t>> each(const T* index, F&& f) const {
    for (int64_t t = 0; t < tuples_; ++t) {
      int64_t at = 0;
      for (size_t k = 0; k < dims_.size(); ++k, ++index) {
        const auto i = static_cast<int64_t>(*index);
        if (i < -dims_[k] || i >= dims_[k]) return std::pair(i, dims_[k]);
        at += (i < 0 ? i + dims_[k] : i) * apart_[k];
      }
      f(t * slice_, at, slice_);
    }
    return std::nullopt;
  }

 private:
  std::vector<int64_t> dims_, apart_;
  int64_t tuples_, slice_;
};

/// Updates one after the other: of several at one place, the last one stays, or all are combined.
class Scatter final : public Plain {
 public:
  Scatter(const KernelCall& call, Reduction how, std::variant<AlongAxis, Tuples> places)
      : Plain(call),
        how_(how),
        index_(call.inputs[1].dtype),
        element_(call.inputs[0].dtype),
        bytes_(call.inputs[0].bytes()),
        places_(std::move(places)) {}

  Status run() override {
    count_kernel();
    std::memcpy(out<char>(0), in<char>(0), static_cast<size_t>(bytes_));
    Status status;
    auto put = [&](auto e) { with_index_type(index_, [&](auto i) { status = scatter(e, i); }); };
    how_ == Reduction::none ? with_size(element_, put) : with_number_type(element_, put);
    return status;
  }

 private:
  template <class E, class I>
  Status scatter(E, I) const {
    const E* updates = in<E>(2);
    E* y = out<E>(0);
    auto put = [&](int64_t k, int64_t at, int64_t n = 1) {
      if (how_ == Reduction::none)
        std::copy_n(updates + k, n, y + at);
      else if (n == 1)
        y[at] = reduced(how_, y[at], updates[k]);
      else
        reduce_slice(how_, updates + k, n, y + at);
    };
    if (const auto* along = std::get_if<AlongAxis>(&places_)) {
      const auto bad = along->each(in<I>(1), 0, along->rows(), put);
      return bad ? out_of_range(*bad, along->size()) : Status{};
    }
    const auto bad = std::get_if<Tuples>(&places_)->each(in<I>(1), put);
    return bad ? out_of_range(bad->first, bad->second) : Status{};
  }

  Reduction how_;
  DType index_, element_;
  int64_t bytes_;
  std::variant<AlongAxis, Tuples> places_;
};

/// `off` everywhere, `on` where an index says so; others say nothing.
class OneHotKernel final : public Plain {
 public:
  OneHotKernel(const KernelCall& call, int64_t depth, int64_t inner)
      : Plain(call),
        index_(call.inputs[0].dtype),
        element_(call.outputs[0].dtype),
        depth_(depth),
        inner_(inner),
        indices_(call.inputs[0].numel()) {}

  Status run() override {
    count_kernel();
    with_size(element_, [&](auto e) {
      with_index_type(index_, [&](auto i) {
        using E = decltype(e);
        const E* values = in<E>(2);
        const auto* index = in<decltype(i)>(0);
        E* y = out<E>(0);
        std::fill_n(y, indices_ * depth_, values[0]);
        for (int64_t k = 0; k < indices_; ++k) {
          auto v = static_cast<int64_t>(index[k]);
          if (v < -depth_ || v >= depth_) continue;
          v += v < 0 ? depth_ : 0;
          y[(k / inner_ * depth_ + v) * inner_ + k % inner_] = values[1];
        }
      });
    });
    return {};
  }

 private:
  DType index_, element_;
  int64_t depth_, inner_, indices_;
};

// --- in order

int64_t grain_of(const Lines& l) { return 1 + kIndexedGrain / (l.length + 1); }

class ArgKernel final : public Plain {
 public:
  ArgKernel(const KernelCall& call, size_t axis, bool largest)
      : Plain(call),
        element_(call.inputs[0].dtype),
        lines_(lines_along(call.inputs[0].dims, axis)),
        largest_(largest),
        last_(call.node->attrs.i("select_last_index") != 0) {}

  Status run() override {
    with_number_type(element_, [&](auto e) {
      const auto* x = in<decltype(e)>(0);
      int64_t* y = out<int64_t>(0);
      parallel_for(lines_.size(), grain_of(lines_), [&](int64_t begin, int64_t end) {
        extremes(x, lines_, begin, end, largest_, last_, y);
      });
    });
    return {};
  }

 private:
  DType element_;
  Lines lines_;
  bool largest_, last_;
};

class TopKKernel final : public Plain {
 public:
  TopKKernel(const KernelCall& call, size_t axis, int64_t k)
      : Plain(call),
        element_(call.inputs[0].dtype),
        lines_(lines_along(call.inputs[0].dims, axis)),
        k_(k),
        largest_(call.node->attrs.i("largest", 1) != 0) {
    team_ = std::clamp<int64_t>(lines_.size() / grain_of(lines_), 1, threads());
  }

  int64_t scratch_bytes() const override {
    return team_ * ranking_room(k_) * static_cast<int64_t>(sizeof(Ranked<double>));
  }
  void bind(Binder& binder) override {
    Plain::bind(binder);
    first_ = binder.scratch();
  }

  Status run() override {
    with_number_type(element_, [&](auto e) {
      on_team(team_, [&](int me, int team) {
        auto* first = static_cast<Ranked<decltype(e)>*>(first_) + me * ranking_room(k_);
        for (int64_t line = lines_.size() * me / team; line < lines_.size() * (me + 1) / team;
             ++line)
          select(line, first);
      });
    });
    return {};
  }

 private:
  template <class T>
  void select(int64_t line, Ranked<T>* first) const {
    first_of_line(in<T>(0) + lines_.start(line), lines_.length, lines_.step, largest_, first, k_);
    const int64_t to = line / lines_.step * k_ * lines_.step + line % lines_.step;
    for (int64_t i = 0; i < k_; ++i) {
      if (T* y = out<T>(0)) y[to + i * lines_.step] = first[i].value;
      if (int64_t* y = out<int64_t>(1)) y[to + i * lines_.step] = first[i].at;
    }
  }

  DType element_;
  Lines lines_;
  int64_t k_, team_ = 1;
  bool largest_;
  void* first_ = nullptr;  ///< of each thread what ranking_room() says
};

// --- what is taken

class Taker {
 public:
  explicit Taker(const KernelCall& call) : call_(call) {}

  Applicable<> plain() const {
    for (const auto* operands : {&call_.inputs, &call_.outputs})
      for (const Operand& o : *operands)
        if (o.present() && !o.lies(Layout::plain)) return refuse("another layout");
    return {};
  }
  tl::unexpected<NotApplicable> refuse(std::string_view why) const {
    return not_applicable(escape(call_.layer), call_.node->op.text(), why);
  }
  const Operand& x() const { return call_.inputs[0]; }
  std::optional<size_t> axis(int64_t otherwise, int rank) const {
    int64_t a = call_.node->attrs.i("axis", otherwise);
    a += a < 0 ? rank : 0;
    return a >= 0 && a < rank ? std::optional(static_cast<size_t>(a)) : std::nullopt;
  }
  static bool integers(const Operand& o) {
    return with_index_type(o.dtype, [](auto) {});
  }
  static bool numbers(const Operand& o) {
    return with_number_type(o.dtype, [](auto) {});
  }
  static bool whole_bytes(const Operand& o) {
    return with_size(o.dtype, [](auto) {});
  }

  /// `of`: the operand that the indices lie in.
  Applicable<AlongAxis> along() const {
    const auto a = axis(0, x().rank());
    const Operand& indices = call_.inputs[1];
    if (!a || !integers(indices) || indices.rank() != x().rank())
      return refuse("indices of another form");
    for (size_t k = 0; k < x().dims.size(); ++k)
      if (k != *a && indices.dims[k] > x().dims[k]) return refuse("more indices than elements");
    return AlongAxis(x().dims, indices.dims, *a);
  }

  Applicable<KernelPtr> gather_elements() const {
    if (!whole_bytes(x())) return refuse(name(x().dtype));
    FERRULE_ASSIGN(AlongAxis places, along());
    return std::make_unique<GatherElementsKernel>(call_, std::move(places));
  }

  Applicable<Reduction> reduction() const {
    const auto how = reduction_of(call_);
    if (!how || x().dtype != call_.inputs[2].dtype) return refuse("an unknown reduction");
    if (!(*how == Reduction::none ? whole_bytes(x()) : numbers(x())))
      return refuse(name(x().dtype));
    return *how;
  }

  Applicable<KernelPtr> scatter_elements() const {
    FERRULE_ASSIGN(const Reduction how, reduction());
    FERRULE_ASSIGN(AlongAxis places, along());
    if (call_.inputs[2].dims != call_.inputs[1].dims) return refuse("updates of another size");
    return std::make_unique<Scatter>(call_, how, std::move(places));
  }

  Applicable<KernelPtr> scatter_nd() const {
    FERRULE_ASSIGN(const Reduction how, reduction());
    const Operand& indices = call_.inputs[1];
    if (!integers(indices) || indices.rank() < 1 || indices.dims.back() < 1 ||
        indices.dims.back() > x().rank())
      return refuse("indices of another form");
    const auto depth = static_cast<size_t>(indices.dims.back());
    std::vector<int64_t> wanted(indices.dims.begin(), indices.dims.end() - 1);
    wanted.insert(wanted.end(), x().dims.begin() + static_cast<std::ptrdiff_t>(depth),
                  x().dims.end());
    if (call_.inputs[2].dims != wanted) return refuse("updates of another size");
    return std::make_unique<Scatter>(
        call_, how, Tuples(x().dims, indices.numel() / indices.dims.back(), depth));
  }

  Applicable<KernelPtr> one_hot() const {
    const Operand &depth = call_.inputs[1], &y = call_.outputs[0];
    const auto a = axis(-1, x().rank() + 1);
    if (!a || !depth.constant || depth.constant->numel() != 1 || call_.inputs[2].numel() != 2 ||
        !integers(x()) || !whole_bytes(y) || y.dims[*a] != depth.constant->at_i64(0))
      return refuse("a depth or indices of another form");
    return std::make_unique<OneHotKernel>(call_, y.dims[*a],
                                          product_of(x().dims, *a, x().dims.size()));
  }

  Applicable<KernelPtr> arg(bool largest) const {
    const auto a = axis(0, x().rank());
    if (!a || !numbers(x()) || x().dims[*a] == 0)
      return refuse("an axis or elements it cannot search");
    return std::make_unique<ArgKernel>(call_, *a, largest);
  }

  Applicable<KernelPtr> topk() const {
    const auto a = axis(-1, x().rank());
    const Operand* y = nullptr;
    for (const Operand& o : call_.outputs)
      if (o.present()) y = &o;
    if (!a || !numbers(x()) || !y || y->dims[*a] > x().dims[*a])
      return refuse("an axis or elements it cannot sort");
    const Operand* k = call_.own_input(1);
    if (k && (!k->constant || k->constant->numel() != 1 || k->constant->at_i64(0) != y->dims[*a]))
      return refuse("a count that is computed");
    return std::make_unique<TopKKernel>(call_, *a, y->dims[*a]);
  }

  const KernelCall& call_;
};

/// `kernel(taker)` makes it.
template <class F>
Applicable<KernelPtr> taken(const KernelCall& call, F kernel) {
  const Taker taker(call);
  FERRULE_TRY(taker.plain());
  return std::invoke(kernel, taker);
}

}  // namespace

Applicable<KernelPtr> make_gather_elements(Context&, const KernelCall& call) {
  return taken(call, &Taker::gather_elements);
}
Applicable<KernelPtr> make_scatter_elements(Context&, const KernelCall& call) {
  return taken(call, &Taker::scatter_elements);
}
Applicable<KernelPtr> make_scatter_nd(Context&, const KernelCall& call) {
  return taken(call, &Taker::scatter_nd);
}
Applicable<KernelPtr> make_one_hot(Context&, const KernelCall& call) {
  return taken(call, &Taker::one_hot);
}
Applicable<KernelPtr> make_argmax(Context&, const KernelCall& call) {
  return taken(call, [](const Taker& t) { return t.arg(true); });
}
Applicable<KernelPtr> make_argmin(Context&, const KernelCall& call) {
  return taken(call, [](const Taker& t) { return t.arg(false); });
}
Applicable<KernelPtr> make_topk(Context&, const KernelCall& call) {
  return taken(call, &Taker::topk);
}

}  // namespace ferrule::cpu
