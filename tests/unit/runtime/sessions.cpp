// Sessions side by side: what one has loaded, another does not see.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/onnx/export.h"
#include "engine/onnx/import.h"
#include "runtime/session.h"
#include "runtime/shared_knowledge.h"
#include "tests/support/paths.h"

namespace ferrule::test {
namespace {

namespace fs = std::filesystem;

/// A model of one operator of a user's, and a rules folder that says what it is.
struct Meaning {
  std::string folder, entry;
  std::vector<double> result;
};

/// Ten sessions one after the other; what went wrong, if anything.
std::string serve(const Meaning& m, const std::string& model) {
  for (int k = 0; k < 10; ++k) {
    SessionOptions options;
    options.engine.rule_dirs = {rules_dir(), m.folder};
    options.engine.cache = "";
    options.backend = "reference";
    options.threads = 1;
    auto session = Session::load(model, options);
    if (!session) return render(session.error());
    auto out = session->run({{"x", Tensor::of_f32({2, 2}, {1, 2, 3, 5})}});
    if (!out) return render(out.error());
    if (out->at("y").to_f64() != m.result) return "another result";
  }
  return "";
}

}  // namespace

TEST_CASE("two sessions with different meanings of one operator, in threads") {
  std::string root = (fs::temp_directory_path() / "ferrule-sessions-XXXXXX").string();
  REQUIRE(mkdtemp(root.data()));
  Meaning meanings[] = {{root + "/a",
                         "{op: Which, domain: my.own, in: [x], expr: \"x - 2\", source: test}",
                         {0, 0, 1, 3}},
                        {root + "/b",
                         "{op: Which, domain: my.own, in: [x], attrs: {axis: 0}, row: axis, expr: "
                         "\"rsum(x)\", source: test}",
                         {4, 7}}};
  std::string wrong[2];
  for (const Meaning& m : meanings) {
    fs::create_directories(m.folder + "/ops");
    std::ofstream(m.folder + "/ops/which.yaml") << "ferrule: 1\nops:\n  - " << m.entry << "\n";
  }
  const std::string model = root + "/model.onnx";
  const Semantics ops = *Semantics::load(std::vector{rules_dir(), meanings[0].folder});
  ImportOptions import;
  import.ops = &ops, import.normalize = false;
  auto graph =
      import_text("g (float[2,2] x) => (float[] y) { h = my.own.Which(x) y = Relu(h) }", import);
  REQUIRE_MESSAGE(graph, (graph ? "" : render(graph.error())));
  std::ofstream(model, std::ios::binary) << *export_bytes(graph->graph);
  std::thread other([&] { wrong[1] = serve(meanings[1], model); });
  wrong[0] = serve(meanings[0], model);
  other.join();
  fs::remove_all(root);
  CHECK(wrong[0] == "");
  CHECK(wrong[1] == "");
}

TEST_CASE("sessions with equal options share what they read, until a file changes") {
  std::string root = (fs::temp_directory_path() / "ferrule-shared-XXXXXX").string();
  REQUIRE(mkdtemp(root.data()));
  fs::create_directories(root + "/ops");
  const auto describe = [&](const char* name, const char* expr) {
    std::ofstream(root + "/ops/" + name)
        << "ferrule: 1\nops:\n  - {op: Mine, domain: my.own, in: [x], expr: \"" << expr
        << "\", source: test}\n";
  };
  describe("mine.yaml", "x + 1");
  EngineOptions options;
  options.rule_dirs = {rules_dir(), root};
  options.cache = "";
  const auto shared = [&](const EngineOptions& o) {
    auto k = shared_knowledge(o);
    REQUIRE_MESSAGE(k, (k ? "" : render(k.error())));
    return *k;
  };
  const auto first = shared(options);
  CHECK(shared(options) == first);
  for (const auto change : {+[](EngineOptions& o) { o.selection.disable = {"gelu*"}; },
                            +[](EngineOptions& o) { o.target = "sm_90"; },
                            +[](EngineOptions& o) { o.limits.match_steps = 77; },
                            +[](EngineOptions& o) { o.rule_dirs.pop_back(); }}) {
    EngineOptions other = options;
    change(other);
    CHECK(shared(other) != first);
  }
  describe("mine.yaml", "x + 10");
  const auto second = shared(options);
  CHECK(second != first);
  describe("other.yaml", "x");  // which describes it again
  CHECK_FALSE(shared_knowledge(options));
  fs::remove_all(root);
}

}  // namespace ferrule::test
