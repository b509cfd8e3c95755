#include "engine/semantics/infer_pointwise.h"

#include "engine/base/diagnostics.h"
#include "engine/semantics/lower.h"
#include "engine/semantics/lower_formula.h"

namespace ferrule {

Result<Type> infer_pointwise(const Semantics& ops, const Graph& g, const Node& n) {
  FERRULE_ASSIGN(const OpFormula* f, pointwise_formula(ops, n));
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

}  // namespace ferrule
