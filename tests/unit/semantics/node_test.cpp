// ONNX's own backend tests, one node each, for every operator with a formula, from the shared test
// material (FERRULE_SHARED, else ../shared/models beside the repository). Without it the test says
// that it is skipped.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "engine/graph/compare.h"
#include "engine/semantics/evaluate.h"
#include "engine/semantics/semantics.h"
#include "tests/support/paths.h"
#include "tests/unit/semantics/wire.h"

using namespace ferrule;
namespace fs = std::filesystem;

namespace {

/// Runs the data sets of one test; nullopt: not a node with a formula.
std::optional<std::string> run(const Semantics& ops, const fs::path& dir, std::string& op) {
  wire::Model m = wire::model(wire::slurp(dir / "model.onnx"));
  if (m.nodes != 1 || !m.tensors || !ops.pointwise(m.node)) return std::nullopt;
  op = m.node.op.text();
  for (int set = 0; fs::exists(dir / fmt::format("test_data_set_{}", set)); ++set) {
    fs::path data = dir / fmt::format("test_data_set_{}", set);
    std::map<std::string, Tensor> values;
    for (size_t k = 0; k < m.graph_inputs.size(); ++k) {
      Tensor t = wire::tensor(wire::slurp(data / fmt::format("input_{}.pb", k)));
      if (t.dtype() == DType::string || size_bits(t.dtype()) == 0) return std::nullopt;
      values[m.graph_inputs[k]] = t;
    }
    Tensor want = wire::tensor(wire::slurp(data / "output_0.pb"));
    if (want.dtype() == DType::string || size_bits(want.dtype()) == 0) return std::nullopt;
    std::vector<const Tensor*> inputs;
    for (const std::string& in : m.inputs) inputs.push_back(in.empty() ? nullptr : &values[in]);
    auto got = evaluate_node(ops, m.node, inputs, false);
    if (!got) return render(got.error());
    if (const Difference d = compare(*got, want, operator_tolerance(want.dtype())); !d.ok)
      return d.text;
  }
  return "";
}

}  // namespace

TEST_CASE("ONNX's node tests of operators with a formula") {
  const char* shared = std::getenv("FERRULE_SHARED");
  std::string archive = (shared ? std::string(shared) : source_dir() + "/../shared/models") +
                        "/onnx_node_tests.tar.xz";
  if (!fs::exists(archive)) {
    MESSAGE("skipped, there is no " << archive << " (FERRULE_SHARED names its folder)");
    return;
  }
  char dir[] = "/tmp/ferrule-node-XXXXXX";
  REQUIRE(mkdtemp(dir));
  REQUIRE(std::system(fmt::format("tar -xJf '{}' -C '{}' node", archive, dir).c_str()) == 0);
  std::vector<std::string> dirs{rules_dir()};
  auto ops = Semantics::load(dirs);
  REQUIRE(ops);
  int passed = 0, other = 0;
  std::map<std::string, int> by_op;
  for (const auto& entry : fs::directory_iterator(fs::path(dir) / "node")) {
    std::string op;
    auto result = run(*ops, entry.path(), op);
    if (!result) {
      ++other;
      continue;
    }
    std::string test = entry.path().filename();
    CAPTURE(test);
    CAPTURE(op);
    CHECK(*result == "");
    passed += result->empty();
    by_op[op] += result->empty();
  }
  fs::remove_all(dir);
  MESSAGE(passed << " tests of " << by_op.size() << " operators passed; " << other
                 << " are of other operators or types");
  CHECK(by_op.size() >= 65);
}
