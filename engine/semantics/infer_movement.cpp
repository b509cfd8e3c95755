// Shapes of operators that move, select or repeat elements, and the integer contents that pass
// through them (an exporter's Shape - Gather - Concat - Reshape chains).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/join.h"
#include "engine/graph/operator_name.h"
#include "engine/semantics/infer_impl.h"
#include "engine/semantics/resampling.h"

namespace ferrule {

using namespace infer_detail;

namespace {

using Contents = std::optional<std::vector<Dim>>;

/// How many values a list has: known before they are, and of lists too long to be followed.
std::optional<size_t> length_of_list(const InferenceContext& c, size_t input) {
  if (!c.has(input) || !c.shape(input) || c.shape(input)->size() != 1) return std::nullopt;
  auto n = (*c.shape(input))[0].constant();
  return n && *n >= 0 ? std::optional(static_cast<size_t>(*n)) : std::nullopt;
}

/// Rank of the output that a shape-like input describes, when its contents are unknown.
std::optional<Shape> described(const InferenceContext& c, size_t input) {
  auto n = length_of_list(c, input);
  return n && *n <= 64 ? std::optional(unknown_shape(*n)) : std::nullopt;
}

/// Whether `out` certainly has more elements than `x`; their product may be beyond 64 bits.
bool too_many(const Shape& x, const Shape& out) {
  auto all = product(x).constant();
  if (!all) return false;
  int64_t rest = *all;
  for (const Dim& d : out) {
    auto n = d.constant();
    if (!n || *n == 0) return false;
    rest /= *n;
  }
  return *all > 0 && rest == 0;
}

Status reshape(InferenceContext& c) {
  c.set_contents(0, c.contents(0));
  auto want = c.contents(1);
  if (!want) return c.set(0, c.in(0).dtype, described(c, 1));
  const auto& x = c.shape(0);
  bool allow_zero = c.n.attrs.i("allowzero") != 0;
  Shape out;
  std::optional<size_t> open;  // the -1
  for (size_t i = 0; i < want->size(); ++i) {
    Dim d = (*want)[i];
    if (d.constant() == -1) {
      if (open) return c.wrong("its shape has -1 twice");
      open = i;
      d = Dim(1);
    } else if (d.constant() == 0 && !allow_zero) {
      if (x && i >= x->size())
        return c.wrong(fmt::format("its shape has 0 at {}, its input is {}", i, str(*x)));
      d = x ? (*x)[i] : Dim::unknown();
    } else if (d.is_constant() && *d.constant() < 0) {
      return c.wrong(fmt::format("its shape has {}", d.str()));
    }
    out.push_back(d);
  }
  if (open) {
    Dim rest = product(out);
    if (!x) {
      out[*open] = Dim::unknown();
    } else {
      Dim all = product(*x);
      if (all.is_constant() && rest.is_constant() &&
          (rest.constant() == 0 || *all.constant() % *rest.constant() != 0))
        return c.wrong(fmt::format("{} cannot become {}", str(*x), str(*want)));
      out[*open] = floordiv(all, rest);
    }
  } else if (x && (equal(product(*x), product(out)) == Truth::no || too_many(*x, out))) {
    return c.wrong(fmt::format("{} cannot become {}", str(*x), str(out)));
  }
  return c.set(0, c.in(0).dtype, out);
}

Status flatten(InferenceContext& c) {
  c.set_contents(0, c.contents(0));
  if (!c.shape(0)) return c.set(0, c.in(0).dtype, unknown_shape(2));
  const Shape& x = *c.shape(0);
  int64_t a = c.n.attrs.i("axis", 1), rank = std::ssize(x);
  if (a < -rank || a > rank)
    return c.wrong(fmt::format("axis {} is out of range for {}", a, str(x)));
  if (a < 0) a += rank;
  return c.set(
      0, c.in(0).dtype,
      Shape{product(Shape(x.begin(), x.begin() + a)), product(Shape(x.begin() + a, x.end()))});
}

Status squeeze(InferenceContext& c) {
  c.set_contents(0, c.contents(0));
  DType type = c.in(0).dtype;
  if (!c.shape(0)) return c.set(0, type);
  const Shape& x = *c.shape(0);
  std::vector<bool> gone(x.size(), false);
  if (c.has(1)) {
    auto list = c.ints(1);
    if (!list) return c.set(0, type);
    FERRULE_ASSIGN(auto axes, c.axes(*list, x.size()));
    for (size_t a : axes) {
      if (equal(x[a], Dim(1)) == Truth::no)
        return c.wrong(fmt::format("axis {} of {} is not 1", a, str(x)));
      gone[a] = true;
    }
  } else {
    for (size_t i = 0; i < x.size(); ++i) {
      if (!x[i].is_constant()) return c.set(0, type);
      gone[i] = x[i].constant() == 1;
    }
  }
  Shape out;
  for (size_t i = 0; i < x.size(); ++i)
    if (!gone[i]) out.push_back(x[i]);
  return c.set(0, type, out);
}

Status unsqueeze(InferenceContext& c) {
  c.set_contents(0, c.contents(0));
  auto list = c.ints(1);
  if (!c.shape(0) || !list) return c.set(0, c.in(0).dtype);
  const Shape& x = *c.shape(0);
  FERRULE_ASSIGN(auto axes, c.axes(*list, x.size() + list->size()));
  Shape out;
  auto next = x.begin();
  for (size_t i = 0; i < x.size() + axes.size(); ++i)
    out.push_back(contains(axes, i) ? Dim(1) : *next++);
  return c.set(0, c.in(0).dtype, out);
}

Status transpose(InferenceContext& c) {
  if (!c.shape(0)) return c.set(0, c.in(0).dtype);
  const Shape& x = *c.shape(0);
  std::vector<int64_t> perm = c.n.attrs.ints("perm");
  if (!c.n.attrs.find("perm")) {
    perm.resize(x.size());
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  if (perm.size() != x.size())
    return c.wrong(
        fmt::format("perm has {}, its input is {}", counted(perm.size(), "value"), str(x)));
  for (int64_t p : perm)
    if (p < 0) return c.wrong(fmt::format("perm has {}", p));
  FERRULE_ASSIGN(auto axes, c.axes(perm, x.size()));
  Shape out;
  for (size_t a : axes) out.push_back(x[a]);
  if (x.size() < 2) c.set_contents(0, c.contents(0));
  return c.set(0, c.in(0).dtype, out);
}

Status concat(InferenceContext& c) {
  DType type = c.in(0).dtype;
  std::optional<Shape> out;
  std::optional<size_t> axis;
  bool all_known = true;
  for (size_t i = 0; i < c.n.inputs.size(); ++i) {
    if (c.has(i) && type == DType::undefined) type = c.in(i).dtype;
    if (!c.shape(i)) {
      all_known = false;
      continue;
    }
    const Shape& x = *c.shape(i);
    if (!axis) {
      FERRULE_ASSIGN(axis, c.axis(c.n.attrs.i("axis"), x.size()));
      out = x;
      continue;
    }
    if (x.size() != out->size())
      return c.wrong(fmt::format("its inputs {} and {} differ in rank", str(*out), str(x)));
    for (size_t k = 0; k < x.size(); ++k) {
      Dim& d = (*out)[k];
      if (k == *axis) {
        d = d + x[k];
        continue;
      }
      if (equal(d, x[k]) == Truth::no)
        return c.wrong(
            fmt::format("its inputs {} and {} differ along axis {}", str(*out), str(x), k));
      if (x[k].is_constant()) d = x[k];
    }
  }
  if (out && !all_known) (*out)[*axis] = Dim::unknown();
  c.set(0, type, out);
  if (!out || out->size() != 1) return {};
  std::vector<Dim> joined;
  for (size_t i = 0; i < c.n.inputs.size(); ++i) {
    auto part = c.contents(i);
    if (!part) return {};
    joined.insert(joined.end(), part->begin(), part->end());
  }
  c.set_contents(0, joined);
  return {};
}

/// One end of a slice as an offset from 0 on, for forward steps; nullopt: cannot be told. A start
/// beyond the end needs no bound: the length is cut at 0.
std::optional<Dim> slice_end(const Dim& at, const Dim& d, bool bound) {
  if (auto v = at.constant()) {
    if (*v >= INT32_MAX) return d;  // "to the end"
    if (*v <= INT32_MIN) return Dim(0);
    if (*v < 0) return max(d + at, Dim(0));
  } else if (at_least(at, Dim(0)) != Truth::yes) {
    return std::nullopt;
  }
  return bound ? infer_detail::min(at, d) : at;
}

Dim slice_length(const Dim& d, const Dim& start, const Dim& end, int64_t step) {
  if (step > 0) {
    auto s = slice_end(start, d, false), e = slice_end(end, d, true);
    return s && e ? ceildiv(max(*e - *s, Dim(0)), Dim(step)) : Dim::unknown();
  }
  auto n = d.constant(), s = start.constant(), e = end.constant();
  if (n && s && e) {
    if (*n == 0) return Dim(0);
    int64_t from = std::clamp<int64_t>(*s < 0 ? *s + *n : *s, 0, *n - 1);
    int64_t to = *e <= -*n - 1 ? -1 : std::clamp<int64_t>(*e < 0 ? *e + *n : *e, -1, *n - 1);
    if (step <= -INT32_MAX) return Dim(from > to ? 1 : 0);
    return Dim(std::max<int64_t>(0, (from - to - step - 1) / -step));
  }
  // The whole axis backwards.
  if (s && e && (*s == -1 || *s >= INT32_MAX) && *e <= INT32_MIN && step > INT32_MIN)
    return ceildiv(d, Dim(-step));
  return Dim::unknown();
}

Status slice(InferenceContext& c) {
  DType type = c.in(0).dtype;
  for (size_t i = 1; i < c.n.inputs.size(); ++i)
    if (c.has(i) && c.shape(i) && c.shape(i)->size() != 1)
      return c.wrong("its starts, ends, axes and steps are not all lists");
  if (!c.shape(0)) return c.set(0, type);
  Shape out = *c.shape(0);
  auto starts = c.contents(1), ends = c.contents(2);
  auto axes = c.ints(3), steps = c.ints(4);
  std::optional<size_t> count;
  if (starts) count = starts->size();
  for (size_t i = 1; i < c.n.inputs.size() && !count; ++i) count = length_of_list(c, i);
  if (count && *count > out.size())
    return c.wrong(fmt::format("it has {} starts, its input is {}", *count, str(out)));
  if (!count || (c.has(3) && !axes)) return c.set(0, type, unknown_shape(out.size()));
  if (!axes) {
    axes.emplace(*count);
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (!steps && !c.has(4)) steps.emplace(*count, 1);
  bool fits = axes->size() == *count && (!ends || ends->size() == *count) &&
              (!steps || steps->size() == *count);
  if (!fits) return c.wrong("its starts, ends, axes and steps differ in length");
  FERRULE_ASSIGN(auto which, c.axes(*axes, out.size()));
  for (size_t i = 0; i < *count; ++i) {
    if (steps && (*steps)[i] == 0) return c.wrong("a step is 0");
    Dim& d = out[which[i]];
    d = starts && ends && steps ? slice_length(d, (*starts)[i], (*ends)[i], (*steps)[i])
                                : Dim::unknown();
  }
  c.set(0, type, out);
  // A slice of known contents.
  auto data = c.contents(0);
  if (!data || out.size() != 1 || *count != 1 || !starts || !ends || !steps) return {};
  auto s = (*starts)[0].constant(), length = out[0].constant();
  if (!s || !length) return {};
  if (*length == 0) return c.set_contents(0, std::vector<Dim>{}), Status{};
  int64_t n = std::ssize(*data), step = (*steps)[0];
  int64_t at =
      std::clamp<int64_t>(*s < 0 ? *s + n : *s, 0, step > 0 ? n : std::max<int64_t>(n - 1, 0));
  std::vector<Dim> picked;
  for (int64_t i = 0; i < *length; ++i) picked.push_back((*data)[at + i * step]);
  c.set_contents(0, picked);
  return {};
}

Status split(InferenceContext& c) {
  DType type = c.in(0).dtype;
  size_t parts = c.n.outputs.size();
  if (!c.shape(0)) {
    for (size_t i = 0; i < parts; ++i) c.set(i, type);
    return {};
  }
  const Shape& x = *c.shape(0);
  FERRULE_ASSIGN(size_t axis, c.axis(c.n.attrs.i("axis"), x.size()));
  auto sizes = c.contents(1);
  // Outputs that nobody wants were trimmed, so num_outputs counts, not the slots.
  int64_t count = c.n.attrs.i("num_outputs", static_cast<int64_t>(parts));
  if (count < 1 || static_cast<int64_t>(parts) > count)
    return c.wrong(fmt::format("it has {}, num_outputs says {}", counted(parts, "output"), count));
  if (sizes && (sizes->size() < parts))
    return c.wrong(fmt::format("split has {} for {}", counted(sizes->size(), "value"),
                               counted(parts, "output")));
  Dim chunk = ceildiv(x[axis], Dim(count)), start(0);
  // Even where nobody wants the parts that would have less than nothing.
  if (auto rest = (x[axis] - chunk * Dim(count - 1)).constant(); !c.has(1) && rest && *rest < 0)
    return c.wrong(fmt::format("{} cannot be split so", str(x)));
  auto data = x.size() == 1 ? c.contents(0) : std::nullopt;
  for (size_t i = 0; i < parts; ++i) {
    Shape out = x;
    bool last = static_cast<int64_t>(i) + 1 == count;
    if (c.has(1))
      out[axis] = sizes ? (*sizes)[i] : Dim::unknown();
    else
      out[axis] = last ? x[axis] - chunk * Dim(count - 1) : chunk;
    if (auto d = out[axis].constant(); d && *d < 0)
      return c.wrong(fmt::format("{} cannot be split so", str(x)));
    auto s = start.constant(), n = out[axis].constant();
    if (data && s && n && *s + *n <= std::ssize(*data))
      c.set_contents(i, std::vector<Dim>(data->begin() + *s, data->begin() + *s + *n));
    start = start + out[axis];
    c.set(i, type, out);
  }
  if (sizes) {
    Dim sum(0);
    for (const Dim& d : *sizes) {
      if (at_least(d, Dim(0)) == Truth::no) return c.wrong(fmt::format("a part has {}", d.str()));
      sum = sum + d;
    }
    if (equal(sum, x[axis]) == Truth::no)
      return c.wrong(
          fmt::format("split adds up to {}, axis {} of {} does not", sum.str(), axis, str(x)));
  }
  return {};
}

Status gather(InferenceContext& c) {
  DType type = c.in(0).dtype;
  if (!c.shape(0) || !c.shape(1)) return c.set(0, type);
  const Shape &x = *c.shape(0), &index = *c.shape(1);
  FERRULE_ASSIGN(size_t axis, c.axis(c.n.attrs.i("axis"), x.size()));
  Shape out(x.begin(), x.begin() + axis);
  out.insert(out.end(), index.begin(), index.end());
  out.insert(out.end(), x.begin() + axis + 1, x.end());
  c.set(0, type, out);
  auto list = c.ints(1);
  if (!list) return {};
  auto n = x[axis].constant();
  auto data = x.size() == 1 && n ? c.contents(0) : std::nullopt;
  std::vector<Dim> picked;
  for (int64_t i : *list) {
    if (n && (i < -*n || i >= *n))
      return c.wrong(fmt::format("index {} is out of range for axis {} of {}", i, axis, str(x)));
    if (data) picked.push_back((*data)[i < 0 ? i + *n : i]);
  }
  if (data) c.set_contents(0, picked);
  return {};
}

Status gather_nd(InferenceContext& c) {
  const auto &x = c.shape(0), &index = c.shape(1);
  const auto depth = index && !index->empty() ? index->back().constant() : std::nullopt;
  const int64_t batch = c.n.attrs.i("batch_dims", 0);
  if (!x || !depth) return c.set(0, c.in(0).dtype);
  if (batch < 0 || batch >= std::ssize(*index) || *depth < 1 || *depth > std::ssize(*x) - batch)
    return c.wrong(
        fmt::format("indices of {} into {} with {} batch axes", str(*index), str(*x), batch));
  Shape out(index->begin(), index->end() - 1);
  out.insert(out.end(), x->begin() + static_cast<std::ptrdiff_t>(batch + *depth), x->end());
  return c.set(0, c.in(0).dtype, out);
}

Status gather_elements(InferenceContext& c) { return c.set(0, c.in(0).dtype, c.shape(1)); }

Status pad(InferenceContext& c) {
  DType type = c.in(0).dtype;
  if (!c.shape(0)) return c.set(0, type);
  Shape out = *c.shape(0);
  auto pads = c.contents(1);
  auto axes = c.ints(3);
  if (auto n = length_of_list(c, 1); n && *n > 2 * out.size())
    return c.wrong(fmt::format("pads has {}, its input is {}", counted(*n, "value"), str(out)));
  if (!pads || (c.has(3) && !axes)) return c.set(0, type, unknown_shape(out.size()));
  if (!axes) {
    axes.emplace(out.size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (pads->size() != 2 * axes->size())
    return c.wrong(fmt::format("pads has {}, the number of axes is {}",
                               counted(pads->size(), "value"), axes->size()));
  FERRULE_ASSIGN(auto which, c.axes(*axes, out.size()));
  for (size_t i = 0; i < which.size(); ++i) {
    Dim& d = out[which[i]];
    d = d + (*pads)[i] + (*pads)[i + which.size()];
    if (at_least(d, Dim(0)) == Truth::no)
      return c.wrong(fmt::format("axis {} would become {}", which[i], d.str()));
  }
  return c.set(0, type, out);
}

Status expand(InferenceContext& c) {
  DType type = c.in(0).dtype;
  auto want = c.contents(1);
  if (!want || !c.shape(0)) {
    auto s = described(c, 1);
    if (s && c.shape(0) && c.shape(0)->size() > s->size()) s = unknown_shape(c.shape(0)->size());
    return c.set(0, type, c.shape(0) ? s : std::nullopt);
  }
  for (const Dim& d : *want)
    if (at_least(d, Dim(0)) == Truth::no) return c.wrong(fmt::format("its shape has {}", d.str()));
  auto out = broadcast(*c.shape(0), *want);
  if (!out)
    return c.wrong(fmt::format("{} cannot be expanded to {}", str(*c.shape(0)), str(*want)));
  c.set(0, type, out);
  auto data = c.contents(0);
  if (!data || data->size() != 1) return {};
  if (auto n = product(*out).constant(); n && *n <= kMaxContents)
    c.set_contents(0, std::vector<Dim>(static_cast<size_t>(*n), (*data)[0]));
  return {};
}

Status tile(InferenceContext& c) {
  if (!c.shape(0)) return c.set(0, c.in(0).dtype);
  Shape out = *c.shape(0);
  auto times = c.contents(1);
  if (auto n = times ? std::optional(times->size()) : length_of_list(c, 1); n && *n != out.size())
    return c.wrong(fmt::format("repeats has {}, its input is {}", counted(*n, "value"), str(out)));
  for (size_t i = 0; i < out.size(); ++i) {
    if (times && at_least((*times)[i], Dim(0)) == Truth::no)
      return c.wrong(fmt::format("it is to be repeated {} times", (*times)[i].str()));
    out[i] = times ? out[i] * (*times)[i] : Dim::unknown();
  }
  return c.set(0, c.in(0).dtype, out);
}

/// floor(d * scale); symbolic where scale or 1 / scale is whole.
Dim scaled(const Dim& d, double scale) {
  if (auto v = d.constant()) {
    const float f = resized_size(*v, scale);
    return f >= 0 && f < 0x1p62f ? Dim(static_cast<int64_t>(f)) : Dim::unknown();
  }
  if (scale == 1) return d;
  if (scale >= 1 && scale < 1e6 && scale == std::floor(scale))
    return d * Dim(static_cast<int64_t>(scale));
  double inverse = 1 / scale;
  if (inverse >= 1 && inverse < 1e6 && inverse == std::floor(inverse))
    return floordiv(d, Dim(static_cast<int64_t>(inverse)));
  return Dim::unknown();
}

Status resize(InferenceContext& c) {
  DType type = c.in(0).dtype;
  if (const std::string_view name = Resampling::of(c.n.attrs).unknown(); !name.empty())
    return c.wrong(
        fmt::format("its {} is \"{}\", which ONNX does not have", name, escape(c.n.attrs.s(name))));
  if (!c.shape(0)) return c.set(0, type);
  Shape out = *c.shape(0);
  std::vector<int64_t> axes = c.n.attrs.ints("axes");
  if (axes.empty()) {
    axes.resize(out.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  FERRULE_ASSIGN(auto which, c.axes(axes, out.size()));
  auto sizes = c.contents(3);
  const Tensor* scales = c.g.constant(c.id(2));
  bool stretch = c.n.attrs.s("keep_aspect_ratio_policy", "stretch") == "stretch";
  // An empty tensor stands for an absent input, in models of opset 11 and 12.
  bool by_size = c.has(3) && !(sizes && sizes->empty());
  bool by_scale = c.has(2) && !(scales && scales->numel() == 0);
  if (by_size == by_scale) return c.wrong("it wants either scales or sizes");
  size_t given = by_size && sizes     ? sizes->size()
                 : by_scale && scales ? static_cast<size_t>(scales->numel())
                                      : which.size();
  if (given != which.size())
    return c.wrong(fmt::format("it has {}, the number of axes is {}",
                               counted(given, by_size ? "size" : "scale"), which.size()));
  if (c.n.attrs.s("coordinate_transformation_mode") == "tf_crop_and_resize") {
    const Dim wanted(2 * std::ssize(which));
    if (!c.has(1)) return c.wrong(fmt::format("it wants a roi of {} numbers", wanted.str()));
    if (c.shape(1) && *c.shape(1) != Shape{wanted} && constant_shape(*c.shape(1)))
      return c.wrong(fmt::format("its roi is {}, it wants [{}]", str(*c.shape(1)), wanted.str()));
  }
  for (size_t i = 0; i < which.size(); ++i) {
    Dim& d = out[which[i]];
    if (by_size && sizes && at_least((*sizes)[i], Dim(0)) == Truth::no)
      return c.wrong(fmt::format("a size is {}", (*sizes)[i].str()));
    if (by_size && sizes && stretch)
      d = (*sizes)[i];
    else if (by_scale && scales && is_float(scales->dtype())) {
      double s = scales->at_f64(i);
      if (!(s > 0)) return c.wrong(fmt::format("a scale is {}", s));
      d = scaled(d, s);
    } else
      d = Dim::unknown();
  }
  return c.set(0, type, out);
}

Status shape_op(InferenceContext& c) {
  if (!c.shape(0)) return c.set(0, DType::i64, unknown_shape(1));
  int64_t rank = static_cast<int64_t>(c.shape(0)->size());
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank); };
  int64_t from = clamp(c.n.attrs.i("start", 0)), to = clamp(c.n.attrs.i("end", rank));
  to = std::max(from, to);
  c.set(0, DType::i64, Shape{Dim(to - from)});
  c.set_contents(0, std::vector<Dim>(c.shape(0)->begin() + from, c.shape(0)->begin() + to));
  return {};
}

Status size_op(InferenceContext& c) {
  c.set(0, DType::i64, Shape{});
  if (c.shape(0)) c.set_contents(0, std::vector<Dim>{product(*c.shape(0))});
  return {};
}

Status depth_to_space(InferenceContext& c) {
  bool back = c.n.op == "SpaceToDepth";
  if (!c.shape(0)) return c.set(0, c.in(0).dtype, unknown_shape(4));
  const Shape& x = *c.shape(0);
  int64_t b = c.n.attrs.i("blocksize");
  if (x.size() != 4) return c.wrong(fmt::format("its input is {}, rank 4 is wanted", str(x)));
  if (b < 1 || b > INT32_MAX)
    return error(Code::bad_attribute, place(c.n), "blocksize", "it is out of range");
  Dim block(b), square(b * b);
  auto divides = [](const Dim& d, const Dim& by) {
    return !d.is_constant() || *d.constant() % *by.constant() == 0;
  };
  if (back ? !divides(x[2], block) || !divides(x[3], block) : !divides(x[1], square))
    return c.wrong(fmt::format("{} does not divide by block size {}", str(x), b));
  return c.set(0, c.in(0).dtype,
               back ? Shape{x[0], x[1] * square, floordiv(x[2], block), floordiv(x[3], block)}
                    : Shape{x[0], floordiv(x[1], square), x[2] * block, x[3] * block});
}

Status identity(InferenceContext& c) {
  c.set_contents(0, c.contents(0));
  return c.same();
}

Status cast(InferenceContext& c) {
  DType to = c.n.op == "CastLike" ? c.in(1).dtype : static_cast<DType>(c.n.attrs.i("to"));
  if (c.n.op == "Cast" && (c.n.attrs.i("to") < 1 || c.n.attrs.i("to") > 64))
    return error(Code::bad_attribute, place(c.n), "to",
                 fmt::format("{} is no element type", c.n.attrs.i("to")));
  if (c.n.op == "Cast" && size_bits(to) + (to == DType::string) == 0)  // one of a newer ONNX
    return error(Code::unsupported_type, place(c.n),
                 fmt::format("element type {}", c.n.attrs.i("to")));
  c.set(0, to, c.shape(0));
  auto data = c.contents(0);
  if (!data || to == DType::string) return {};
  for (const Dim& d : *data) {  // what could change its value is not followed
    bool fits = size_bits(to) >= 32 || (d.is_constant() && std::abs(*d.constant()) < 128);
    if (to == DType::boolean) fits = d.constant() == 0 || d.constant() == 1;
    if (is_unsigned_int(to)) fits = fits && at_least(d, Dim(0)) == Truth::yes;
    if (is_float(to) && size_bits(to) < 16) fits = false;
    if (!fits) return {};
  }
  c.set_contents(0, data);
  return {};
}

}  // namespace

void infer_detail::add_movement_rules(Table& t) {
  t.insert({{"Reshape", reshape},
            {"Flatten", flatten},
            {"Squeeze", squeeze},
            {"Unsqueeze", unsqueeze},
            {"Transpose", transpose},
            {"Concat", concat},
            {"Slice", slice},
            {"Split", split},
            {"Gather", gather},
            {"GatherElements", gather_elements},
            {"GatherND", gather_nd},
            {"Pad", pad},
            {"Expand", expand},
            {"Tile", tile},
            {"Resize", resize},
            {"Shape", shape_op},
            {"Size", size_op},
            {"DepthToSpace", depth_to_space},
            {"SpaceToDepth", depth_to_space},
            {"Identity", identity},
            {"Cast", cast},
            {"CastLike", cast}});
}

}  // namespace ferrule
