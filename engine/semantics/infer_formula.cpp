#include "engine/semantics/infer_formula.h"

#include "engine/base/diagnostics.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/nodes_to_programs.h"

namespace ferrule {

Result<Type> infer_pointwise(const Semantics& ops, const Graph& g, const Node& n) {
  FERRULE_ASSIGN(const OpFormula* f, required(pointwise_formula(ops, n)));
  std::vector<DType> types;
  Type out;
  out.shape = Shape{};
  for (size_t k = 0; k < n.inputs.size(); ++k) {
    types.push_back(n.inputs[k] ? g.value(n.inputs[k]).type.dtype : DType::undefined);
    if (!n.inputs[k] || !f->reads(k) || !out.shape) continue;
    const Type& t = g.value(n.inputs[k]).type;
    if (!t.shape) {
      out.shape.reset();
      continue;
    }
    std::optional<Shape> both = broadcast(*out.shape, *t.shape);
    if (!both)
      return error(Code::bad_shape, node_place(n),
                   fmt::format("the inputs' shapes do not broadcast: {} meets {}", str(*out.shape),
                               str(*t.shape)));
    out.shape = std::move(both);
  }
  FERRULE_ASSIGN(out.dtype, formula_result_type(*f, n, types));
  return out;
}

Shape row_result_shape(const OpFormula& f, const Node& n, const RowAxes& axes, const Shape& x) {
  if (!f.one_a_row) return x;
  auto declared = f.attrs.find("keepdims");
  const auto* usual = declared == f.attrs.end() ? nullptr : std::get_if<int64_t>(&declared->second);
  const bool keep = n.attrs.i("keepdims", usual ? *usual : 1) != 0;
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
  const ValueId x = n.inputs.empty() ? ValueId{} : n.inputs[0];
  if (!x || !g.value(x).type.shape) return out;
  bool open = false;  // the axes are an operand that is not known yet
  auto axes = row_axes(f, n, *g.value(x).type.shape, [&](size_t slot) {
    const Tensor* t = g.constant(n.inputs[slot]);
    open = !t;
    return t;
  });
  if (axes)
    out.shape = row_result_shape(f, n, *axes, *g.value(x).type.shape);
  else if (!open)
    return error(Code::bad_shape, node_place(n), axes.error().reason());
  return out;
}

}  // namespace ferrule
