// ONNX's own backend tests, fused, on the CPU, or on the backend that FERRULE_CONFORMANCE_BACKEND
// names (cuda needs a GPU, and FERRULE_CONFORMANCE_TARGET: sm_90). What `explain` counts as a
// kernel is one: no layer may be interpreted whose contract is not "interpret".
#include <doctest/doctest.h>

#include "runtime/session.h"
#include "tests/conformance/cases.h"

namespace ferrule::conformance {
namespace {

Outcome run_case(const fs::path& folder, const std::shared_ptr<const Knowledge>& knowledge,
                 const EngineOptions& engine, const Allowed& allowed) {
  auto graph = import_case(folder, knowledge->ops);
  if (!graph) return graph.error();
  const bool random = draws(*graph);
  std::string refused;
  SessionOptions options;
  options.engine = engine;
  const char* backend = std::getenv("FERRULE_CONFORMANCE_BACKEND");
  options.backend = backend ? backend : "cpu";
  options.threads = 1;
  options.log = [&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warning && text.find("the interpreter runs it") != text.npos)
      refused += (refused.empty() ? "" : "; ") + std::string(text);
  };
  auto session = Session::from_graph(std::move(*graph), knowledge, options);
  if (!session) return from_error(session.error());
  const auto inputs = session->inputs(), outputs = session->outputs();
  auto run = [&](const std::vector<Tensor>& given) -> Result<std::vector<Tensor>> {
    std::map<std::string, Tensor> named;
    for (size_t k = 0; k < given.size(); ++k) named.emplace(inputs[k].name, given[k]);
    FERRULE_ASSIGN(auto results, session->run(named));
    std::vector<Tensor> ordered;
    for (const Port& p : outputs) ordered.push_back(results.at(p.name));
    return ordered;
  };
  const Outcome o = run_data(folder, inputs.size(), random, run, allowed);
  return o.kind == Outcome::passed && !refused.empty() ? Outcome{Outcome::failed, refused} : o;
}

}  // namespace

TEST_CASE("ONNX backend tests on the CPU" *
          doctest::skip(std::getenv("FERRULE_ONNX_TESTS") == nullptr)) {
  EngineOptions engine;
  engine.rule_dirs = {rules_dir()};
  if (const char* target = std::getenv("FERRULE_CONFORMANCE_TARGET")) engine.target = target;
  auto knowledge = load_knowledge(engine);
  REQUIRE_MESSAGE(knowledge.has_value(), (knowledge ? "" : render(knowledge.error())));
  const auto [passed, failed] =
      run_all("cpu", model_tolerance, [&](const fs::path& folder, const Allowed& a) {
        return run_case(folder, *knowledge, engine, a);
      });
  CHECK(passed > 0);
  CHECK(failed == 0);
}

}  // namespace ferrule::conformance
