// The built-in backends and finding them: what is not there is named.
#include "runtime/registry.h"

#include "tests/unit/runtime/build.h"

namespace ferrule::test {
namespace {

struct Count final : RunObserver {
  int layers = 0, launches = 0;
  void layer_done(size_t, int n, int64_t) override {
    ++layers;
    launches += n;
  }
};

}  // namespace

TEST_CASE("backends by name") {
  REQUIRE(find_backend("reference").has_value());
  CHECK((*find_backend("reference"))->name() == "reference");
  CHECK((*find_backend("null"))->name() == "null");
  auto none = find_backend("tpu");
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().code == Code::usage);
  CHECK(none.error().message.find("reference") != std::string::npos);
}

TEST_CASE("who runs a plan: a GPU is never promised where a CPU was asked for") {
  auto null = choose_backend("null", "sm_90", false, {});
  REQUIRE(null.has_value());
  CHECK(null->backend->name() == "null");
  CHECK(null->target == "sm_90");
  CHECK(null->warning.empty());
  for (auto [name, target] : {std::pair{"cpu", ""}, {"reference", "sm_90"}, {"auto", "cpu-avx2"}}) {
    auto refused = choose_backend(name, target, true, {});
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Code::usage);
    CHECK(refused.error().place == "--require-device");
  }
  CHECK(choose_backend("tpu", "", false, {}).error().code == Code::usage);
}

TEST_CASE("the null backend lists the launches and counts what explain counts") {
  PlanBuilder b;
  ValueId x = b.input("x", {2, 3});
  ValueId p = b.layer("p", Launch::Kind::generated, {x}, {2, 3});
  ValueId v = b.layer("v", Launch::Kind::view, {p}, {6});
  ValueId q = b.layer("q", Launch::Kind::interpret, {v}, {6});
  b.plan.graph.add_output(q);
  b.finish();
  Semantics ops;
  Target target;
  Limits limits;
  auto e = (*find_backend("null"))->prepare({b.plan, b.lowered, ops, target, limits, 1, {}});
  REQUIRE(e.has_value());
  std::vector<float> in(6, 1), out(6, 7);
  const void* inputs[] = {in.data()};
  void* outputs[] = {out.data()};
  Count count;
  REQUIRE((*e)->run(inputs, outputs, &count).has_value());
  CHECK(count.layers == 3);
  CHECK(count.launches == 2);
  CHECK((*e)->launches() == 2);
  CHECK(out[5] == 0);
  CHECK((*e)->text() ==
        "p\n  generated Relu(x: f32[2,3]) -> p: f32[2,3]\n"
        "v\n  view Relu(p: f32[2,3]) -> v: f32[6]\n"
        "q\n  interpret Relu(v: f32[6]) -> q: f32[6]\n");
}

}  // namespace ferrule::test
