// Functions of conditions: element types, shapes, broadcasting.
#include <algorithm>

#include "engine/rule/condition_functions.h"

namespace ferrule {
namespace {

/// The shape of a value, or a list of sizes taken as one.
std::optional<Shape> shape_of(const EvalContext& ctx, const Val& v, Val* missing) {
  if (const Value* x = value_of(ctx, v)) {
    if (x->type.shape) return x->type.shape;
    *missing = unknown(fmt::format("the shape of {}", quoted(ctx, std::get<ValueId>(v.v))));
    return std::nullopt;
  }
  if (const Val::List* l = list_of(v)) {
    Shape s;
    for (const Val& item : *l) {
      auto d = as_dim(item);
      if (!d) return *missing = unknown("a list of sizes"), std::nullopt;
      s.push_back(*d);
    }
    return s;
  }
  *missing = unknown("a value or a list of sizes");
  return std::nullopt;
}

DType dtype_of(const EvalContext& ctx, const Val& v) {
  if (auto t = get<DType>(v)) return *t;
  const Value* x = value_of(ctx, v);
  return x ? x->type.dtype : DType::undefined;
}

template <class F>
Val with_dtype(const EvalContext& ctx, const Val& v, F f) {
  DType t = dtype_of(ctx, v);
  if (t != DType::undefined) return Val{f(t)};
  auto id = get<ValueId>(v);
  return unknown(id ? fmt::format("the element type of {}", quoted(ctx, *id)) : "an element type");
}

Val dtype(const EvalContext& ctx, Args a) {
  return with_dtype(ctx, a[0], [](DType t) { return t; });
}
Val compute_dtype(const EvalContext& ctx, Args a) {
  return with_dtype(ctx, a[0], [](DType t) { return compute_type(t); });
}
Val is_float_of(const EvalContext& ctx, Args a) { return with_dtype(ctx, a[0], is_float); }
Val is_int_of(const EvalContext& ctx, Args a) {
  return with_dtype(ctx, a[0], [](DType t) { return is_int(t); });
}
Val is_signed_of(const EvalContext& ctx, Args a) {
  return with_dtype(ctx, a[0], [](DType t) { return is_signed_int(t) || is_float(t); });
}
Val is_bool_of(const EvalContext& ctx, Args a) {
  return with_dtype(ctx, a[0], [](DType t) { return t == DType::boolean; });
}
Val itemsize(const EvalContext& ctx, Args a) {
  return with_dtype(ctx, a[0], [](DType t) { return static_cast<int64_t>(size_bytes(t, 1)); });
}

/// An integer type's least or greatest number; what an int64 cannot hold, and floats, are not
/// known.
Val extreme_of(const EvalContext& ctx, Args a, bool greatest) {
  return with_dtype(ctx, a[0], [&](DType t) {
    const int bits = size_bits(t);
    const bool sign = !is_unsigned_int(t);
    if (!is_int(t) || (!sign && bits > 32))
      return unknown(fmt::format("the {} {}", greatest ? "greatest" : "least", name(t)));
    const int64_t most =
        sign ? static_cast<int64_t>(~uint64_t{0} >> (65 - bits)) : (int64_t{1} << bits) - 1;
    return Val{greatest ? most : sign ? -most - 1 : 0};
  });
}
Val lowest(const EvalContext& ctx, Args a) { return extreme_of(ctx, a, false); }
Val highest(const EvalContext& ctx, Args a) { return extreme_of(ctx, a, true); }

/// Every value of `from` has exactly one equal value in `to`.
bool widens(DType from, DType to) {
  if (from == to || from == DType::boolean) return true;
  if (from == DType::string || to == DType::string || to == DType::boolean) return false;
  auto mantissa = [](DType t) {
    switch (t) {
      case DType::f64:
        return 53;
      case DType::f32:
        return 24;
      case DType::f16:
        return 11;
      case DType::bf16:
        return 8;
      default:
        return 0;
    }
  };
  if (is_float(from) && is_float(to)) {
    bool exponent = !(from == DType::bf16 && to == DType::f16);
    return mantissa(from) > 0 && mantissa(from) <= mantissa(to) && exponent;
  }
  if (is_float(from)) return false;
  int bits = size_bits(from) - (is_signed_int(from) ? 1 : 0);
  if (is_float(to)) return bits <= mantissa(to) && !(to == DType::f16 && bits > 11);
  if (is_signed_int(from) && !is_signed_int(to)) return false;
  return bits <= size_bits(to) - (is_signed_int(to) ? 1 : 0);
}
Val widens_to(const EvalContext& ctx, Args a) {
  DType from = dtype_of(ctx, a[0]), to = dtype_of(ctx, a[1]);
  if (from == DType::undefined || to == DType::undefined) return unknown("an element type");
  return Val{widens(from, to)};
}
Val onnx_dtype(const EvalContext&, Args a) {
  auto code = get<int64_t>(a[0]);
  if (!code || *code < 1 || *code > static_cast<int64_t>(kLastElementType))
    return unknown("ONNX's number of an element type");
  return Val{static_cast<DType>(*code)};
}

Val rank(const EvalContext& ctx, Args a) {
  Val missing;
  auto s = shape_of(ctx, a[0], &missing);
  return s ? Val{static_cast<int64_t>(s->size())} : missing;
}
Val dim(const EvalContext& ctx, Args a) {
  Val missing;
  auto s = shape_of(ctx, a[0], &missing);
  auto i = get<int64_t>(a[1]);
  if (!s || !i) return s ? unknown("an axis") : missing;
  int64_t n = static_cast<int64_t>(s->size()), k = *i < 0 ? *i + n : *i;
  if (k < 0 || k >= n) return unknown(fmt::format("axis {} of {}", *i, str(*s)));
  return make_dim((*s)[static_cast<size_t>(k)]);
}
Val shape(const EvalContext& ctx, Args a) {
  Val missing;
  auto s = shape_of(ctx, a[0], &missing);
  if (!s) return missing;
  Val::List l;
  for (const Dim& d : *s) l.push_back(make_dim(d));
  return make_list(std::move(l));
}
Val numel(const EvalContext& ctx, Args a) {
  Val missing;
  auto s = shape_of(ctx, a[0], &missing);
  return s ? make_dim(product(*s)) : missing;
}
Val bytes(const EvalContext& ctx, Args a) {
  const Value* x = value_of(ctx, a[0]);
  if (!x) return unknown("a value");
  Val n = numel(ctx, a.first(1));
  auto d = as_dim(n);
  if (!d) return n;
  int bits = size_bits(x->type.dtype);
  if (bits == 0)
    return unknown(fmt::format("the element type of {}", quoted(ctx, *get<ValueId>(a[0]))));
  return make_dim(bits % 8 == 0 ? *d * Dim(bits / 8) : ceildiv(*d * Dim(bits), Dim(8)));
}

Truth same(const Shape& a, const Shape& b) {
  if (a.size() != b.size()) return Truth::no;
  Truth all = Truth::yes;
  for (size_t k = 0; k < a.size(); ++k) {
    Truth t = equal(a[k], b[k]);
    if (t == Truth::no) return t;
    if (t == Truth::unknown) all = t;
  }
  return all;
}

Val same_shape(const EvalContext& ctx, Args a) {
  Val missing;
  auto x = shape_of(ctx, a[0], &missing), y = x ? shape_of(ctx, a[1], &missing) : std::nullopt;
  if (!y) return missing;
  return make_truth(same(*x, *y), fmt::format("whether {} is {}", str(*x), str(*y)));
}

Val is_static(const EvalContext& ctx, Args a) {
  Val missing;
  auto s = shape_of(ctx, a[0], &missing);
  return s ? Val{constant_shape(*s).has_value()} : missing;
}
Val is_empty(const EvalContext& ctx, Args a) {
  const Value* v = value_of(ctx, a[0]);
  return Val{v && v->type.shape && std::ranges::count(*v->type.shape, Dim(0)) > 0};
}
Val known(const EvalContext&, Args a) { return Val{!is_unknown(a[0]) && !is_absent(a[0])}; }

/// Whether the aligned dimension of the operand is 1 (stretched) or the result's own.
struct Alignment {
  std::vector<Truth> one, equal;  ///< per axis of the result
  bool possible = true;
};
Alignment align(const Shape& r, const Shape& y) {
  Alignment a;
  for (size_t k = 0; k < y.size(); ++k) {  // the last axes lie on each other
    Dim d = k + r.size() < y.size() ? Dim(1) : r[k + r.size() - y.size()];
    a.one.push_back(equal(d, Dim(1)));
    a.equal.push_back(equal(d, y[k]));
    if (a.one.back() == Truth::no && a.equal.back() == Truth::no) a.possible = false;
  }
  if (r.size() > y.size())
    for (size_t k = 0; k < r.size() - y.size(); ++k)
      if (equal(r[k], Dim(1)) != Truth::yes) a.possible = false;
  return a;
}

Truth both(Truth a, Truth b) {
  if (a == Truth::no || b == Truth::no) return Truth::no;
  return a == Truth::yes && b == Truth::yes ? Truth::yes : Truth::unknown;
}

Val broadcasts_to(const EvalContext& ctx, Args a) {
  Val missing;
  auto r = shape_of(ctx, a[0], &missing), y = r ? shape_of(ctx, a[1], &missing) : std::nullopt;
  if (!y) return missing;
  if (r->size() > y->size()) return Val{false};
  Alignment x = align(*r, *y);
  if (!x.possible) return Val{false};
  Truth all = Truth::yes;
  for (size_t k = 0; k < y->size(); ++k)
    if (x.one[k] != Truth::yes && x.equal[k] != Truth::yes) all = Truth::unknown;
  return make_truth(all, fmt::format("whether {} broadcasts to {}", str(*r), str(*y)));
}

/// Kinds are tried from the cheapest to serve to the most general; the first that certainly holds
/// is the answer, even where symbols may turn out such that an earlier one holds, too.
Val bcast(const EvalContext& ctx, Args a) {
  Val missing;
  auto r = shape_of(ctx, a[0], &missing), y = r ? shape_of(ctx, a[1], &missing) : std::nullopt;
  if (!y) return missing;
  if (same(*r, *y) == Truth::yes) return Val{std::string("none")};
  Alignment x = align(*r, *y);
  if (!x.possible) return Val{std::string("impossible")};
  size_t n = y->size();
  // Every axis but `axis` stretched, that one equal (npos: none).
  auto only = [&](size_t axis) {
    Truth t = Truth::yes;
    for (size_t k = 0; k < n; ++k) t = both(t, k == axis ? x.equal[k] : x.one[k]);
    return t;
  };
  auto batch = [&] {
    Truth t = n > 0 ? x.one[0] : Truth::no;
    for (size_t k = 1; k < n; ++k) t = both(t, x.equal[k]);
    return t;
  };
  struct Try {
    const char* kind;
    Truth t;
  };
  const Try tries[] = {{"none", r->size() == n ? same(*r, *y) : Truth::no},
                       {"scalar", only(std::string::npos)},
                       {"channel", n >= 3 ? only(1) : Truth::no},
                       {"row", n >= 1 ? only(n - 1) : Truth::no},
                       {"batch", batch()}};
  for (const Try& t : tries)
    if (t.t == Truth::yes) return Val{std::string(t.kind)};
  for (const Try& t : tries)
    if (t.t == Truth::unknown)
      return unknown(fmt::format("how {} broadcasts to {}", str(*r), str(*y)));
  return Val{std::string("general")};
}

Val raises_rank(const EvalContext& ctx, Args a) {
  Val missing;
  auto r = shape_of(ctx, a[0], &missing), y = r ? shape_of(ctx, a[1], &missing) : std::nullopt;
  return y ? Val{r->size() > y->size()} : missing;
}

/// Sizes for a Reshape that keeps every element: at most one unknown, written -1; a 0 would mean
/// "copy".
Val reshape_target(const EvalContext& ctx, Args a) {
  Val missing;
  auto s = shape_of(ctx, a[0], &missing);
  if (!s) return missing;
  std::vector<int64_t> out;
  bool open = false;
  for (const Dim& d : *s) {
    auto c = d.constant();
    if ((c && *c == 0) || (!c && open)) return unknown(fmt::format("{} as constants", str(*s)));
    open = open || !c;
    out.push_back(c ? *c : -1);
  }
  return ints(out);
}

const Function kShapeFunctions[] = {
    {{"dtype", "(x: value) -> dtype", "element type"}, dtype},
    {{"compute_dtype", "(x: any) -> dtype",
      "type its arithmetic is done in: f32 for f16, bf16, fp8"},
     compute_dtype},
    {{"onnx_dtype", "(code: int) -> dtype",
      "the element type with this number in ONNX (Cast's `to`)"},
     onnx_dtype},
    {{"is_float", "(x: any) -> bool", "floating point, of a value or element type"}, is_float_of},
    {{"is_int", "(x: any) -> bool", "integer (bool is not), of a value or element type"},
     is_int_of},
    {{"is_signed", "(x: any) -> bool", "signed integer or floating point"}, is_signed_of},
    {{"is_bool", "(x: any) -> bool", "bool, of a value or element type"}, is_bool_of},
    {{"widens", "(from: any, to: any) -> bool",
      "every value of one element type exists in the other"},
     widens_to},
    {{"itemsize", "(x: any) -> int", "bytes of an element"}, itemsize},
    {{"lowest", "(x: any) -> int", "least number of an integer element type"}, lowest},
    {{"highest", "(x: any) -> int", "greatest number of an integer element type"}, highest},
    {{"rank", "(x: shape) -> int", "number of dimensions"}, rank},
    {{"dim", "(x: shape, axis: int) -> size", "one dimension; negative axes count from the end"},
     dim},
    {{"shape", "(x: shape) -> list", "all dimensions; compare with == [..] or ~ '[B, H, _]'"},
     shape},
    {{"reshape_target", "(x: shape) -> list",
      "its shape as a Reshape takes it, one unknown size as -1; not known with two, or with a 0"},
     reshape_target},
    {{"numel", "(x: shape) -> size", "number of elements"}, numel},
    {{"bytes", "(x: value) -> size", "size in memory"}, bytes},
    {{"same_shape", "(a: shape, b: shape) -> bool", "provably the same shape"}, same_shape},
    {{"static", "(x: shape) -> bool", "every dimension is a number"}, is_static},
    {{"is_empty", "(x: value) -> bool", "it certainly has no elements"}, is_empty},
    {{"known", "(fact: any) -> bool", "the fact is known and present"}, known, kMissingToo},
    {{"bcast", "(r: shape, y: shape) -> kind",
      "how r broadcasts to y: none, scalar, channel (axis 1 only, rank >= 3), row (last axis "
      "only), batch (batch size 1), general, impossible"},
     bcast},
    {{"broadcasts_to", "(r: shape, y: shape) -> bool", "r broadcasts to exactly y's shape"},
     broadcasts_to},
    {{"raises_rank", "(r: shape, y: shape) -> bool", "r has more dimensions than y"}, raises_rank},
};

}  // namespace

std::span<const Function> shape_functions() { return kShapeFunctions; }

}  // namespace ferrule
