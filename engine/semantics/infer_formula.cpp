#include "engine/semantics/infer_formula.h"

#include "engine/base/diagnostics.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/meets.h"
#include "engine/semantics/nodes_to_programs.h"

namespace ferrule {
namespace {

/// Whether `s` may broadcast to `over` as it is.
bool spreads_over(const Shape& s, const Shape& over) {
  if (s.size() > over.size()) return false;
  const size_t extra = over.size() - s.size();
  for (size_t k = 0; k < s.size(); ++k)
    if (equal(s[k], Dim(1)) == Truth::no && equal(s[k], over[k + extra]) == Truth::no) return false;
  return true;
}

}  // namespace

Result<Type> infer_pointwise(const Semantics& ops, const Graph& g, const Node& n) {
  FERRULE_ASSIGN(const OpFormula* f, required(pointwise_formula(ops, n)));
  std::vector<DType> types;
  Type out;
  out.shape = Shape{};
  for (size_t k = 0; k < n.inputs.size(); ++k) {
    types.push_back(n.inputs[k] ? g.value(n.inputs[k]).type.dtype : DType::undefined);
    if (!n.inputs[k] || !f->reads(k)) continue;
    const Type& t = g.value(n.inputs[k]).type;
    const Meets how = meets_first(*f, k);
    if (how == Meets::single && t.shape && equal(product(*t.shape), Dim(1)) == Truth::no)
      return error(Code::bad_shape, node_place(n),
                   fmt::format("input {} is {} where one element is wanted", k, str(*t.shape)));
    if (!out.shape || how == Meets::single) continue;
    if (!t.shape) {
      if (how == Meets::broadcast) out.shape.reset();
      continue;
    }
    std::optional<Shape> both = broadcast(*out.shape, *t.shape);
    if (!both)
      return error(Code::bad_shape, node_place(n),
                   fmt::format("the inputs' shapes do not broadcast: {} meets {}", str(*out.shape),
                               str(*t.shape)));
    if (how == Meets::broadcast)
      out.shape = std::move(both);
    else if (!spreads_over(*t.shape, *out.shape))
      return error(Code::bad_shape, node_place(n),
                   fmt::format("input {} is {}, which does not broadcast to {}", k, str(*t.shape),
                               str(*out.shape)));
  }
  FERRULE_ASSIGN(out.dtype, formula_result_type(*f, n, types));
  return out;
}

namespace {

bool keeps_dims(const OpFormula& f, const Node& n) {
  auto declared = f.attrs.find("keepdims");
  const auto* usual = declared == f.attrs.end() ? nullptr : std::get_if<int64_t>(&declared->second);
  return n.attrs.i("keepdims", usual ? *usual : 1) != 0;
}

/// Inputs with one value a channel have the channels of `x`.
Status check_channels(const OpFormula& f, const Graph& g, const Node& n, const Type& x) {
  for (size_t k = 1; k < n.inputs.size(); ++k) {
    if (!n.inputs[k] || !f.per_channel(k)) continue;
    const std::optional<Shape>& p = g.value(n.inputs[k]).type.shape;
    if (p && (p->size() != 1 || x.rank() < 2 || equal((*p)[0], (*x.shape)[1]) == Truth::no))
      return error(Code::bad_shape, node_place(n),
                   fmt::format("its input is {} and its parameter {} is {}", str(x), k, str(*p)));
  }
  return {};
}

}  // namespace

Shape row_result_shape(const OpFormula& f, const Node& n, const RowAxes& axes, const Shape& x) {
  if (!f.one_a_row) return x;
  const bool keep = keeps_dims(f, n);
  Shape y;
  for (size_t k = 0; k < x.size(); ++k)
    if (!axes.reduced[k])
      y.push_back(axes.groups && k == 1 ? Dim(axes.groups) : x[k]);
    else if (keep)
      y.push_back(Dim(1));
  return y;
}

Result<Type> infer_row(const OpFormula& f, const Graph& g, const Node& n) {
  std::vector<DType> types;
  for (ValueId v : n.inputs) types.push_back(v ? g.value(v).type.dtype : DType::undefined);
  Type out;
  FERRULE_ASSIGN(out.dtype, formula_result_type(f, n, types));
  const ValueId in = n.inputs.empty() ? ValueId{} : n.inputs[0];
  if (!in || !g.value(in).type.shape) return out;
  const Type& x = g.value(in).type;
  FERRULE_TRY(check_channels(f, g, n, x));
  Tensor computed;  // axes that follow from shapes
  auto axes = row_axes(f, n, *x.shape, [&](size_t slot) -> const Tensor* {
    const Tensor* t = g.constant(n.inputs[slot]);
    const auto contents = t ? std::nullopt : contents_of(g, n.inputs[slot]);
    const auto list = contents ? constant_shape(*contents) : std::nullopt;
    if (list) computed = Tensor::of_i64({std::ssize(*list)}, *list);
    return list ? &computed : t;
  });
  if (axes)
    out.shape = row_result_shape(f, n, *axes, *x.shape);
  else if (const Error* e = axes.error().error())
    return fail(*e);
  else if (!f.one_a_row)  // the axes are not known yet
    out.shape = x.shape;
  else if (keeps_dims(f, n))
    out.shape = Shape(x.shape->size(), Dim::unknown());
  return out;
}

}  // namespace ferrule
