// Operators driven by tensors of indices: gather, scatter, one-hot, non-zero, compress.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

/// An index counted from the front.  errors: bad_shape.
Result<int64_t> in_range(const Call& c, int64_t i, int64_t size) {
  if (i < -size || i >= size) return c.bad("index {} is out of range for {}", i, size);
  return i < 0 ? i + size : i;
}

Status need_indices(const Call& c, size_t slot) {
  FERRULE_TRY(c.need(slot + 1));
  if (!is_int(c.input(slot)->dtype())) return c.unsupported_type(*c.input(slot));
  return {};
}

/// Where in an operand of these dims the elements named by `indices` along an axis lie.
Result<std::vector<int64_t>> along_axis(const Call& c, const Tensor& x, const Tensor& indices) {
  FERRULE_ASSIGN(const size_t a, c.axis(c.n.attrs.i("axis", 0), x.rank()));
  bool inside = indices.rank() == x.rank();
  for (size_t k = 0; inside && k < x.dims().size(); ++k)
    inside = k == a || indices.dims()[k] <= x.dims()[k];
  if (!inside) return c.bad("indices {} for {}", text(indices.dims()), text(x.dims()));
  const Dims own = strides(x.dims());
  std::vector<int64_t> out(indices.numel());
  Dims at(indices.dims().size(), 0);
  for (size_t i = 0; i < out.size(); ++i, next(at, indices.dims())) {
    FERRULE_ASSIGN(const int64_t r, in_range(c, indices.at_i64(i), x.dims()[a]));
    out[i] = dot(at, own) + (r - at[a]) * own[a];
  }
  return out;
}

/// Where the slices begin that tuples of indices name, one along the last axis of `indices`; the
/// first `batches` axes are common to both.
Result<std::vector<int64_t>> of_tuples(const Call& c, const Tensor& x, const Tensor& indices,
                                       int64_t batches) {
  const int64_t depth = indices.dims().back(),
                tuples = count(indices.dims(), 0, indices.rank() - 1),
                each = count(indices.dims(), batches, indices.rank() - 1);
  const Dims own = strides(x.dims());
  const int64_t apart = batches > 0 ? own[batches - 1] : 0;
  const View<int64_t> index(indices);
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(tuples));
  for (int64_t t = 0; t < tuples; ++t) {
    int64_t at = t / each * apart;
    for (int64_t k = 0; k < depth; ++k) {
      FERRULE_ASSIGN(const int64_t r, in_range(c, index[t * depth + k], x.dims()[batches + k]));
      at += r * own[batches + k];
    }
    out.push_back(at);
  }
  return out;
}

Outputs gather_nd(const Call& c) {
  FERRULE_TRY(need_indices(c, 1));
  const Tensor &x = *c.input(0), &indices = *c.input(1);
  const int64_t batches = c.n.attrs.i("batch_dims", 0);
  const int64_t least = std::min(x.rank(), indices.rank());
  if (batches < 0 || batches >= least ||
      !std::equal(x.dims().begin(), x.dims().begin() + batches, indices.dims().begin()) ||
      indices.dims().back() < 1 || indices.dims().back() > x.rank() - batches)
    return c.bad("indices {} for {}, {} common", text(indices.dims()), text(x.dims()),
                 counted(batches, "axis"));
  const auto from = static_cast<size_t>(batches + indices.dims().back());
  Dims out(indices.dims().begin(), indices.dims().end() - 1);
  out.insert(out.end(), x.dims().begin() + static_cast<std::ptrdiff_t>(from), x.dims().end());
  FERRULE_TRY(c.fits(x.dtype(), out));
  FERRULE_ASSIGN(const auto starts, of_tuples(c, x, indices, batches));
  return one(take_runs(c, x, out, starts, count(x.dims(), from)));
}

Outputs gather_elements(const Call& c) {
  FERRULE_TRY(need_indices(c, 1));
  FERRULE_ASSIGN(const auto from, along_axis(c, *c.input(0), *c.input(1)));
  return one(take(*c.input(0), c.input(1)->dims(), from));
}

// --- scatter

/// x with runs of elements of the updates put at, or combined with what is at, the positions `to`,
/// one after another.
Outputs scatter_to(const Call& c, const Tensor& x, const Tensor& updates,
                   const std::vector<int64_t>& to, int64_t run = 1) {
  const std::string how = c.n.attrs.s("reduction", "none");
  if (updates.dtype() != x.dtype())
    return c.bad("updates of type {} for {}", name(updates.dtype()), name(x.dtype()));
  if (how == "none" || how.empty()) {
    if (x.dtype() == DType::string) {
      std::vector<std::string> y = x.strings();
      for (int64_t i = 0; i < updates.numel(); ++i) y[to[i / run] + i % run] = updates.strings()[i];
      return one(Tensor(x.dims(), std::move(y)));
    }
    if (size_bits(x.dtype()) < 8) return c.unsupported_type(x);
    auto [y, p] = c.make(x.dtype(), x.dims());
    if (x.numel() == 0) return one(std::move(y));
    const int64_t size = size_bits(x.dtype()) / 8;
    std::memcpy(p, x.data(), static_cast<size_t>(x.bytes()));
    const char* from = static_cast<const char*>(updates.data());
    for (int64_t at : to) {
      std::memcpy(static_cast<char*>(p) + at * size, from, static_cast<size_t>(run * size));
      from += run * size;
    }
    return one(std::move(y));
  }
  if (how != "add" && how != "mul" && how != "max" && how != "min") {
    return c.bad_attr("reduction", "unknown value \"{}\"", escape(how));
  }
  return with_number(c, x, [&]<class C>() {
    const View<C> in(x), u(updates);
    Made<C> y(c, x.dtype(), x.dims());
    std::copy_n(in.data(), in.size(), y.data());
    auto combine = [&](auto f) {
      const C* from = u.data();
      for (int64_t at : to)
        for (C* v = y.data() + at; v < y.data() + at + run; ++v) *v = f(*v, *from++);
    };
    if (how == "add")
      combine([](C a, C b) { return add(a, b); });
    else if (how == "mul")
      combine([](C a, C b) { return mul(a, b); });
    else if (how == "max")
      combine([](C a, C b) { return std::max(a, b); });
    else
      combine([](C a, C b) { return std::min(a, b); });
    return one(y.done());
  });
}

Outputs scatter_elements(const Call& c) {
  FERRULE_TRY(need_indices(c, 1));
  const Tensor &x = *c.input(0), &indices = *c.input(1), &updates = *c.input(2);
  if (updates.dims() != indices.dims()) {
    return c.bad("indices {} and updates {} for {}", text(indices.dims()), text(updates.dims()),
                 text(x.dims()));
  }
  FERRULE_ASSIGN(const auto to, along_axis(c, x, indices));
  return scatter_to(c, x, updates, to);
}

Outputs scatter_nd(const Call& c) {
  FERRULE_TRY(need_indices(c, 1));
  const Tensor &x = *c.input(0), &indices = *c.input(1), &updates = *c.input(2);
  if (indices.rank() < 1 || indices.dims().back() > x.rank() || indices.dims().back() < 1) {
    return c.bad("indices {} for {}", text(indices.dims()), text(x.dims()));
  }
  const int64_t depth = indices.dims().back();
  Dims wanted(indices.dims().begin(), indices.dims().end() - 1);
  wanted.insert(wanted.end(), x.dims().begin() + depth, x.dims().end());
  if (updates.dims() != wanted)
    return c.bad("updates {}, {} are wanted", text(updates.dims()), text(wanted));
  FERRULE_ASSIGN(const auto starts, of_tuples(c, x, indices, 0));
  return scatter_to(c, x, updates, starts, count(x.dims(), static_cast<size_t>(depth)));
}

/// A stretch of the sequence axis is overwritten, at a position of its own for each batch.
Outputs tensor_scatter(const Call& c) {
  const Tensor &past = *c.input(0), &update = *c.input(1);
  FERRULE_ASSIGN(const size_t a, c.axis(c.n.attrs.i("axis", -2), past.rank()));
  Dims same = update.dims();
  if (update.rank() != past.rank() || a == 0)
    return c.bad("update {} for {}", text(update.dims()), text(past.dims()));
  same[a] = past.dims()[a];
  if (same != past.dims() || update.dims()[a] > past.dims()[a])
    return c.bad("update {} for {}", text(update.dims()), text(past.dims()));
  const bool circular = c.n.attrs.s("mode", "linear") == "circular";
  const Tensor* starts = c.input(2);
  if (starts && (starts->dtype() != DType::i64 || starts->numel() != past.dims()[0]))
    return c.bad("{} write indices for {} batches", starts->numel(), past.dims()[0]);
  const Dims own = strides(past.dims());
  std::vector<int64_t> to(update.numel());
  Dims at(update.dims().size(), 0);
  for (size_t i = 0; i < to.size(); ++i, next(at, update.dims())) {
    const int64_t start = starts ? starts->at_i64(at[0]) : 0;
    if (start < 0 || start > past.dims()[a]) return c.bad("write index {} is out of range", start);
    int64_t step = start + at[a];
    if (circular) step %= past.dims()[a];
    if (step >= past.dims()[a])
      return c.bad("write index {} with {} steps leaves {}", start, update.dims()[a],
                   past.dims()[a]);
    to[i] = dot(at, own) + (step - at[a]) * own[a];
  }
  return scatter_to(c, past, update, to);
}

// --- from values to positions

Outputs one_hot(const Call& c) {
  const Tensor &indices = *c.input(0), &depth_in = *c.input(1), &values = *c.input(2);
  if (depth_in.numel() != 1 || values.numel() != 2)
    return c.bad("depth {} and values {}", text(depth_in.dims()), text(values.dims()));
  if (!is_integral(indices.dtype()) && !is_float(indices.dtype()))
    return c.unsupported_type(indices);
  const int64_t depth = depth_in.at_i64(0);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", -1), indices.rank() + 1));
  Dims out = indices.dims();
  out.insert(out.begin() + axis, depth);
  FERRULE_TRY(c.fits(values.dtype(), out));
  const int64_t inner = count(indices.dims(), static_cast<size_t>(axis));
  std::vector<int64_t> from(count(out), 0);
  for (int64_t i = 0; i < indices.numel(); ++i) {
    int64_t v = indices.at_i64(i);
    if (v < -depth || v >= depth) continue;  // an index outside gives a row of off values
    if (v < 0) v += depth;
    from[(i / inner * depth + v) * inner + i % inner] = 1;
  }
  return one(take(values, out, from));
}

/// Where the elements lie of which a bit of `mask` is set.
template <class Bits>
std::vector<int64_t> with_bits(const Tensor& x, Bits mask) {
  std::vector<int64_t> found;
  const char* p = static_cast<const char*>(x.data());
  for (int64_t i = 0; i < x.numel(); ++i, p += sizeof(Bits)) {
    Bits v;
    std::memcpy(&v, p, sizeof v);
    if (v & mask) found.push_back(i);
  }
  return found;
}

/// Where the elements lie that are not 0; the sign of a float does not count.
std::vector<int64_t> positions_of_others(const Tensor& x) {
  const int bits = size_bits(x.dtype());
  const uint64_t mask = is_float(x.dtype()) ? ~(uint64_t{1} << (bits - 1)) : ~uint64_t{0};
  if (bits == 64) return with_bits(x, mask);
  if (bits == 32) return with_bits(x, static_cast<uint32_t>(mask));
  if (bits == 16) return with_bits(x, static_cast<uint16_t>(mask));
  if (bits == 8 && !is_float(x.dtype())) return with_bits(x, static_cast<uint8_t>(mask));
  std::vector<int64_t> found;
  for (int64_t i = 0; i < x.numel(); ++i)
    if (x.at_f64(i) != 0) found.push_back(i);
  return found;
}

Outputs non_zero(const Call& c) {
  const Tensor& x = *c.input(0);
  if (!is_float(x.dtype()) && !is_integral(x.dtype())) return c.unsupported_type(x);
  const std::vector<int64_t> found = positions_of_others(x);
  std::vector<int64_t> y;
  y.reserve(x.dims().size() * found.size());
  const Dims apart = strides(x.dims());
  for (size_t k = 0; k < apart.size(); ++k)
    for (int64_t at : found) y.push_back(at / apart[k] % x.dims()[k]);
  return one(Tensor::of_i64({std::ssize(apart), std::ssize(found)}, y));
}

Outputs compress(const Call& c) {
  const Tensor &x = *c.input(0), &condition = *c.input(1);
  if (condition.dtype() != DType::boolean || condition.rank() != 1)
    return c.bad("condition {}", text(condition.dims()));
  const bool flat = !c.n.attrs.find("axis");
  const Tensor source = flat ? x.reshaped({x.numel()}) : x;
  FERRULE_ASSIGN(const size_t a, c.axis(c.n.attrs.i("axis", 0), source.rank()));
  const int64_t d = source.dims()[a], inner = count(source.dims(), a + 1),
                outer = count(source.dims(), 0, a);
  if (condition.numel() > d)
    return c.bad("{} for {}", counted(condition.numel(), "condition"), counted(d, "element"));
  std::vector<int64_t> kept, from;
  for (int64_t i = 0; i < condition.numel(); ++i) {
    if (condition.at_i64(i)) kept.push_back(i);
  }
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t k : kept) from.push_back((o * d + k) * inner);
  Dims out = source.dims();
  out[a] = std::ssize(kept);
  return one(take_runs(c, source, out, from, inner));
}

}  // namespace

std::vector<Entry> index_table() {
  return {
      {"GatherElements", gather_elements},
      {"GatherND", gather_nd},
      {"ScatterElements", scatter_elements, 3},
      {"Scatter", scatter_elements, 3},
      {"ScatterND", scatter_nd, 3},
      {"TensorScatter", tensor_scatter, 2},
      {"OneHot", one_hot, 3},
      {"NonZero", non_zero, 1},
      {"Compress", compress, 2},
  };
}

}  // namespace ferrule::interp
