// What the interpreter's operator families share: one call of one operator, reading tensors of any
// element type in one compute type (float, double, int64, uint64) and writing results back with one
// rounding, checked sizes, and index arithmetic. Private to engine/interpreter. Families
// register through tables of {operator, function}, one table a file.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <fmt/ranges.h>

#include "engine/base/join.h"
#include "engine/interpreter/options.h"
#include "engine/semantics/op_formula.h"

namespace ferrule::interp {

using Dims = std::vector<int64_t>;
using Outputs = Result<std::vector<Tensor>>;

/// The values of a graph while it runs; nested graphs look captured ones up in their parent's.
struct Env {
  const Graph& g;
  const Env* parent = nullptr;
  std::vector<std::optional<Tensor>> values = std::vector<std::optional<Tensor>>(g.value_slots());
  const Tensor* find(ValueId v) const;
};

/// One operator applied to tensors.
struct Call {
  const Graph& g;
  const Node& n;
  std::span<const Tensor* const> in;
  const InterpreterOptions& options;
  Env* env = nullptr;                   ///< where nested graphs find what they capture
  std::span<const ValueId> dying = {};  ///< values in `env` that nobody reads after this call
  std::span<const Room> rooms = {};     ///< of its outputs

  /// Input `i`, or nullptr where it is left out.
  const Tensor* input(size_t i) const { return i < in.size() ? in[i] : nullptr; }
  /// Whether this call alone still reads the value, in one place.
  bool dies(ValueId v) const;
  /// Input `i`, which is not read again: without a second holder where it dies.
  Tensor taken(size_t i) const;
  bool wants(size_t output) const { return output < n.outputs.size() && n.outputs[output]; }
  std::string place() const;
  template <class... A>
  tl::unexpected<Error> bad(fmt::format_string<A...> text, A&&... args) const {
    return error(Code::bad_shape, place(), fmt::format(text, std::forward<A>(args)...));
  }
  template <class... A>
  tl::unexpected<Error> bad_attr(std::string_view name, fmt::format_string<A...> text,
                                 A&&... args) const {
    return error(Code::bad_attribute, place(), name, fmt::format(text, std::forward<A>(args)...));
  }
  tl::unexpected<Error> unsupported(std::string_view why) const;
  tl::unexpected<Error> unsupported_type(const Tensor& t) const;

  /// The first `count` inputs are there.  errors: bad_shape.
  Status need(size_t count) const;
  /// A result of these dims may be made.  errors: bad_shape (negative), limit_exceeded.
  Status fits(DType t, const Dims& dims) const;
  /// A new tensor as output `k`, in the room for it if that is of this type and size. Fill its
  /// bytes, which may hold anything, before sharing it.
  Room make(DType t, const Dims& dims, size_t k = 0) const;
  /// `axis` counted from the front, for a tensor of `rank` dims.  errors: bad_attribute.
  Result<int64_t> axis(int64_t axis, int64_t rank, std::string_view name = "axis") const;
  /// Integers of an optional input, else of the attribute of that name (older forms of an
  /// operator).
  std::optional<Dims> ints(size_t slot, std::string_view attr) const;
  /// Axes of the attribute (counted from the front, each once); all where it is not given.
  Result<Dims> axes(int64_t rank) const;
};

using Kernel = Outputs (*)(const Call&);
struct Entry {
  std::string_view op;
  Kernel run;
  size_t inputs = 0;        ///< the first so many must be there
  bool containers = false;  ///< takes sequences and optionals
};
std::vector<Entry> attention_table();
std::vector<Entry> conv_table();
std::vector<Entry> pool_table();
std::vector<Entry> matmul_table();
std::vector<Entry> shape_table();
std::vector<Entry> movement_table();
std::vector<Entry> index_table();
std::vector<Entry> order_table();
std::vector<Entry> norm_table();
std::vector<Entry> resize_table();
std::vector<Entry> quantize_table();
std::vector<Entry> rnn_table();
std::vector<Entry> control_table();
std::vector<Entry> container_table();
std::vector<Entry> text_table();
std::vector<Entry> signal_table();
std::vector<Entry> learned_table();
std::vector<Entry> random_table();
std::vector<Entry> tree_table();  ///< a part of learned_table

// --- element types

/// Reads a tensor as elements of C; converts only where the types differ.
template <class C>
class View {
 public:
  explicit View(const Tensor& t);
  const C* data() const { return data_; }
  const C& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return size_; }

 private:
  Tensor keep_;  ///< the bytes stay alive, whatever the caller does with its tensor
  std::vector<C> converted_;
  const C* data_ = nullptr;
  int64_t size_ = 0;
};

/// A tensor of `dtype` from computed values: floats rounded once, integers wrapped.
template <class C>
Tensor store(DType dtype, const Dims& dims, const std::vector<C>& values);
/// The same as output 0 of a call.
template <class C>
Tensor store(const Call& c, DType dtype, const Dims& dims, const std::vector<C>& values);

/// Output `k` of a call while it is computed in elements of C: these are its own where it has such,
/// and are stored in done() where it has others. They may hold anything at first.
template <class C>
class Made {
 public:
  Made(const Call& c, DType dtype, const Dims& dims, size_t k = 0);
  C* data() { return data_; }
  Tensor done();

 private:
  Room room_;
  std::vector<C> apart_;
  C* data_ = nullptr;
};

inline bool is_integral(DType t) { return is_int(t) || t == DType::boolean; }
/// Calls `f.operator()<C>()` with the type to compute elements of `t` in: float, double, int64,
/// uint64.
template <class F>
Outputs with_number(const Call& c, const Tensor& t, F&& f) {
  if (t.dtype() == DType::f64 || (is_float(t.dtype()) && c.options.f64))
    return f.template operator()<double>();
  if (is_float(t.dtype())) return f.template operator()<float>();
  if (t.dtype() == DType::u64) return f.template operator()<uint64_t>();
  if (is_integral(t.dtype())) return f.template operator()<int64_t>();
  return c.unsupported_type(t);
}
/// The same for operators of floating point numbers only.
template <class F>
Outputs with_float(const Call& c, const Tensor& t, F&& f) {
  if (!is_float(t.dtype())) return c.unsupported_type(t);
  if (t.dtype() == DType::f64 || c.options.f64) return f.template operator()<double>();
  return f.template operator()<float>();
}
/// + and * that wrap for integers (as hardware does) instead of being undefined.
template <class C>
C add(C a, C b) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}
template <class C>
C mul(C a, C b) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}
/// A real number in the type to compute in; for integers the nearest one, and the smallest for what
/// is no number.
template <class C>
C from_real(double v) {
  if constexpr (std::is_integral_v<C>) {
    constexpr C kLow = std::numeric_limits<C>::min(), kHigh = std::numeric_limits<C>::max();
    if (v >= static_cast<double>(kHigh) && std::isfinite(v)) return kHigh;
    return v > static_cast<double>(kLow) && std::isfinite(v) ? static_cast<C>(v) : kLow;
  } else {
    return static_cast<C>(v);
  }
}
template <class C>
bool is_nan(C v) {
  if constexpr (std::is_floating_point_v<C>)
    return std::isnan(v);
  else
    return false;
}

/// add_row: out[i] += w * in[i * step]. add_four: out[i] += x[0] * rows[0][i], then x[1] *
/// rows[1][i], … in this sequence. add_rows: the same for `count` rows of n, one after another. In
/// rows.cpp.
template <class C>
using FourRows = std::array<const C*, 4>;
#define X(C)                                                             \
  void add_row(C* out, const C* in, C w, int64_t n, int64_t step);       \
  void add_four(C* out, const FourRows<C>& rows, const C* x, int64_t n); \
  void add_rows(C* out, const C* rows, const C* x, int64_t count, int64_t n);
X(float)
X(double)
X(int64_t)
X(uint64_t)
#undef X

/// [channels, pixels] as [pixels, channels].
template <class C>
std::vector<C> channels_last(const C* x, int64_t channels, int64_t pixels) {
  std::vector<C> y(static_cast<size_t>(channels * pixels));
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < pixels; ++i) y[i * channels + c] = x[c * pixels + i];
  return y;
}

inline Outputs one(Tensor t) {
  std::vector<Tensor> out;
  out.push_back(std::move(t));
  return out;
}

// --- sizes and positions

inline int64_t count(const Dims& d, size_t from = 0, size_t to = SIZE_MAX) {
  int64_t n = 1;
  for (size_t k = from; k < std::min(to, d.size()); ++k) n *= d[k];
  return n;
}
/// Row-major strides.
inline Dims strides(const Dims& d) {
  Dims s(d.size(), 1);
  for (size_t k = d.size(); k-- > 1;) s[k - 1] = s[k] * d[k];
  return s;
}
/// Steps `index` to the next position of `dims`, row-major; false after the last.
inline bool next(Dims& index, const Dims& dims) {
  for (size_t k = dims.size(); k-- > 0;) {
    if (++index[k] < dims[k]) return true;
    index[k] = 0;
  }
  return false;
}
inline int64_t dot(const Dims& a, const Dims& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), int64_t{0});
}
/// NumPy broadcasting of two shapes.
std::optional<Dims> broadcast(const Dims& a, const Dims& b);
/// Under which dims a scale or zero point of a product's operand broadcasts over its matrices: one
/// for all, a vector of one for each row (axis -2) or column (-1), or those of each matrix.
/// errors: bad_shape.
Result<Dims> of_product(const Call& c, const Tensor& p, const Dims& matrices, int64_t axis);
/// Strides of `from` read under the dims `to` it is broadcast to (0 where it repeats).
Dims broadcast_strides(const Dims& from, const Dims& to);
/// Strided positions: result[i] = offset + sum of index * stride, row-major over `dims`.
std::vector<int64_t> positions(const Dims& dims, const Dims& strides, int64_t offset = 0);
inline std::string text(const Dims& d) { return fmt::format("[{}]", fmt::join(d, ",")); }

/// New tensor whose element i is element from[i] of `source`, or of `fill` (one element) where it
/// is < 0. Any element type, strings too: the one way in which operators that only move data move
/// it.
Tensor take(const Tensor& source, const Dims& dims, const std::vector<int64_t>& from,
            const Tensor* fill = nullptr);
/// As output 0 of a call the same in runs of so many elements that lie one after another, from[i]
/// on.
Tensor take_runs(const Call& c, const Tensor& source, const Dims& dims,
                 const std::vector<int64_t>& from, int64_t run);
/// Operands of one type one after another, as a source of take(): in movement.cpp.
Tensor joined(const std::vector<Tensor>& operands);

/// Attributes of a sliding window (convolution and pooling), checked and with pads resolved.
struct Window {
  Dims kernel, stride, dilation, begin, end;  ///< pads: begin, end
  Dims out;                                   ///< output's spatial dims
  size_t rank() const { return kernel.size(); }
};
/// `kernel` empty: read from kernel_shape.  errors: bad_shape, bad_attribute.
Result<Window> window(const Call& c, const Dims& spatial, Dims kernel, bool ceil_mode);
/// A list attribute of `rank` entries, each in [low, 2^31]; `otherwise` everywhere when absent.
Result<Dims> list_attr(const Call& c, std::string_view name, size_t rank, int64_t otherwise,
                       int64_t low);

/// Runs the graph of `env`, whose inputs are set.
Outputs run_graph(Env& env, const InterpreterOptions& options);
/// A row operator by its formula: in row_formula.cpp.
Outputs row_by_formula(const Call& c, const OpFormula& f);
/// Whether a pointwise operator reads or makes texts, which formulas do not know, and what comes of
/// it: in text.cpp.
bool has_texts(const Call& c);
Outputs pointwise_texts(const Call& c);
/// The result of a pointwise operator may be made.
Status pointwise_fits(const Call& c);
/// Runs a nested graph (If, Loop, Scan bodies, groups): in interpreter.cpp.
/// `once`: what it captures is not needed for another turn.
Outputs run_subgraph(const Call& c, const Graph& body, std::vector<Tensor> inputs,
                     bool once = false);

}  // namespace ferrule::interp
