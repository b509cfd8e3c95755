// ONNX's own backend tests through the interpreter: each model is imported, run on its stored
// inputs, and its outputs compared with the stored ones (rtol 1e-3, atol 1e-7, as ONNX does it; NaN
// meets NaN). Every operator that we claim must pass; what we do not know must say so cleanly
// ("unsupported"), and is counted as skipped, by reason. FERRULE_ONNX_TESTS names the folder
// (node/, simple/, …); without it the test is skipped (the script `run` beside this file sets it).
// FERRULE_ONNX_TESTS_ONLY: a substring of the names.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "engine/formula/ops.h"
#include "engine/graph/interpreter.h"
#include "engine/onnx/import.h"
#include "tests/conformance/tensor_proto.h"
#include "tests/support/paths.h"

namespace ferrule::conformance {
namespace {

namespace fs = std::filesystem;

enum class Kind { passed, failed, skipped };
struct Outcome {
  Kind kind;
  std::string text;
};

std::string describe(const Tensor& t) {
  std::string dims;
  for (int64_t d : t.dims()) dims += (dims.empty() ? "" : ",") + std::to_string(d);
  return std::string(name(t.dtype())) + "[" + dims + "]";
}

/// ONNX's 1e-3, but at least two units in the last place: operators made of several may round in
/// between.
double relative_tolerance(DType t) {
  return t == DType::bf16 ? 0x1p-6 : t == DType::f16 ? 0x1p-9 : 1e-3;
}

/// Empty when they agree.
std::string compare(const Tensor& got, const Tensor& want) {
  if (got.dtype() != want.dtype() || got.dims() != want.dims())
    return describe(got) + " instead of " + describe(want);
  if (want.dtype() == DType::string) return got.strings() == want.strings() ? "" : "strings differ";
  if (!is_float(want.dtype()) && want.dtype() != DType::boolean && !is_int(want.dtype())) {
    return got.identical(want) ? "" : "bytes differ";
  }
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double a = got.at_f64(i), b = want.at_f64(i);
    const bool equal = a == b || (std::isnan(a) && std::isnan(b)) ||
                       std::fabs(a - b) <= 1e-7 + relative_tolerance(want.dtype()) * std::fabs(b);
    if (!equal)
      return "element " + std::to_string(i) + " of " + describe(want) + " is " + std::to_string(a) +
             " instead of " + std::to_string(b);
  }
  return "";
}

Outcome from_error(const Error& e) {
  const bool unsupported = exit_code(e.code) == Exit::unsupported;
  return {unsupported ? Kind::skipped : Kind::failed,
          std::string(code_name(e.code)) + ": " + e.place + ": " + e.message};
}

/// Operators of the graph that the interpreter does not know.
std::string unknown_operators(const Graph& g, const OpTable& ops) {
  std::string out;
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (!interpretable(n, ops)) out += (out.empty() ? "" : ", ") + n.op;
    for (const auto& [key, body] : n.subgraphs) out += unknown_operators(*body, ops);
  }
  return out;
}

Outcome run_case(const fs::path& folder, const OpTable& ops) {
  ImportOptions options;
  options.known_operator = [&](std::string_view domain, std::string_view op) {
    return ops.find(domain, op) != nullptr;
  };
  auto model = import_file((folder / "model.onnx").string(), options);
  if (!model) return from_error(model.error());
  const Graph& g = model->graph;
  if (const std::string unknown = unknown_operators(g, ops); !unknown.empty())
    return {Kind::skipped, "unsupported_operator: " + unknown};
  for (int set = 0;; ++set) {
    const fs::path data = folder / ("test_data_set_" + std::to_string(set));
    if (!fs::exists(data))
      return set ? Outcome{Kind::passed, ""} : Outcome{Kind::skipped, "no data"};
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < g.inputs().size(); ++i) {
      const auto bytes = file_bytes((data / ("input_" + std::to_string(i) + ".pb")).string());
      if (!bytes) return {Kind::failed, "no input " + std::to_string(i)};
      auto t = parse_tensor(*bytes);
      if (!t) return {Kind::skipped, "an input that is no tensor"};
      inputs.push_back(*t);
    }
    Limits limits;
    InterpreterOptions run;
    run.ops = &ops, run.limits = &limits;
    auto got = interpret(g, inputs, run);
    if (!got) return from_error(got.error());
    for (size_t i = 0; i < got->size(); ++i) {
      const auto bytes = file_bytes((data / ("output_" + std::to_string(i) + ".pb")).string());
      if (!bytes) return {Kind::failed, "no output " + std::to_string(i)};
      const auto want = parse_tensor(*bytes);
      if (!want) return {Kind::skipped, "an output that is no tensor"};
      if (const std::string why = compare((*got)[i], *want); !why.empty())
        return {Kind::failed, "output " + std::to_string(i) + ": " + why};
    }
  }
}

}  // namespace

TEST_CASE("ONNX backend tests through the interpreter" *
          doctest::skip(std::getenv("FERRULE_ONNX_TESTS") == nullptr)) {
  const char* root = std::getenv("FERRULE_ONNX_TESTS");
  const char* only = std::getenv("FERRULE_ONNX_TESTS_ONLY");
  const std::string rules = rules_dir();
  auto ops = OpTable::load(std::span(&rules, 1));
  if (!ops) FAIL(render(ops.error()));
  install_pointwise_inference(&*ops);
  std::map<std::string, int> reasons;
  int counts[3] = {};
  for (const char* group : {"node", "simple", "pytorch-operator", "pytorch-converted"}) {
    std::vector<fs::path> cases;
    std::error_code none;
    for (const auto& e : fs::directory_iterator(fs::path(root) / group, none))
      cases.push_back(e.path());
    std::sort(cases.begin(), cases.end());
    for (const fs::path& folder : cases) {
      if (only && folder.filename().string().find(only) == std::string::npos) continue;
      std::fflush(stdout);  // what was found so far is seen even if the next case ends the process
      const Outcome o = run_case(folder, *ops);
      ++counts[static_cast<int>(o.kind)];
      if (o.kind == Kind::failed)
        std::printf("FAILED %s: %s\n", folder.filename().c_str(), o.text.c_str());
      if (o.kind == Kind::skipped) ++reasons[o.text.substr(0, 120)];
      if (only && o.kind == Kind::skipped)
        std::printf("SKIPPED %s: %s\n", folder.filename().c_str(), o.text.c_str());
    }
  }
  for (const auto& [reason, n] : reasons) std::printf("skip %4d  %s\n", n, reason.c_str());
  std::printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
  CHECK(counts[0] > 0);
  CHECK(counts[1] == 0);
}

}  // namespace ferrule::conformance
