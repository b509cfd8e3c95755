// Shapes of normalisations, selections and makers of tensors; contents that arithmetic
// on shapes gives (Add, Mul, … of small integer tensors).
#include <algorithm>
#include <cmath>

#include "engine/graph/operator_name.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/infer_impl.h"

namespace ferrule {

using namespace infer_detail;

namespace {

Status arg_extreme(InferenceContext& c) {
  const bool keep = c.n.attrs.i("keepdims", 1) != 0;
  std::optional<Shape> out = c.shape(0);
  if (!out) return c.set(0, DType::i64);
  FERRULE_ASSIGN(const size_t axis, c.axis(c.n.attrs.i("axis", 0), out->size()));
  if (keep)
    (*out)[axis] = Dim(1);
  else
    out->erase(out->begin() + axis);
  return c.set(0, DType::i64, out);
}

/// Same type, a valid axis.
Status rowwise(InferenceContext& c) {
  if (c.shape(0)) FERRULE_TRY(c.axis(c.n.attrs.i("axis", -1), c.shape(0)->size()));
  return c.same();
}

Status lp_norm(InferenceContext& c) {
  const int64_t p = c.n.attrs.i("p", 2);
  if (p != 1 && p != 2)
    return error(Code::bad_attribute, place(c.n), "p", fmt::format("{} is neither 1 nor 2", p));
  return rowwise(c);
}

Status same_first(InferenceContext& c) { return c.same(); }

Status batch_norm(InferenceContext& c) {
  const auto& x = c.shape(0);
  if (x && x->empty()) return c.wrong("its input is a scalar");
  for (size_t i = 1; i < 5; ++i) {
    const auto& p = c.shape(i);
    if (p && (p->size() != 1 || (x && x->size() > 1 && equal((*p)[0], (*x)[1]) == Truth::no)))
      return c.wrong(
          fmt::format("its input is {} and its parameter {} is {}", str(c.in(0)), i, str(*p)));
  }
  c.set(1, c.in(3).dtype, c.shape(3));
  c.set(2, c.in(4).dtype, c.shape(4));
  return c.same();
}

Status layer_norm(InferenceContext& c) {
  FERRULE_TRY(c.same());
  DType stash = static_cast<DType>(c.n.attrs.i("stash_type", 1));
  std::optional<Shape> rest = c.shape(0);
  if (rest) {
    FERRULE_ASSIGN(size_t axis, c.axis(c.n.attrs.i("axis", -1), rest->size()));
    for (size_t i = axis; i < rest->size(); ++i) (*rest)[i] = Dim(1);
  }
  c.set(1, stash, rest);
  return c.set(2, stash, rest);
}

Status dropout(InferenceContext& c) {
  const DType training = c.has(2) ? c.in(2).dtype : DType::boolean;
  if (training != DType::boolean && training != DType::undefined)
    return c.wrong(fmt::format("its training_mode is {}, not bool", name(training)));
  c.set(1, DType::boolean, c.shape(0));
  c.set_contents(0, c.contents(0));
  return c.same();
}

Status where(InferenceContext& c) {
  const DType a_type = c.in(1).dtype, b_type = c.in(2).dtype;
  if (a_type != DType::undefined && b_type != DType::undefined && a_type != b_type)
    return c.wrong(fmt::format("its operands are {} and {}", name(a_type), name(b_type)));
  DType type = a_type == DType::undefined ? b_type : a_type;
  if (!c.shape(0) || !c.shape(1) || !c.shape(2)) return c.set(0, type);
  auto out = broadcast(*c.shape(1), *c.shape(2));
  if (out) out = broadcast(*c.shape(0), *out);
  if (!out)
    return c.wrong(fmt::format("{}, {} and {} do not broadcast", str(*c.shape(0)), str(*c.shape(1)),
                               str(*c.shape(2))));
  c.set(0, type, out);
  auto condition = c.ints(0);
  if (const Tensor* t = c.g.constant(c.id(0));
      t && t->dtype() == DType::boolean && t->numel() <= kMaxContents)
    condition = t->to_i64();
  auto a = c.contents(1), b = c.contents(2);
  if (!condition || !a || !b) return {};
  size_t n = std::max({condition->size(), a->size(), b->size()});
  std::vector<Dim> picked;
  auto at = [&](const auto& v, size_t i) { return v.size() == 1 ? v[0] : v[i]; };
  for (size_t i = 0; i < n; ++i) {
    if ((condition->size() != 1 && condition->size() != n) || (a->size() != 1 && a->size() != n) ||
        (b->size() != 1 && b->size() != n))
      return {};
    picked.push_back(at(*condition, i) ? at(*a, i) : at(*b, i));
  }
  c.set_contents(0, picked);
  return {};
}

Status top_k(InferenceContext& c) {
  std::optional<Shape> out = c.shape(0);
  if (out) {
    FERRULE_ASSIGN(size_t axis, c.axis(c.n.attrs.i("axis", -1), out->size()));
    auto k = c.contents(1);
    if (k && k->size() == 1 && at_least((*k)[0], Dim(0)) == Truth::no)
      return c.wrong(fmt::format("k is {}", (*k)[0].str()));
    if (k && k->size() == 1 && at_least((*out)[axis], (*k)[0]) == Truth::no)
      return c.wrong(
          fmt::format("k is {}, axis {} of {} has less", (*k)[0].str(), axis, str(*out)));
    (*out)[axis] = k && k->size() == 1 ? (*k)[0] : Dim::unknown();
  }
  c.set(0, c.in(0).dtype, out);
  return c.set(1, DType::i64, out);
}

Status one_hot(InferenceContext& c) {
  if (!c.shape(0)) return c.set(0, c.in(2).dtype);
  Shape out = *c.shape(0);
  FERRULE_ASSIGN(size_t axis, c.axis(c.n.attrs.i("axis", -1), out.size() + 1));
  auto depth = c.contents(1);
  if (depth && depth->size() == 1 && at_least((*depth)[0], Dim(0)) == Truth::no)
    return c.wrong(fmt::format("its depth is {}", (*depth)[0].str()));
  out.insert(out.begin() + axis, depth && depth->size() == 1 ? (*depth)[0] : Dim::unknown());
  return c.set(0, c.in(2).dtype, out);
}

Status constant_of_shape(InferenceContext& c) {
  const Attr* a = c.n.attrs.find("value");
  const Tensor* value = a ? std::get_if<Tensor>(a) : nullptr;
  DType type = value ? value->dtype() : DType::f32;
  auto dims = c.contents(0);
  if (!dims) {
    const auto& s = c.shape(0);
    auto n = s && s->size() == 1 ? (*s)[0].constant() : std::nullopt;
    std::optional<Shape> out;
    if (n && *n >= 0 && *n <= 64) out = unknown_shape(static_cast<size_t>(*n));
    return c.set(0, type, out);
  }
  for (const Dim& d : *dims)
    if (at_least(d, Dim(0)) == Truth::no)
      return c.wrong(fmt::format("a dimension would be {}", d.str()));
  c.set(0, type, *dims);
  auto n = product(*dims).constant();
  bool whole = !value || is_int(type) || type == DType::boolean;
  if (n && *n <= kMaxContents && whole)
    c.set_contents(0, std::vector<Dim>(static_cast<size_t>(*n),
                                       Dim(value && value->numel() == 1 ? value->at_i64(0) : 0)));
  return {};
}

Status range(InferenceContext& c) {
  auto start = c.contents(0), limit = c.contents(1), delta = c.contents(2);
  Dim n = Dim::unknown();
  bool known =
      start && limit && delta && start->size() == 1 && limit->size() == 1 && delta->size() == 1;
  if (known && (*delta)[0].constant() == 0) return c.wrong("its step is 0");
  if (known && (*delta)[0].is_constant()) {
    int64_t step = *(*delta)[0].constant();
    Dim span = (*limit)[0] - (*start)[0];
    n = max(step > 0 ? ceildiv(span, Dim(step)) : ceildiv(Dim(0) - span, Dim(0) - Dim(step)),
            Dim(0));
  }
  const Tensor *a = c.g.constant(c.id(0)), *b = c.g.constant(c.id(1)), *d = c.g.constant(c.id(2));
  if (!known && a && b && d && a->numel() == 1 && b->numel() == 1 && d->numel() == 1 &&
      is_float(a->dtype()) && b->dtype() == a->dtype() && d->dtype() == a->dtype()) {
    double count = std::ceil((b->at_f64(0) - a->at_f64(0)) / d->at_f64(0));
    if (count < 0x1p62) n = Dim(static_cast<int64_t>(std::max(count, 0.0)));
  }
  c.set(0, c.in(0).dtype, Shape{n});
  if (!known || !n.is_constant() || *n.constant() > kMaxContents) return {};
  std::vector<Dim> list;
  for (int64_t i = 0; i < *n.constant(); ++i) list.push_back((*start)[0] + (*delta)[0] * Dim(i));
  c.set_contents(0, list);
  return {};
}

Status non_zero(InferenceContext& c) {
  Dim rank = c.shape(0) ? Dim(static_cast<int64_t>(c.shape(0)->size())) : Dim::unknown();
  return c.set(0, DType::i64, Shape{rank, Dim::unknown()});
}

/// What both branches agree on. A branch that cannot be typed may be the one that never runs.
Status if_op(InferenceContext& c) {
  std::vector<const Graph*> branches;
  for (const auto& [key, sub] : c.n.subgraphs) {
    FERRULE_TRY(infer_nested(c.ops, *sub));
    if (sub->outputs().size() < c.n.outputs.size()) return c.wrong("a branch has too few outputs");
    branches.push_back(sub.get());
  }
  if (branches.size() != 2) return c.wrong("it wants two branches");
  for (size_t i = 0; i < c.n.outputs.size(); ++i) {
    const Type& a = branches[0]->value(branches[0]->outputs()[i]).type;
    const Type& b = branches[1]->value(branches[1]->outputs()[i]).type;
    if (a.dtype == DType::undefined || b.dtype == DType::undefined) {
      c.set(i, a.dtype == DType::undefined ? b.dtype : a.dtype);
      continue;
    }
    if (a.dtype != b.dtype)
      return c.wrong(fmt::format("its branches make {} and {}", str(a), str(b)));
    std::optional<Shape> both;
    if (a.shape && b.shape && a.shape->size() == b.shape->size()) {
      both = a.shape;
      for (size_t k = 0; k < both->size(); ++k)
        if (!((*both)[k] == (*b.shape)[k])) (*both)[k] = Dim::unknown();
    }
    c.set(i, a.dtype, both);
  }
  return {};
}

/// x op y on sizes; nullopt where the result is no dim.
std::optional<Dim> arithmetic(const std::string& op, const Dim& x, const Dim& y, bool whole) {
  if (op == "Add") return x + y;
  if (op == "Sub") return x - y;
  if (op == "Mul") return x * y;
  if (op == "Max") return max(x, y);
  if (op == "Min") return infer_detail::min(x, y);
  if (op == "Div" || op == "Mod") {
    // Integer division truncates, which is floor from 0 on.
    bool sure = whole && at_least(x, Dim(0)) == Truth::yes && at_least(y, Dim(1)) == Truth::yes;
    if (!sure) return std::nullopt;
    return op == "Div" ? floordiv(x, y) : x - y * floordiv(x, y);
  }
  if (op == "Equal" || op == "Less" || op == "Greater") {
    Truth t = op == "Equal" ? equal(x, y) : op == "Less" ? at_least(x, y) : at_least(y, x);
    if (t == Truth::unknown) return std::nullopt;
    return Dim((t == Truth::yes) == (op == "Equal") ? 1 : 0);
  }
  return std::nullopt;
}

/// All of a list in one, for ReduceProd, ReduceSum and ReduceMax.
Dim reduced(const std::string& op, std::span<const Dim> data) {
  Dim y = op == "ReduceMax" ? data[0] : Dim(op == "ReduceProd");
  for (const Dim& d : data) y = op == "ReduceProd" ? y * d : op == "ReduceSum" ? y + d : max(y, d);
  return y;
}

}  // namespace

void infer_detail::derive_contents(InferenceContext& c) {
  const std::string& op = operator_name(c.n.op);
  if (!c.n.domain.empty() || c.out.contents.size() != 1 || c.out.contents[0]) return;
  if (op == "Floor" || op == "Ceil" || op == "Round" || op == "Neg") {
    auto data = c.contents(0);
    if (data && op == "Neg")
      for (Dim& d : *data) d = Dim(0) - d;
    c.set_contents(0, data);
    return;
  }
  if (op == "ReduceProd" || op == "ReduceSum" || op == "ReduceMax") {
    auto data = c.contents(0);
    const Type& y = c.out.types[0];
    if (data && (op != "ReduceMax" || !data->empty()) && c.in(0).rank() == 1 && y.shape &&
        product(*y.shape) == Dim(1))
      c.set_contents(0, std::vector<Dim>{reduced(op, *data)});
    return;
  }
  static const std::vector<std::string> kArithmetic = {"Add", "Sub", "Mul",   "Div",  "Mod",
                                                       "Max", "Min", "Equal", "Less", "Greater"};
  if (c.n.inputs.size() != 2 || !contains(kArithmetic, op)) return;
  auto a = c.contents(0), b = c.contents(1);
  if (!a || !b || a->empty() || b->empty()) return;
  size_t n = std::max(a->size(), b->size());
  if ((a->size() != 1 && a->size() != n) || (b->size() != 1 && b->size() != n)) return;
  std::vector<Dim> out;
  for (size_t i = 0; i < n; ++i) {
    auto d = arithmetic(op, (*a)[a->size() == 1 ? 0 : i], (*b)[b->size() == 1 ? 0 : i],
                        is_int(c.in(0).dtype));
    if (!d) return;
    out.push_back(*d);
  }
  c.set_contents(0, out);
}

void infer_detail::add_select_rules(Table& t) {
  t.insert({{"ArgMax", arg_extreme},
            {"ArgMin", arg_extreme},
            {"Hardmax", rowwise},
            {"LpNormalization", lp_norm},
            {"LRN", same_first},
            {"BatchNormalization", batch_norm},
            {"LayerNormalization", layer_norm},
            {"Dropout", dropout},
            {"Where", where},
            {"TopK", top_k},
            {"OneHot", one_hot},
            {"ConstantOfShape", constant_of_shape},
            {"Range", range},
            {"NonZero", non_zero},
            {"If", if_op}});
}

}  // namespace ferrule
