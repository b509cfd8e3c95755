// Element types as ONNX's newest schemas ask for them: what no kernel computes is said when a model
// is read, with its node, and not in the middle of a run.
#include <algorithm>
#include <map>

#include "engine/base/diagnostics.h"
#include "engine/onnx/internal.h"
#include "engine/onnx/schema.h"

namespace ferrule::onnx_io {
namespace {

Status check_node(const Graph& g, const Node& n) {
  const OperatorSchema* schema = operator_schema(n);
  if (!schema) return {};
  const auto place = [&] { return fmt::format("node \"{}\"", escape(n.name)); };
  std::map<std::string_view, std::pair<DType, size_t>> of_variable;
  for (size_t k = 0; k < n.inputs.size() && !schema->inputs.empty(); ++k) {
    const OperandSchema& o = schema->inputs[std::min(k, schema->inputs.size() - 1)];
    const DType t = n.inputs[k] ? g.value(n.inputs[k]).type.dtype : DType::undefined;
    if (!(is_float(t) || is_int(t) || t == DType::boolean || t == DType::string)) continue;
    if (o.types.empty() && !o.texts) continue;
    if (!o.takes(t))
      return error(Code::bad_type, place(),
                   fmt::format("input {} of {} is {}, which ONNX's {} does not take", k,
                               escape(n.op.text()), name(t), escape(n.op.text())));
    if (o.mixed) continue;
    const auto [first, fresh] = of_variable.try_emplace(o.variable, t, k);
    if (!fresh && first->second.first != t)
      return error(Code::bad_type, place(),
                   fmt::format("input {} of {} is {} and input {} is {}: ONNX wants one type",
                               first->second.second, escape(n.op.text()), name(first->second.first),
                               k, name(t)));
  }
  return {};
}

}  // namespace

Status check_types(const Graph& g) {
  for (NodeId id : g.order()) {
    FERRULE_TRY(check_node(g, g.node(id)));
    for (const auto& [_, nested] : g.node(id).subgraphs) FERRULE_TRY(check_types(*nested));
  }
  return {};
}

}  // namespace ferrule::onnx_io
