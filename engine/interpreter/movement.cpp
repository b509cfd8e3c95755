// Operators that put elements elsewhere: each computes, for every element of its result, the
// position it comes from; take() moves them, whatever their type.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

Outputs transpose(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  Dims perm = c.n.attrs.ints("perm");
  if (perm.empty()) {
    for (int64_t k = x.rank(); k-- > 0;) perm.push_back(k);
  }
  Dims sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  bool right = static_cast<int64_t>(perm.size()) == x.rank();
  for (size_t k = 0; k < sorted.size(); ++k) right &= sorted[k] == static_cast<int64_t>(k);
  if (!right) return c.bad_attr("perm", "{} is no permutation of {} axes", text(perm), x.rank());
  const Dims own = strides(x.dims());
  Dims out, steps;
  for (int64_t p : perm) {
    out.push_back(x.dims()[static_cast<size_t>(p)]);
    steps.push_back(own[static_cast<size_t>(p)]);
  }
  return one(take(x, out, positions(out, steps)));
}

/// Copies blocks: for each outer index, `run` elements of each tensor after another.
Outputs concat_along(const Call& c, const std::vector<Tensor>& parts, int64_t axis) {
  const Tensor& first = parts[0];
  const auto at = static_cast<size_t>(axis);
  Dims out = first.dims();
  out[at] = 0;
  for (const Tensor& t : parts) {
    Dims same = t.dims();
    if (same.size() == out.size()) same[at] = first.dims()[at];
    if (t.dtype() != first.dtype() || same != first.dims()) {
      return c.bad("{} {} and {} {} cannot be joined along axis {}", name(first.dtype()),
                   text(first.dims()), name(t.dtype()), text(t.dims()), axis);
    }
    out[at] += t.dims()[at];
  }
  FERRULE_TRY(c.fits(first.dtype(), out));
  const int64_t outer = count(out, 0, at), inner = count(out, at + 1);
  if (first.dtype() == DType::string) {
    std::vector<std::string> y;
    for (int64_t o = 0; o < outer; ++o) {
      for (const Tensor& t : parts) {
        const int64_t run = t.dims()[at] * inner;
        y.insert(y.end(), t.strings().begin() + o * run, t.strings().begin() + (o + 1) * run);
      }
    }
    return one(Tensor(out, std::move(y)));
  }
  const int bits = size_bits(first.dtype());
  if (bits < 8) return c.unsupported_type(first);
  auto [y, p] = Tensor::allocate(first.dtype(), out);
  char* to = static_cast<char*>(p);
  for (int64_t o = 0; o < outer; ++o) {
    for (const Tensor& t : parts) {
      const auto run = static_cast<size_t>(t.dims()[at] * inner * (bits / 8));
      if (run)
        std::memcpy(to, static_cast<const char*>(t.data()) + static_cast<size_t>(o) * run, run);
      to += run;
    }
  }
  return one(y);
}

Outputs concat(const Call& c) {
  FERRULE_TRY(c.need(std::max<size_t>(c.in.size(), 1)));
  std::vector<Tensor> parts;
  for (const Tensor* t : c.in) parts.push_back(*t);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", 0), parts[0].rank()));
  return concat_along(c, parts, axis);
}

Outputs split(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", 0), x.rank()));
  const auto at = static_cast<size_t>(axis);
  const int64_t length = x.dims()[at];
  Dims sizes;
  if (const auto given = c.ints(1, "split")) {
    sizes = *given;
  } else {
    const int64_t parts = c.n.attrs.i("num_outputs", static_cast<int64_t>(c.n.outputs.size()));
    if (parts < 1 || parts > 1'000'000)
      return c.bad_attr("num_outputs", "{} is out of range", parts);
    const int64_t each = (length + parts - 1) / parts;  // the last one gets what is left
    for (int64_t k = 0; k < parts; ++k)
      sizes.push_back(std::clamp<int64_t>(length - k * each, 0, each));
  }
  int64_t sum = 0;
  for (int64_t s : sizes) {
    if (s < 0 || __builtin_add_overflow(sum, s, &sum))
      return c.bad("split sizes {} are out of range", text(sizes));
  }
  if (sum != length) return c.bad("split sizes {} do not sum to {}", text(sizes), length);
  const Dims own = strides(x.dims());
  std::vector<Tensor> out;
  int64_t start = 0;
  for (int64_t s : sizes) {
    Dims d = x.dims();
    d[at] = s;
    out.push_back(take(x, d, positions(d, own, start * own[at])));
    start += s;
  }
  return out;
}

Outputs slice(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  const auto starts = c.ints(1, "starts"), ends = c.ints(2, "ends"), steps = c.ints(4, "steps");
  if (!starts || !ends) return c.bad("starts or ends are not given");
  Dims all(starts->size());
  std::iota(all.begin(), all.end(), 0);
  FERRULE_ASSIGN(const Dims axes, c.axes(3, x.rank(), all));
  if (ends->size() != starts->size() || axes.size() != starts->size() ||
      (steps && steps->size() != axes.size()) || static_cast<int64_t>(axes.size()) > x.rank()) {
    return c.bad("starts, ends, axes and steps differ in length");
  }
  Dims out = x.dims(), walk = strides(x.dims());
  int64_t offset = 0;
  for (size_t k = 0; k < axes.size(); ++k) {
    const auto a = static_cast<size_t>(axes[k]);
    const int64_t d = x.dims()[a], step = steps ? (*steps)[k] : 1;
    if (step == 0) return c.bad("a slice with step 0");
    // Far out of range positions are clamped before they are added to.
    auto from_end = [&](int64_t v) { return v < 0 ? (v < -d ? -1 - d : v) + d : std::min(v, d); };
    int64_t start = from_end((*starts)[k]), end = from_end((*ends)[k]);
    if (step > 0) {
      start = std::clamp<int64_t>(start, 0, d), end = std::clamp<int64_t>(end, 0, d);
      out[a] = end > start ? (end - start - 1) / step + 1 : 0;
    } else {
      start = std::clamp<int64_t>(start, 0, std::max<int64_t>(d - 1, 0)),
      end = std::clamp<int64_t>(end, -1, d - 1);
      const int64_t back =
          step == std::numeric_limits<int64_t>::min() ? std::numeric_limits<int64_t>::max() : -step;
      out[a] = d > 0 && start > end ? (start - end - 1) / back + 1 : 0;
    }
    offset += start * walk[a];
    walk[a] = out[a] > 1 ? walk[a] * step : 0;
  }
  return one(take(x, out, positions(out, walk, offset)));
}

Outputs expand(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  const auto shape = c.ints(1, "");
  if (!shape) return c.bad("no shape is given");
  FERRULE_TRY(c.fits(x.dtype(), *shape));
  const auto out = broadcast(x.dims(), *shape);
  if (!out) return c.bad("{} does not broadcast to {}", text(x.dims()), text(*shape));
  FERRULE_TRY(c.fits(x.dtype(), *out));
  return one(take(x, *out, positions(*out, broadcast_strides(x.dims(), *out))));
}

Outputs tile(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  const auto repeats = c.ints(1, "");
  if (!repeats || static_cast<int64_t>(repeats->size()) != x.rank())
    return c.bad("{} repeats for rank {}", repeats ? repeats->size() : 0, x.rank());
  Dims out = x.dims();
  for (size_t k = 0; k < out.size(); ++k) {
    if (__builtin_mul_overflow(out[k], (*repeats)[k], &out[k]))
      return c.bad("repeats {} are out of range", text(*repeats));
  }
  FERRULE_TRY(c.fits(x.dtype(), out));
  const Dims own = strides(x.dims());
  std::vector<int64_t> from;
  from.reserve(static_cast<size_t>(count(out)));
  if (count(out) > 0) {
    Dims at(out.size(), 0);
    do {
      int64_t p = 0;
      for (size_t k = 0; k < at.size(); ++k) p += at[k] % x.dims()[k] * own[k];
      from.push_back(p);
    } while (next(at, out));
  }
  return one(take(x, out, from));
}

/// Position in [0, size) that a padded position stands for; -1: the constant.
int64_t padded_position(int64_t i, int64_t size, const std::string& mode) {
  if (i >= 0 && i < size) return i;
  if (mode == "constant" || size == 0) return -1;
  if (mode == "edge") return i < 0 ? 0 : size - 1;
  if (mode == "wrap") return (i % size + size) % size;
  if (size == 1) return 0;  // reflect
  const int64_t period = 2 * (size - 1);
  const int64_t r = (i % period + period) % period;
  return r < size ? r : period - r;
}

Outputs pad(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  const auto pads = c.ints(1, "pads");
  if (!pads) return c.bad("no pads are given");
  Dims all(static_cast<size_t>(x.rank()));
  std::iota(all.begin(), all.end(), 0);
  FERRULE_ASSIGN(const Dims axes, c.axes(3, x.rank(), all));
  if (pads->size() != 2 * axes.size())
    return c.bad("{} pads for {} axes", pads->size(), axes.size());
  const std::string mode = c.n.attrs.s("mode", "constant");
  if (mode != "constant" && mode != "edge" && mode != "reflect" && mode != "wrap") {
    return c.bad_attr("mode", "unknown value \"{}\"", escape(mode));
  }
  const Tensor* value = c.input(2);
  if (value && (value->dtype() != x.dtype() || value->numel() != 1))
    return c.bad("the padding value is not one {}", name(x.dtype()));
  Dims begin(x.dims().size(), 0), out = x.dims();
  for (size_t k = 0; k < axes.size(); ++k) {
    const auto a = static_cast<size_t>(axes[k]);
    const int64_t before = (*pads)[k], after = (*pads)[axes.size() + k];
    if (before < -(int64_t{1} << 40) || before > int64_t{1} << 40 || after < -(int64_t{1} << 40) ||
        after > int64_t{1} << 40) {
      return c.bad("pads {} are out of range", text(*pads));
    }
    begin[a] = before;
    out[a] += before + after;
  }
  FERRULE_TRY(c.fits(x.dtype(), out));
  const Dims own = strides(x.dims());
  std::vector<int64_t> from;
  from.reserve(static_cast<size_t>(count(out)));
  if (count(out) > 0) {
    Dims at(out.size(), 0);
    do {
      int64_t p = 0;
      for (size_t k = 0; k < at.size() && p >= 0; ++k) {
        const int64_t i = padded_position(at[k] - begin[k], x.dims()[k], mode);
        p = i < 0 ? -1 : p + i * own[k];
      }
      from.push_back(p);
    } while (next(at, out));
  }
  return one(take(x, out, from, value));
}

Outputs center_crop_pad(const Call& c) {
  FERRULE_TRY(c.need(2));
  const Tensor& x = *c.input(0);
  const auto shape = c.ints(1, "");
  Dims all(static_cast<size_t>(x.rank()));
  std::iota(all.begin(), all.end(), 0);
  FERRULE_ASSIGN(const Dims axes, c.axes(SIZE_MAX, x.rank(), all));
  if (!shape || shape->size() != axes.size()) return c.bad("shape and axes differ in length");
  Dims out = x.dims(), begin(out.size(), 0);
  for (size_t k = 0; k < axes.size(); ++k) {
    const auto a = static_cast<size_t>(axes[k]);
    const int64_t d = x.dims()[a], want = (*shape)[k];
    if (want < 0 || want > int64_t{1} << 40) return c.bad("shape {} is out of range", text(*shape));
    begin[a] = want >= d ? (want - d) / 2 : -((d - want) / 2);
    out[a] = want;
  }
  FERRULE_TRY(c.fits(x.dtype(), out));
  const Dims own = strides(x.dims());
  std::vector<int64_t> from;
  if (count(out) > 0) {
    Dims at(out.size(), 0);
    do {
      int64_t p = 0;
      for (size_t k = 0; k < at.size() && p >= 0; ++k) {
        const int64_t i = padded_position(at[k] - begin[k], x.dims()[k], "constant");
        p = i < 0 ? -1 : p + i * own[k];
      }
      from.push_back(p);
    } while (next(at, out));
  }
  return one(take(x, out, from));
}

Outputs depth_to_space(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  const int64_t b = c.n.attrs.i("blocksize");
  if (b < 1 || b > 1 << 20) return c.bad_attr("blocksize", "{} is out of range", b);
  if (x.rank() != 4 || x.dims()[1] % (b * b) != 0)
    return c.bad("input {} with blocks of {}", text(x.dims()), b);
  const int64_t n = x.dims()[0], ch = x.dims()[1] / (b * b), h = x.dims()[2], w = x.dims()[3];
  const std::string mode = c.n.attrs.s("mode", "DCR");
  if (mode != "DCR" && mode != "CRD")
    return c.bad_attr("mode", "unknown value \"{}\"", escape(mode));
  const int64_t plane = h * w;
  // Result as [n, ch, h, b, w, b].
  const Dims view{n, ch, h, b, w, b};
  const Dims walk = mode == "DCR"
                        ? Dims{b * b * ch * plane, plane, w, b * ch * plane, 1, ch * plane}
                        : Dims{b * b * ch * plane, b * b * plane, w, b * plane, 1, plane};
  return one(take(x, {n, ch, h * b, w * b}, positions(view, walk)));
}

Outputs space_to_depth(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  const int64_t b = c.n.attrs.i("blocksize");
  if (b < 1 || b > 1 << 20) return c.bad_attr("blocksize", "{} is out of range", b);
  if (x.rank() != 4 || x.dims()[2] % b != 0 || x.dims()[3] % b != 0)
    return c.bad("input {} with blocks of {}", text(x.dims()), b);
  const int64_t n = x.dims()[0], ch = x.dims()[1], h = x.dims()[2] / b, w = x.dims()[3] / b;
  const std::string mode = c.n.attrs.s("mode", "DCR");
  if (mode != "DCR" && mode != "CRD")
    return c.bad_attr("mode", "unknown value \"{}\"", escape(mode));
  const int64_t row = w * b, plane = h * b * row;
  const Dims view = mode == "DCR" ? Dims{n, b, b, ch, h, w} : Dims{n, ch, b, b, h, w};
  const Dims walk = mode == "DCR" ? Dims{ch * plane, row, 1, plane, b * row, b}
                                  : Dims{ch * plane, plane, row, 1, b * row, b};
  return one(take(x, {n, ch * b * b, h, w}, positions(view, walk)));
}

Outputs trilu(const Call& c) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  if (x.rank() < 2) return c.bad("{} is no stack of matrices", text(x.dims()));
  int64_t k = 0;
  if (const Tensor* t = c.input(1)) {
    if (t->numel() != 1 || t->dtype() != DType::i64) return c.bad("k is no integer");
    k = std::clamp<int64_t>(t->at_i64(0), -(int64_t{1} << 40), int64_t{1} << 40);
  }
  const bool upper = c.n.attrs.i("upper", 1) != 0;
  const int64_t rows = x.dims()[x.dims().size() - 2], columns = x.dims().back();
  std::vector<int64_t> from(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < from.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t row = at / columns % rows, column = at % columns;
    from[i] = (upper ? column - row >= k : column - row <= k) ? at : -1;
  }
  return one(take(x, x.dims(), from));
}

Outputs reverse_sequence(const Call& c) {
  FERRULE_TRY(c.need(2));
  const Tensor &x = *c.input(0), &lengths = *c.input(1);
  const int64_t batch = c.n.attrs.i("batch_axis", 1), time = c.n.attrs.i("time_axis", 0);
  if (x.rank() < 2 || batch + time != 1 || (batch != 0 && batch != 1))
    return c.bad_attr("batch_axis", "{} with time_axis {} for rank {}", batch, time, x.rank());
  const auto b = static_cast<size_t>(batch), t = static_cast<size_t>(time);
  if (lengths.dtype() != DType::i64 || lengths.numel() != x.dims()[b])
    return c.bad("{} lengths for {} sequences", lengths.numel(), x.dims()[b]);
  const Dims own = strides(x.dims());
  std::vector<int64_t> from(static_cast<size_t>(x.numel()));
  for (size_t i = 0; i < from.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t length = lengths.at_i64(at / own[b] % x.dims()[b]),
                  step = at / own[t] % x.dims()[t];
    if (length < 0 || length > x.dims()[t])
      return c.bad("a length of {} in {} steps", length, x.dims()[t]);
    from[i] = step < length ? at + (length - 1 - 2 * step) * own[t] : at;
  }
  return one(take(x, x.dims(), from));
}

constexpr Entry kMovement[] = {
    {"Transpose", transpose},
    {"Concat", concat},
    {"Split", split},
    {"Slice", slice},
    {"Expand", expand},
    {"Tile", tile},
    {"Pad", pad},
    {"CenterCropPad", center_crop_pad},
    {"DepthToSpace", depth_to_space},
    {"SpaceToDepth", space_to_depth},
    {"Trilu", trilu},
    {"ReverseSequence", reverse_sequence},
};

}  // namespace

std::span<const Entry> movement_table() { return kMovement; }

}  // namespace ferrule::interp
