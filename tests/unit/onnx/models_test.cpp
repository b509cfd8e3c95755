// Every model of the shared material imports, normalises, infers and verifies. The material lies
// where FERRULE_SHARED says, or beside the source tree; without it the cases are skipped, and say
// so.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/onnx/import.h"
#include "engine/onnx/infer_onnx.h"
#include "engine/semantics/infer.h"
#include "tests/support/paths.h"

using namespace ferrule;
namespace fs = std::filesystem;

namespace {

fs::path shared_models() {
  const char* env = std::getenv("FERRULE_SHARED");
  return env ? fs::path(env) : fs::path(source_dir()) / "../shared/models";
}

std::vector<fs::path> models_in(const fs::path& dir, const char* file) {
  std::vector<fs::path> out;
  std::error_code none;
  for (const auto& e : fs::recursive_directory_iterator(dir, none))
    if (e.path().filename() == file) out.push_back(e.path());
  std::sort(out.begin(), out.end());
  return out;
}

void check_model(const fs::path& path) {
  CAPTURE(path.string());
  auto r = import_file(path.string());
  if (!r) {
    // The one reason that is not ours: operators outside ONNX.
    INFO(render(r.error()));
    CHECK(r.error().code == Code::unknown_operator);
    return;
  }
  auto status = verify(r->graph);
  INFO((status ? std::string() : render(status.error())));
  CHECK(status);
  CHECK_FALSE(to_text(r->graph).empty());
  auto again = infer_all(onnx_semantics(), r->graph);
  INFO((again ? std::string() : render(again.error())));
  CHECK(again);
}

}  // namespace

TEST_CASE("models: everything shared imports and verifies") {
  for (const char* group : {"real", "onnx_light"}) {
    auto models = models_in(shared_models() / group, "model.onnx");
    if (models.empty()) MESSAGE("skipped, no models in " << (shared_models() / group).string());
    for (const fs::path& m : models) check_model(m);
  }
}

TEST_CASE("models: the convolutional networks have no unknown shapes") {
  const std::string rules[] = {rules_dir()};
  const Result<Semantics> ops = Semantics::load(rules, infer_by_schema);
  REQUIRE(ops);
  ImportOptions options;
  options.ops = &*ops;
  for (const char* name :
       {"real/rfb320", "real/ppocr_v4_det", "real/mnist_cntk", "real/ppocr_v2_cls"}) {
    fs::path path = shared_models() / name / "model.onnx";
    if (!fs::exists(path)) {
      MESSAGE("skipped, there is no " << path.string());
      continue;
    }
    CAPTURE(name);
    auto r = import_file(path.string(), options);
    REQUIRE(r);
    for (NodeId n : r->graph.order())
      for (ValueId v : r->graph.node(n).outputs) {
        if (!v) continue;
        CAPTURE(r->graph.node(n).name);
        CHECK(r->graph.value(v).type.known());
        CHECK(str(r->graph.value(v).type).find('?') == std::string::npos);
      }
  }
}
