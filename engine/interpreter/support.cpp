#include "engine/interpreter/internal.h"

#include "engine/base/native_type.h"
#include "engine/semantics/infer.h"

namespace ferrule::interp {

std::string Call::place() const {
  return fmt::format("node \"{}\" ({}, opset {})", escape(n.name), escape(n.op), n.since_opset);
}

tl::unexpected<Error> Call::unsupported(std::string_view why) const {
  return error(Code::unsupported_operator, place(), escape(n.op), why);
}

tl::unexpected<Error> Call::unsupported_type(const Tensor& t) const {
  return error(Code::unsupported_type, place(), fmt::format("element type {}", name(t.dtype())));
}

Status Call::need(size_t count) const {
  for (size_t i = 0; i < count; ++i) {
    if (!input(i)) return bad("input {} of {} is missing", i, count);
  }
  return {};
}

Status Call::fits(DType t, const Dims& dims) const {
  constexpr int64_t kElements = int64_t{1} << 31, kBytes = int64_t{8} << 30;
  const int64_t bytes_limit =
      options.limits && options.limits->memory_bytes > 0 ? options.limits->memory_bytes : kBytes;
  int64_t n = 1;
  bool zero = false;
  for (int64_t d : dims) {
    if (d < 0) return bad("a result of shape {} would have a negative dimension", text(dims));
    zero |= d == 0;
    // A product past the bound stays past it; capped, so that it cannot wrap. Zero elements never
    // count.
    if (__builtin_mul_overflow(n, std::max<int64_t>(d, 1), &n)) n = int64_t{1} << 62;
    n = std::min(n, int64_t{1} << 55);
  }
  const int64_t rank_limit = options.limits ? options.limits->rank : 64;
  if (std::ssize(dims) > rank_limit) {
    return error(Code::limit_exceeded, place(), "the rank of a result", dims.size(), rank_limit);
  }
  // Computing takes up to 8 bytes an element (doubles, positions), whatever the result's type.
  if (!zero && (n > kElements || std::max(size_bytes(t, n), 8 * n) > bytes_limit)) {
    return error(Code::limit_exceeded, place(), fmt::format("a result of shape {}", text(dims)),
                 fmt::format("{} elements", n), fmt::format("{} bytes", bytes_limit));
  }
  if (zero && n > (int64_t{1} << 54)) return bad("a result of shape {} is too large", text(dims));
  return {};
}

Result<int64_t> Call::axis(int64_t axis, int64_t rank, std::string_view name) const {
  if (axis < -rank || axis >= rank) {
    return bad_attr(name, "{} is out of range for rank {}", axis, rank);
  }
  return axis < 0 ? axis + rank : axis;
}

std::optional<Dims> Call::ints(size_t slot, std::string_view attr) const {
  if (const Tensor* t = input(slot); t && is_integral(t->dtype())) return t->to_i64();
  if (!attr.empty() && n.attrs.find(attr)) return n.attrs.ints(attr);
  return std::nullopt;
}

Result<Dims> Call::axes(int64_t rank) const {
  Dims out, given = n.attrs.ints("axes");
  if (!n.attrs.find("axes")) {
    given.resize(rank);
    std::iota(given.begin(), given.end(), 0);
  }
  for (int64_t a : given) {
    FERRULE_ASSIGN(const int64_t at, axis(a, rank, "axes"));
    if (contains(out, at)) {
      return bad_attr("axes", "{} stands there twice", a);
    }
    out.push_back(at);
  }
  return out;
}

// --- element types

namespace {

template <class C>
bool same_type(DType t) {
  if constexpr (std::is_same_v<C, float>) return t == DType::f32;
  if constexpr (std::is_same_v<C, double>) return t == DType::f64;
  if constexpr (std::is_same_v<C, int64_t>) return t == DType::i64;
  if constexpr (std::is_same_v<C, uint64_t>) return t == DType::u64;
}

// gcc 12 vectorises loops of any length only at -O3.
template <class From, class C>
__attribute__((optimize("O3"))) void convert(const Tensor& t, std::vector<C>& out) {
  const char* p = static_cast<const char*>(t.data());
  for (size_t i = 0; i < out.size(); ++i) {  // memcpy: constants in a file need not be aligned
    From v;
    std::memcpy(&v, p + i * sizeof(From), sizeof(From));
    out[i] = static_cast<C>(v);
  }
}

template <class To, class C>
__attribute__((optimize("O3"))) void put(void* to, const std::vector<C>& values) {
  To* p = static_cast<To*>(to);
  for (size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_integral_v<To> && std::is_floating_point_v<C>) {
      p[i] = saturated<To>(values[i]);
    } else {
      p[i] = static_cast<To>(values[i]);
    }
  }
}

template <class C>
void put_all(DType dtype, void* p, const std::vector<C>& values) {
  if (dtype == DType::boolean) {
    for (size_t i = 0; i < values.size(); ++i) static_cast<uint8_t*>(p)[i] = values[i] != 0;
  } else if (is_native(dtype)) {
    with_native(dtype, [&]<class To>(To) { put<To>(p, values); });
  } else if (dtype == DType::f16 && std::is_same_v<C, float>) {
    for (size_t i = 0; i < values.size(); ++i)
      static_cast<uint16_t*>(p)[i] = float_to_f16(static_cast<float>(values[i]));
  } else {
    for (size_t i = 0; i < values.size(); ++i)
      Tensor::put(dtype, p, static_cast<int64_t>(i), static_cast<double>(values[i]));
  }
}

/// Whether elements of C are those of a tensor at `bytes`, as they lie there.
template <class C>
bool lies_as(DType t, const void* bytes) {
  return same_type<C>(t) && reinterpret_cast<uintptr_t>(bytes) % alignof(C) == 0;
}

}  // namespace

template <class C>
View<C>::View(const Tensor& t) : keep_(t), size_(t.numel()) {
  if (lies_as<C>(t.dtype(), t.data())) {
    data_ = static_cast<const C*>(t.data());
    return;
  }
  converted_.resize(size_);
  if (is_native(t.dtype())) {
    with_native(t.dtype(), [&]<class From>(From) { convert<From>(t, converted_); });
  } else {
    for (int64_t i = 0; i < size_; ++i) {
      if constexpr (std::is_floating_point_v<C>)
        converted_[i] = static_cast<C>(t.at_f64(i));
      else
        converted_[i] = static_cast<C>(t.at_i64(i));
    }
  }
  data_ = converted_.data();
}

template <class C>
Tensor stored(Room room, const std::vector<C>& values) {
  auto& [t, p] = room;
  FERRULE_ASSERT(std::ssize(values) == t.numel(), "interpreter: wrong number of results");
  put_all(t.dtype(), p, values);
  return std::move(t);
}

template <class C>
Tensor store(DType dtype, const Dims& dims, const std::vector<C>& values) {
  return stored(Tensor::unwritten(dtype, dims), values);
}

template <class C>
Tensor store(const Call& c, DType dtype, const Dims& dims, const std::vector<C>& values) {
  return stored(c.make(dtype, dims), values);
}

Room Call::make(DType t, const Dims& dims, size_t k) const {
  if (k < rooms.size() && rooms[k].second && rooms[k].first.dtype() == t &&
      rooms[k].first.dims() == dims)
    return rooms[k];
  return Tensor::unwritten(t, dims);
}

template <class C>
Made<C>::Made(const Call& c, DType dtype, const Dims& dims, size_t k)
    : room_(c.make(dtype, dims, k)) {
  if (lies_as<C>(dtype, room_.second)) {
    data_ = static_cast<C*>(room_.second);
  } else {
    apart_.resize(static_cast<size_t>(room_.first.numel()));
    data_ = apart_.data();
  }
}

template <class C>
Tensor Made<C>::done() {
  return apart_.empty() ? std::move(room_.first) : stored(std::move(room_), apart_);
}

#define X(C)                                                           \
  template class View<C>;                                              \
  template class Made<C>;                                              \
  template Tensor store<C>(DType, const Dims&, const std::vector<C>&); \
  template Tensor store<C>(const Call&, DType, const Dims&, const std::vector<C>&);
X(float)
X(double)
X(int64_t)
X(uint64_t)
#undef X

// --- sizes and positions

std::optional<Dims> broadcast(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()), 1);
  for (size_t k = 0; k < out.size(); ++k) {
    const int64_t x = k < a.size() ? a[a.size() - 1 - k] : 1;
    const int64_t y = k < b.size() ? b[b.size() - 1 - k] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    out[out.size() - 1 - k] = x == 1 ? y : x;
  }
  return out;
}

Dims broadcast_strides(const Dims& from, const Dims& to) {
  const Dims own = strides(from);
  Dims out(to.size(), 0);
  for (size_t k = 0; k < from.size(); ++k) {
    const size_t at = to.size() - from.size() + k;
    out[at] = from[k] == 1 && to[at] != 1 ? 0 : own[k];
  }
  return out;
}

std::vector<int64_t> positions(const Dims& dims, const Dims& strides, int64_t offset) {
  std::vector<int64_t> out;
  const int64_t n = count(dims);
  if (n == 0) return out;
  out.reserve(n);
  if (dims.empty()) return {offset};
  Dims outer(dims.begin(), dims.end() - 1), index(outer.size(), 0);
  do {
    int64_t at = offset;
    for (size_t k = 0; k < index.size(); ++k) at += index[k] * strides[k];
    for (int64_t i = 0; i < dims.back(); ++i) out.push_back(at + i * strides.back());
  } while (next(index, outer));
  return out;
}

namespace {
template <class T>
void take_elements(const void* source, void* to, const std::vector<int64_t>& from,
                   const void* fill) {
  const char* s = static_cast<const char*>(source);
  char* out = static_cast<char*>(to);
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] >= 0)
      std::memcpy(out + i * sizeof(T), s + static_cast<size_t>(from[i]) * sizeof(T), sizeof(T));
    else if (fill)
      std::memcpy(out + i * sizeof(T), fill, sizeof(T));
  }
}
struct Bytes16 {
  char c[16];
};
}  // namespace

Tensor take(const Tensor& source, const Dims& dims, const std::vector<int64_t>& from,
            const Tensor* fill) {
  if (source.dtype() == DType::string) {
    std::vector<std::string> out(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] >= 0)
        out[i] = source.strings()[from[i]];
      else if (fill)
        out[i] = fill->strings()[0];
    }
    return Tensor(dims, std::move(out));
  }
  auto [t, p] = Tensor::allocate(source.dtype(), dims);
  FERRULE_ASSERT(std::ssize(from) == t.numel(), "interpreter: wrong number of positions");
  const void* f = fill ? fill->data() : nullptr;
  switch (size_bits(source.dtype())) {
    case 8:
      take_elements<uint8_t>(source.data(), p, from, f);
      break;
    case 16:
      take_elements<uint16_t>(source.data(), p, from, f);
      break;
    case 32:
      take_elements<uint32_t>(source.data(), p, from, f);
      break;
    case 64:
      take_elements<uint64_t>(source.data(), p, from, f);
      break;
    case 128:
      take_elements<Bytes16>(source.data(), p, from, f);
      break;
    case 4:
    case 2: {
      const int bits = size_bits(source.dtype());
      for (size_t i = 0; i < from.size(); ++i)
        set_packed(p, static_cast<int64_t>(i), bits,
                   from[i] >= 0 ? packed(source.data(), from[i], bits)
                   : f          ? packed(f, 0, bits)
                                : 0);
      break;
    }
    default:
      bug("interpreter: an element type without a size", __FILE__, __LINE__);
  }
  return t;
}

Tensor take_runs(const Call& c, const Tensor& source, const Dims& dims,
                 const std::vector<int64_t>& from, int64_t run) {
  if (run == 1) return take(source, dims, from);
  const int bits = size_bits(source.dtype());
  if (source.dtype() == DType::string || bits < 8) {
    std::vector<int64_t> each;
    each.reserve(static_cast<size_t>(std::ssize(from) * run));
    for (int64_t at : from)
      for (int64_t i = 0; i < run; ++i) each.push_back(at + i);
    return take(source, dims, each);
  }
  auto [t, p] = c.make(source.dtype(), dims);
  FERRULE_ASSERT(std::ssize(from) * run == t.numel(), "interpreter: wrong number of positions");
  const auto size = static_cast<size_t>(bits / 8), length = static_cast<size_t>(run) * size;
  char* to = static_cast<char*>(p);
  for (int64_t at : from) {
    std::memcpy(to, static_cast<const char*>(source.data()) + static_cast<size_t>(at) * size,
                length);
    to += length;
  }
  return t;
}

// --- windows

Result<Dims> list_attr(const Call& c, std::string_view name, size_t rank, int64_t otherwise,
                       int64_t low) {
  Dims v = c.n.attrs.ints(name);
  if (v.empty()) v.assign(rank, otherwise);
  if (v.size() != rank) return c.bad_attr(name, "{} entries, {} are wanted", v.size(), rank);
  for (int64_t x : v) {
    if (x < low || x > (int64_t{1} << 31)) return c.bad_attr(name, "{} is out of range", x);
  }
  return v;
}

Result<Window> window(const Call& c, const Dims& spatial, Dims kernel, bool ceil_mode) {
  Window w;
  const size_t rank = spatial.size();
  if (c.n.attrs.find("kernel_shape") && !c.n.attrs.ints("kernel_shape").empty()) {
    FERRULE_ASSIGN(auto given, list_attr(c, "kernel_shape", rank, 1, 1));
    if (!kernel.empty() && kernel != given) {
      return c.bad_attr("kernel_shape", "{} but the weights have {}", text(given), text(kernel));
    }
    kernel = given;
  }
  if (kernel.size() != rank)
    return c.bad_attr("kernel_shape", "{} entries, {} are wanted", kernel.size(), rank);
  w.kernel = kernel;
  for (int64_t k : kernel) {
    if (k < 1) return c.bad_attr("kernel_shape", "{} is out of range", k);
  }
  FERRULE_ASSIGN(w.stride, list_attr(c, "strides", rank, 1, 1));
  FERRULE_ASSIGN(w.dilation, list_attr(c, "dilations", rank, 1, 1));
  FERRULE_ASSIGN(const Dims pads, list_attr(c, "pads", 2 * rank, 0, -(int64_t{1} << 31)));
  w.begin.assign(pads.begin(), pads.begin() + rank);
  w.end.assign(pads.begin() + rank, pads.end());
  const std::string mode = c.n.attrs.s("auto_pad", "NOTSET");
  for (size_t k = 0; k < rank; ++k) {
    const int64_t reach = (w.kernel[k] - 1) * w.dilation[k] + 1;
    if (mode == "VALID") {
      w.begin[k] = w.end[k] = 0;
    } else if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
      const int64_t out = (spatial[k] + w.stride[k] - 1) / w.stride[k];
      const int64_t pad = std::max<int64_t>(0, (out - 1) * w.stride[k] + reach - spatial[k]);
      w.begin[k] = mode == "SAME_UPPER" ? pad / 2 : pad - pad / 2;
      w.end[k] = pad - w.begin[k];
    } else if (mode != "NOTSET" && !mode.empty()) {
      return c.bad_attr("auto_pad", "unknown value \"{}\"", escape(mode));
    }
    const int64_t out = window_out(Dim(spatial[k]), w.begin[k], w.end[k], w.kernel[k], w.stride[k],
                                   w.dilation[k], ceil_mode)
                            .value_or(-1);
    if (out < (spatial[k] == 0 ? 0 : 1)) {
      return c.bad("a window of {} does not fit into {} with pads {} and {}", reach, spatial[k],
                   w.begin[k], w.end[k]);
    }
    w.out.push_back(out);
  }
  return w;
}

}  // namespace ferrule::interp
