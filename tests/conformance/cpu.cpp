// What `explain` counts as a kernel is one: every model of ONNX's backend tests is planned and prepared for the CPU, and no
// layer may be interpreted whose contract is not "interpret". FERRULE_ONNX_TESTS and FERRULE_ONNX_TESTS_ONLY as in
// onnx_node.cpp. Models that cannot be planned on their own (sizes that only a run knows) are left out, and counted.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "engine/base/diagnostics.h"
#include "engine/onnx/import.h"
#include "runtime/ferrule.h"
#include "tests/support/paths.h"

namespace ferrule::conformance {
namespace {

namespace fs = std::filesystem;

/// The models in name order.
std::vector<fs::path> models(const fs::path& root, const char* only) {
  std::vector<fs::path> found;
  for (const char* group : {"node", "simple", "pytorch-operator", "pytorch-converted"}) {
    std::error_code none;
    for (const auto& e : fs::directory_iterator(root / group, none))
      if (fs::exists(e.path() / "model.onnx") && (!only || e.path().filename().string().find(only) != std::string::npos))
        found.push_back(e.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

struct Planned {
  bool prepared = false;
  std::string refused;  ///< what the backend said of layers that it should have had kernels for
};

Planned plan(const fs::path& folder, const std::shared_ptr<const Knowledge>& knowledge, const EngineOptions& engine) {
  ImportOptions import;
  import.known_operator = [&](std::string_view domain, std::string_view op) { return knowledge->ops.find(domain, op) != nullptr; };
  auto model = import_file((folder / "model.onnx").string(), import);
  if (!model) return {};
  Planned p;
  SessionOptions options;
  options.engine = engine;
  options.backend = "cpu";
  options.threads = 1;
  options.log = [&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warning && text.find("the interpreter runs it") != std::string_view::npos) p.refused += (p.refused.empty() ? "" : "; ") + std::string(text);
  };
  auto session = Session::from_graph(std::move(model->graph), knowledge, options);
  p.prepared = session && session->compile();
  return p;
}

}  // namespace

TEST_CASE("no layer that is counted as a kernel is interpreted" * doctest::skip(std::getenv("FERRULE_ONNX_TESTS") == nullptr)) {
  EngineOptions engine;
  engine.rule_dirs = {rules_dir()};
  auto knowledge = load_knowledge(engine);
  REQUIRE_MESSAGE(knowledge.has_value(), (knowledge ? "" : render(knowledge.error())));
  int kernels = 0, failed = 0, left_out = 0;
  for (const fs::path& folder : models(std::getenv("FERRULE_ONNX_TESTS"), std::getenv("FERRULE_ONNX_TESTS_ONLY"))) {
    const Planned p = plan(folder, *knowledge, engine);
    if (p.refused.empty()) ++(p.prepared ? kernels : left_out);
    else ++failed, std::printf("FAILED %s: %s\n", folder.filename().c_str(), p.refused.c_str());
  }
  std::printf("%d planned and prepared, %d with a kernel refused, %d left out\n", kernels, failed, left_out);
  CHECK(kernels > 0);
  CHECK(failed == 0);
}

}  // namespace ferrule::conformance
