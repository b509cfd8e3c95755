// ONNX's own backend tests through the interpreter.
#include <doctest/doctest.h>

#include "engine/onnx/infer_onnx.h"
#include "engine/semantics/semantics.h"
#include "tests/conformance/cases.h"

namespace ferrule::conformance {
namespace {

Outcome run_case(const fs::path& folder, const Semantics& ops, const Allowed& allowed) {
  auto graph = import_case(folder, ops);
  if (!graph) return graph.error();
  const Limits limits;
  InterpreterOptions options;
  options.ops = &ops, options.limits = &limits;
  return run_data(
      folder, graph->inputs().size(), draws(*graph),
      [&](const std::vector<Tensor>& inputs) { return interpret(*graph, inputs, options); },
      allowed);
}

}  // namespace

TEST_CASE("ONNX backend tests through the interpreter" *
          doctest::skip(std::getenv("FERRULE_ONNX_TESTS") == nullptr)) {
  const std::string rules = rules_dir();
  auto ops = Semantics::load(std::span(&rules, 1), infer_by_schema);
  if (!ops) FAIL(render(ops.error()));
  auto allowed = [](DType t) { return operator_tolerance(t, true); };
  const auto [passed, failed] =
      run_all("interpreter", allowed,
              [&](const fs::path& folder, const Allowed& a) { return run_case(folder, *ops, a); });
  CHECK(passed > 0);
  CHECK(failed == 0);
}

}  // namespace ferrule::conformance
