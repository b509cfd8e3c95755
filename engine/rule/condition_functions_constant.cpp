// Functions of conditions: constants, numbers and lists.
#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/rule/condition_functions.h"

namespace ferrule {
namespace {

constexpr int64_t kMaxListed = 1 << 16;

const Tensor* tensor_of(const EvalContext& ctx, const Val& v, Val* missing) {
  if (auto t = get<Tensor>(v)) return t;
  auto id = get<ValueId>(v);
  const Tensor* t = id ? ctx.graph.constant(*id) : nullptr;
  if (!t)
    *missing =
        unknown(id ? fmt::format("the value of {}, which is not a constant", quoted(ctx, *id))
                   : "a constant");
  return t;
}

const Tensor* numbers_of(const EvalContext& ctx, const Val& v, Val* missing) {
  const Tensor* t = tensor_of(ctx, v, missing);
  if (!t || t->dtype() != DType::string) return t;
  *missing = unknown("numbers, not strings");
  return nullptr;
}

Val is_const(const EvalContext& ctx, Args a) {
  auto id = get<ValueId>(a[0]);
  return id ? Val{ctx.graph.constant(*id) != nullptr} : unknown("a value");
}

Val value(const EvalContext& ctx, Args a) {
  if (is_absent(a[0]) || is_unknown(a[0])) return a[0];
  auto id = get<ValueId>(a[0]);
  if (id && !ctx.graph.constant(*id))
    if (const auto& c = ctx.graph.value(*id).contents; c && c->size() == 1)
      return make_dim((*c)[0]);
  if (auto t = get<Tensor>(a[0]))
    return t->numel() == 1 ? element(*t, 0) : unknown("a tensor of one element");
  return element_of(ctx, a[0]);
}

Val values(const EvalContext& ctx, Args a) {
  if (is_absent(a[0]) || is_unknown(a[0]) || list_of(a[0])) return a[0];
  Val::List l;
  auto id = get<ValueId>(a[0]);
  if (id && !ctx.graph.constant(*id))
    if (const auto& c = ctx.graph.value(*id).contents) {
      for (const Dim& d : *c) l.push_back(make_dim(d));
      return make_list(std::move(l));
    }
  Val missing;
  const Tensor* t = tensor_of(ctx, a[0], &missing);
  if (!t) return missing;
  if (t->numel() > kMaxListed) return unknown(fmt::format("at most {} elements", kMaxListed));
  for (int64_t i = 0; i < t->numel(); ++i) l.push_back(element(*t, i));
  return make_list(std::move(l));
}

/// All elements of a numeric constant satisfy `f`.
template <class F>
Val every(const EvalContext& ctx, const Val& v, F f) {
  Val missing;
  const Tensor* t = numbers_of(ctx, v, &missing);
  if (!t) return missing;
  for (int64_t i = 0, n = t->numel(); i < n; ++i)
    if (!f(*t, i)) return Val{false};
  return Val{true};
}

Val uniform(const EvalContext& ctx, Args a) {
  return every(ctx, a[0], [](const Tensor& t, int64_t i) {
    return is_float(t.dtype()) ? t.at_f64(i) == t.at_f64(0) : t.at_i64(i) == t.at_i64(0);
  });
}
Val finite(const EvalContext& ctx, Args a) {
  return every(ctx, a[0], [](const Tensor& t, int64_t i) { return std::isfinite(t.at_f64(i)); });
}
Val near(const EvalContext& ctx, Args a) {
  auto k = as_number(a[1]);
  auto rtol = a.size() > 2 ? as_number(a[2]) : std::optional(1e-3);
  if (!k || !rtol) return unknown("a number");
  if (auto x = as_number(a[0])) return Val{std::abs(*x - *k) <= *rtol * std::abs(*k)};
  return every(ctx, a[0], [&](const Tensor& t, int64_t i) {
    double x = t.at_f64(i);
    return x == *k || std::abs(x - *k) <= *rtol * std::abs(*k);
  });
}
/// Compared in the constant's own type: 0.1 equals an f32 that was written as 0.1, and no f64 next
/// to it.
Val equals(const EvalContext& ctx, Args a) {
  auto k = as_number(a[1]);
  if (!k) return unknown("a number");
  Val missing;
  const Tensor* t = numbers_of(ctx, a[0], &missing);
  if (!t) return missing;
  if (t->numel() == 0) return Val{false};
  if (is_float(t->dtype())) {
    double want = Tensor::scalar(t->dtype(), *k).at_f64(0);
    return every(ctx, a[0], [&](const Tensor& x, int64_t i) { return x.at_f64(i) == want; });
  }
  if (std::trunc(*k) != *k) return Val{false};
  auto exact = get<int64_t>(a[1]);
  int64_t want = exact ? *exact : static_cast<int64_t>(*k);
  return every(ctx, a[0],
               [&](const Tensor& x, int64_t i) { return !x.beyond_i64(i) && x.at_i64(i) == want; });
}
Val in_range(const EvalContext& ctx, Args a) {
  auto lo = as_number(a[1]), hi = as_number(a[2]);
  if (!lo || !hi) return unknown("a number");
  return every(ctx, a[0], [&](const Tensor& t, int64_t i) {
    return t.at_f64(i) >= *lo && t.at_f64(i) <= *hi;
  });
}

/// Numbers of a list, a constant, or the arguments themselves; NaN wins.
Val extreme(const EvalContext& ctx, Args a, bool greatest) {
  Val::List items(a.begin(), a.end());
  if (a.size() == 1) {
    if (const Val::List* l = list_of(a[0])) {
      items = *l;
    } else if (get<ValueId>(a[0]) || get<Tensor>(a[0])) {
      Val missing;
      const Tensor* t = numbers_of(ctx, a[0], &missing);
      if (!t) return missing;
      if (t->numel() == 0) return unknown("an element");
      Val best = element(*t, 0);
      for (int64_t i = 1; i < t->numel(); ++i) {
        Val x = element(*t, i);
        const auto dx = as_number(x), db = as_number(best);
        if (!dx || !db) return unknown("a number");
        if (std::isnan(*dx) || (greatest ? *dx > *db : *dx < *db)) best = x;
      }
      return best;
    }
  }
  if (items.empty()) return unknown("an element");
  Val best = element_of(ctx, items[0]);
  for (size_t k = 1; k < items.size(); ++k) {
    Val x = element_of(ctx, items[k]);
    auto nx = as_number(x), nb = as_number(best);
    if (nx && nb) {
      if (std::isnan(*nx) || (greatest ? *nx > *nb : *nx < *nb)) best = x;
      continue;
    }
    auto dx = as_dim(x), db = as_dim(best);
    if (!dx || !db) return is_unknown(x) ? x : unknown("numbers");
    if (greatest)
      best = make_dim(max(*dx, *db));
    else if (at_least(*dx, *db) == Truth::yes)
      continue;
    else if (at_least(*db, *dx) == Truth::yes)
      best = x;
    else
      return unknown(fmt::format("whether {} >= {}", dx->str(), db->str()));
  }
  return best;
}
Val min_of(const EvalContext& ctx, Args a) { return extreme(ctx, a, false); }
Val max_of(const EvalContext& ctx, Args a) { return extreme(ctx, a, true); }

Val equal_const(const EvalContext& ctx, Args a) {
  Val missing;
  const Tensor *x = tensor_of(ctx, a[0], &missing),
               *y = x ? tensor_of(ctx, a[1], &missing) : nullptr;
  return y ? Val{x->identical(*y)} : missing;
}

const Val::List* list_or(const Val& v, Val* missing) {
  const Val::List* l = list_of(v);
  if (!l) *missing = unknown("a list");
  return l;
}

Val all_equal(const EvalContext& ctx, Args a) {
  Val missing;
  const Val::List* l = list_or(a[0], &missing);
  if (!l) return missing;
  Truth all = Truth::yes;
  std::string why;
  for (size_t k = 1; k < l->size(); ++k) {
    Truth t = compare_equal(ctx, (*l)[0], (*l)[k], &why);
    if (t == Truth::no) return Val{false};
    if (t == Truth::unknown) all = t;
  }
  return make_truth(all, why);
}
Val count(const EvalContext&, Args a) {
  Val missing;
  const Val::List* l = list_or(a[0], &missing);
  return l ? Val{static_cast<int64_t>(l->size())} : missing;
}
Val sum(const EvalContext& ctx, Args a) {
  Val missing;
  const Val::List* l = list_or(a[0], &missing);
  if (!l) return missing;
  Dim total(0);
  double real = 0;
  bool floats = false;
  for (const Val& item : *l) {
    Val x = element_of(ctx, item);
    if (auto d = as_dim(x))
      total = total + *d;
    else if (auto f = get<double>(x))
      real += *f, floats = true;
    else
      return is_unknown(x) ? x : unknown("numbers");
  }
  if (!floats) return make_dim(total);
  auto c = total.constant();
  return c ? Val{real + static_cast<double>(*c)} : unknown("a sum of sizes and numbers");
}
Val range(const EvalContext&, Args a) {
  auto from = get<int64_t>(a[0]), to = get<int64_t>(a[1]);
  if (!from || !to) return unknown("a range of integers");
  const bool rises = *to > *from;
  if (rises && static_cast<uint64_t>(*to) - static_cast<uint64_t>(*from) > uint64_t{kMaxListed})
    return unknown(fmt::format("a range of at most {} integers", kMaxListed));
  Val::List l;
  for (int64_t i = *from; i < *to; ++i) l.push_back(Val{i});
  return make_list(std::move(l));
}
Val repeat(const EvalContext&, Args a) {
  auto n = get<int64_t>(a[1]);
  if (!n || *n < 0 || *n > kMaxListed) return unknown("a number of times");
  return make_list(Val::List(static_cast<size_t>(*n), a[0]));
}
Val slice(const EvalContext&, Args a) {
  Val missing;
  const Val::List* l = list_or(a[0], &missing);
  if (!l) return missing;
  int64_t n = static_cast<int64_t>(l->size());
  auto from = get<int64_t>(a[1]), to = a.size() > 2 ? get<int64_t>(a[2]) : &n;
  if (!from || !to) return unknown("positions in a list");
  auto clip = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  int64_t b = clip(*from), e = std::max(b, clip(*to));
  return make_list(Val::List(l->begin() + b, l->begin() + e));
}
Val covers(const EvalContext&, Args a) {
  auto v = as_ints(a[0]);
  if (!v) return unknown("a list of integers");
  std::sort(v->begin(), v->end());
  for (size_t k = 0; k < v->size(); ++k)
    if ((*v)[k] != static_cast<int64_t>(k)) return Val{false};
  return Val{true};
}
Val abs_of(const EvalContext& ctx, Args a) {
  Val x = element_of(ctx, a[0]);
  if (auto i = get<int64_t>(x))
    return *i == INT64_MIN ? unknown("an integer overflow") : Val{*i < 0 ? -*i : *i};
  if (auto d = get<double>(x)) return Val{std::abs(*d)};
  return is_unknown(x) ? x : unknown("a number");
}
Val sqrt_of(const EvalContext& ctx, Args a) {
  Val x = element_of(ctx, a[0]);
  auto d = as_number(x);
  return d ? Val{std::sqrt(*d)} : is_unknown(x) ? x : unknown("a number");
}
/// Rounded to the type of a constant, as the model computes it.
Val is_integer(const EvalContext& ctx, Args a) {
  Val x = element_of(ctx, a[0]);
  auto d = as_number(x);
  return d               ? Val{std::isfinite(*d) && std::trunc(*d) == *d}
         : is_unknown(x) ? x
                         : unknown("a number");
}
Val pow2(const EvalContext& ctx, Args a) {
  auto power = [](double d) {
    int e = 0;
    return std::isfinite(d) && d != 0 && std::abs(std::frexp(d, &e)) == 0.5;
  };
  // Not by way of f64, where 2^53 + 1 is 2^53.
  auto whole = [](int64_t i, bool is_signed) {
    const auto bits = static_cast<uint64_t>(i);
    return std::has_single_bit(is_signed && i < 0 ? 0 - bits : bits);
  };
  if (auto i = get<int64_t>(a[0])) return Val{whole(*i, true)};
  if (auto d = as_number(a[0])) return Val{power(*d)};
  return every(ctx, a[0], [&](const Tensor& t, int64_t i) {
    return is_float(t.dtype()) ? power(t.at_f64(i)) : whole(t.at_i64(i), is_signed_int(t.dtype()));
  });
}

const Function kConstantFunctions[] = {
    {{"const", "(x: value) -> bool", "a constant: initializer, Constant node, or folded"},
     is_const},
    {{"value", "(x: any) -> number",
      "the one element of a constant; absent stays absent, for value(x) ?? 1"},
     value,
     kMissingToo},
    {{"values", "(x: any) -> list",
      "all elements of a constant, row-major; also known contents of shape-like values"},
     values,
     kMissingToo},
    {{"uniform", "(x: value) -> bool", "all elements of the constant are equal"}, uniform},
    {{"near", "(x: any, k: number, rtol: number = 0.001) -> bool",
      "every element is k within the relative tolerance"},
     near},
    {{"equals", "(x: value, k: number) -> bool",
      "every element is k, compared in the constant's own type"},
     equals},
    {{"finite", "(x: value) -> bool", "no element of the constant is infinite or NaN"}, finite},
    {{"in_range", "(x: value, lo: number, hi: number) -> bool",
      "every element is between lo and hi, both included"},
     in_range},
    {{"min", "(x: any, more: any...) -> number",
      "least element of a constant or list, or of the arguments"},
     min_of},
    {{"max", "(x: any, more: any...) -> number",
      "greatest element of a constant or list, or of the arguments"},
     max_of},
    {{"equal_const", "(a: value, b: value) -> bool",
      "two constants of the same type, shape and bits"},
     equal_const},
    {{"power_of_two", "(x: any) -> bool", "every element is a positive or negative power of two"},
     pow2},
    {{"is_integer", "(x: any) -> bool", "a whole number"}, is_integer},
    {{"abs", "(x: any) -> number", "magnitude"}, abs_of},
    {{"sqrt", "(x: any) -> number", "square root"}, sqrt_of},
    {{"all_equal", "(list: list) -> bool", "all elements are equal"}, all_equal},
    {{"count", "(list: list) -> int",
      "number of elements; count(v in list: condition) counts some"},
     count},
    {{"sum", "(list: list) -> number",
      "sum of the elements; sum(v in list: expression) of an expression"},
     sum},
    {{"range", "(from: int, to: int) -> list", "the integers from .. to - 1"}, range},
    {{"repeat", "(x: any, n: int) -> list", "n times the same"}, repeat},
    {{"slice", "(list: list, from: int, to: int = end) -> list",
      "part of a list; negative positions count from the end"},
     slice},
    {{"covers", "(list: list) -> bool", "the integers 0 .. n-1, each once, in any order"}, covers},
};

}  // namespace

std::span<const Function> constant_functions() { return kConstantFunctions; }

}  // namespace ferrule
