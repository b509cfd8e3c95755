#include "runtime/cli/judge.h"

#include <algorithm>
#include <cmath>

#include "engine/interpreter/interpreter.h"
#include "engine/onnx/infer_onnx.h"
#include "engine/semantics/definition.h"
#include "runtime/cli/terminal.h"

namespace ferrule::cli {
namespace {

bool has(const Graph& g, DType type) {
  for (uint32_t k = 0; k < g.value_slots(); ++k)
    if (const Value& v = g.value({k}); !v.dead && v.type.dtype == type) return true;
  for (NodeId n : g.order()) {
    const Node& node = g.node(n);
    if (node.body && has(*node.body, type)) return true;
    for (const auto& [_, sub] : node.subgraphs)
      if (has(*sub, type)) return true;
  }
  return false;
}

}  // namespace

std::optional<DType> short_type(const Plan& plan) {
  for (DType type : {DType::bf16, DType::f16})
    if (has(plan.graph, type)) return type;
  return {};
}

Off off_by(const Tensor& got, const Tensor& exact) {
  Off off;
  if (!is_float(got.dtype())) {
    if (got.dtype() == DType::string) return off;
    for (int64_t k = 0; k < got.numel(); ++k) off.wrong += got.at_i64(k) != exact.at_i64(k);
    return off;
  }
  const std::vector<double> a = got.to_f64(), b = exact.to_f64();
  double largest = 0, sum = 0;
  for (double w : b)
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
  if (largest == 0) largest = 1;
  for (size_t k = 0; k < a.size(); ++k) {
    const bool same = a[k] == b[k] || (std::isnan(a[k]) && std::isnan(b[k]));
    const double by = same               ? 0
                      : std::isnan(a[k]) ? std::numeric_limits<double>::infinity()
                      : std::isinf(b[k]) ? std::numeric_limits<double>::infinity()
                                         : std::abs(a[k] - b[k]) / largest;
    off.largest = std::max(off.largest, by);
    sum += by * by;
  }
  if (!a.empty()) off.rms = std::sqrt(sum / static_cast<double>(a.size()));
  return off;
}

bool no_further(const Off& ours, const Off& theirs) {
  const double free = model_tolerance(DType::f32).absolute;
  auto within = [&](double mine, double its) {
    return std::isfinite(mine) && mine <= kReducedFactor * its + free;
  };
  return within(ours.rms, theirs.rms) && within(ours.largest, theirs.largest) &&
         static_cast<double>(ours.wrong) <= kReducedFactor * static_cast<double>(theirs.wrong);
}

std::optional<std::string> arbitrated(Difference& d, const Tensor& got, const Tensor& other,
                                      const Tensor& exact, std::string_view whose) {
  if (exact.dims() != got.dims() || exact.dims() != other.dims()) return std::nullopt;
  const Off ours = off_by(got, exact), theirs = off_by(other, exact);
  if (no_further(ours, theirs)) d.ok = true;
  if (ours.wrong || theirs.wrong)
    return fmt::format("against f64, {} elements are wrong; of {}, {} are", ours.wrong, whose,
                       theirs.wrong);
  if (std::isfinite(ours.largest))
    return fmt::format("error against f64 {:.2g}; {} has {:.2g}, and {:g} times that is allowed",
                       ours.largest, whose, theirs.largest, kReducedFactor);
  return fmt::format("{}; {} has {}", d.text, whose,
                     std::isfinite(theirs.largest)
                         ? "numbers there"
                         : "such elements, too: values exceed the range of the shorter type");
}

Result<Tensors> exact_results(const std::string& model, const EngineOptions& options,
                              const Tensors& inputs, const Cancel* cancel) {
  FERRULE_ASSIGN(const Semantics ops, load_first_definitions(options.rule_dirs, infer_by_schema));
  ImportOptions import;
  import.limits = &options.limits;
  import.overridable = options.overridable;
  import.ops = &ops;
  FERRULE_ASSIGN(const Imported imported, import_file(model, import));
  std::vector<Tensor> ordered;
  for (ValueId v : imported.graph.inputs()) {
    const std::string& name = imported.graph.value(v).name;
    auto given = inputs.find(name);
    auto otherwise = imported.defaults.find(name);
    if (given == inputs.end() && otherwise == imported.defaults.end())
      return error(Code::missing_input, "inputs", escape(name), str(imported.graph.value(v).type));
    ordered.push_back(given == inputs.end() ? otherwise->second : given->second);
  }
  InterpreterOptions how;
  how.ops = &ops;
  how.limits = &options.limits;
  how.cancel = cancel;
  how.f64 = true;
  FERRULE_ASSIGN(auto results, interpret(imported.graph, ordered, how));
  Tensors named;
  for (size_t k = 0; k < results.size(); ++k)
    named[imported.graph.value(imported.graph.outputs()[k]).name] = std::move(results[k]);
  return named;
}

std::string_view verdict_of(const Difference& d) {
  return !d.ok ? "DIFFERS" : d.mistrusted ? "MISTRUSTED" : d.same ? "equal" : "within tolerance";
}

std::string verdict_line(std::string_view verdict, const std::string& of, const std::string& text) {
  constexpr size_t kColumn = 18;
  const Paint paint = verdict == "DIFFERS"      ? Paint::bad
                      : verdict == "MISTRUSTED" ? Paint::doubtful
                                                : Paint::good;
  return painted(verdict, paint, kColumn) + of + (text.empty() ? "" : ": ") + text + "\n";
}

std::string explained(const Difference& d) {
  const std::string margin = d.same ? "" : margin_text(d);
  return margin + (margin.empty() || d.text.empty() ? "" : "; ") + d.text;
}

}  // namespace ferrule::cli
