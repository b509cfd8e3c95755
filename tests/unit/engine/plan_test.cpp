// The planner: layouts, and the reorders between them.
#include "engine/plan/plan.h"

#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {
/// The names of the layers in order.
std::string planned(const std::string& text) {
  Target t = target();
  t.contracts["copy"] = t.contracts.at("pool");
  Plan plan = must(make_plan(graph(text), t, ops()));
  must(verify(plan.graph));
  std::string out;
  for (const Layer& l : plan.layers) out += (out.empty() ? "" : ", ") + l.name;
  return out;
}
}  // namespace

TEST_CASE(
    "each plain image that convolutions read gets one reorder for all of them, and so does a "
    "result") {
  // The graph has room for the model's nodes; the first reorder is one more.
  CHECK(
      planned(
          R"(g (float[1,5,4,4] x, float[1,5,4,4] z) => (float[1,5,4,4] y) <float[5,5,1,1] w = {1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5}, float[5,15,1,1] u = {
    1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5}> {
    [a] a = Conv(x, w)
    [b] b = Conv(z, w)
    [c] c = Conv(x, w)
    [s] s = Concat<axis=1>(a, b, c)
    [last] y = Conv(s, u)
  })") == "reorder(x), a, reorder(z), b, c, s, last, reorder(y.channels_last)");
}

TEST_CASE("a product reads an image as it is written down, behind a reorder") {
  CHECK(
      planned(
          R"(g (float[6,5,4] x, float[1,6,3,5] z) => (float[1,6,3,4] y) <float[5,5,1] w = {1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5,1,2,3,4,5}> {
    [line] a = Conv(x, w)
    [product] y = MatMul(z, a)
  })") == "reorder(x), line, reorder(a), product");
}
