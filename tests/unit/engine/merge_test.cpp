// Merge and place rules on graphs: who becomes a sibling, what is joined, where values are put.
#include "engine/group/merge.h"
#include "engine/plan/place.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

constexpr const char* kPointwiseMerge =
    "kind: merge\nphase: merge\ncontract: pointwise\nmatch: \"y = @pointwise<...>(xs...)\"\n"
    "merge: {over: xs, key: [\"shape(y)\"], min: 2, max: 3}\n";
constexpr const char* kConvMerge =
    "kind: merge\nphase: merge\ncontract: conv\nmatch: \"[c] y = {Conv|group.conv}<...>(x, "
    "rest...)\"\n"
    "merge: {over: x, min: 2, axis: \"1\", weights: {1: \"0\", 2: \"0\"}, fill: [\"2\"]}\n";

/// Runs one rule; the journal's lines.
std::vector<std::string> merged_by(Graph& g, const std::string& body) {
  RuleSet set;
  set.phases.push_back({"merge", "", true, {}});
  set.rules.push_back(rule("t", body));
  Journal journal;
  must(merge_phase(pass_context(g, set, journal), "merge"));
  must(verify(g));
  std::vector<std::string> lines;
  for (const Step& s : journal.steps) lines.push_back(s.text);
  return lines;
}

std::vector<Tensor> results(const Graph& g) {
  std::vector<Tensor> inputs;
  unsigned seed = 1;
  for (ValueId v : g.inputs()) {
    const std::vector<int64_t> dims = *constant_shape(*g.value(v).type.shape);
    int64_t count = 1;
    for (int64_t d : dims) count *= d;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& f : values)
      f = static_cast<float>(static_cast<int>((seed = seed * 1103515245u + 12345u) >> 16 & 0x7fff) -
                             16384) /
          8192.0f;
    inputs.push_back(Tensor::of_f32(dims, values));
  }
  InterpreterOptions options;
  options.ops = &ops();
  options.limits = &limits();
  return must(interpret(g, inputs, options));
}

}  // namespace

TEST_CASE("a set takes no more than max, in topological order; the rest is another set") {
  Graph g = graph(
      R"(agraph (float[2,3] x) => (float[2,3] a, float[2,3] b, float[2,3] c, float[2,3] d, float[2,3] e) {
    a = Relu(x)
    b = Abs(x)
    c = Neg(x)
    d = Exp(x)
    e = Tanh(x)
  })");
  CHECK(merged_by(g, kPointwiseMerge) ==
        std::vector<std::string>{"Merging layers: Relu_0 || Abs_1 || Neg_2",
                                 "Merging layers: Exp_3 || Tanh_4"});
  CHECK(g.live_nodes() == 2);
}

TEST_CASE("two sets that would wait for each other are not both made") {
  // a and b depend on nothing of each other, nor do c and d; but a is needed for c, and d for b.
  Graph g = graph(R"(agraph (float[2,3] x, float[2,3] z) => (float[2,3] b, float[2,3] c) {
    a = Relu(x)
    d = Abs(z)
    c = Add(z, a)
    b = Sub(x, d)
  })");
  const std::vector<Tensor> before = results(g);
  CHECK(merged_by(g, kPointwiseMerge).size() == 1);
  const std::vector<Tensor> after = results(g);
  for (size_t k = 0; k < before.size(); ++k) CHECK(before[k].to_f64() == after[k].to_f64());
}

TEST_CASE("what reads the results of a merge may be merged, too") {
  Graph g = graph(R"(agraph (float[1,2,3,3] x) => (float[1,1,3,3] y, float[1,2,3,3] z)
    <float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}, float[1,2,1,1] V = {0.5, 2.0}, float[1,2,1,1] T = {3.0, 1.0}, float[2,2,1,1] U = {1.0, 1.0, -1.0, 0.25}, float[2] B = {1.0, 2.0}> {
    a = Conv(x, W)
    b = Conv(x, V)
    c = Conv(a, T)
    z = Conv(a, U, B)
    y = Add(b, c)
  })");
  const std::vector<Tensor> before = results(g);
  const auto lines = merged_by(g, kConvMerge);
  CHECK(lines == std::vector<std::string>{"Merging layers: Conv_0 || Conv_1",
                                          "Merging layers: Conv_2 || Conv_3"});
  const std::vector<Tensor> after = results(g);
  for (size_t k = 0; k < before.size(); ++k) CHECK(before[k].to_f64() == after[k].to_f64());
  // The bias of one was filled with zeros for the other.
  for (NodeId n : g.order())
    if (g.node(n).name == "Conv_2 || Conv_3") {
      const Graph& body = *g.node(n).body;
      const Tensor* bias = body.constant(body.input(body.order()[0], 2));
      REQUIRE(bias);
      CHECK(bias->to_f64() == std::vector<double>{0, 1, 2});
    }
}

TEST_CASE("who is no sibling learns why") {
  Graph g = graph(R"(agraph (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,2,2] z)
    <float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}, float[2,2,1,1] V = {0.5, 2.0, 1.0, 1.0}> {
    y = Conv(x, W)
    z = Conv<strides=[2, 2]>(x, V)
  })");
  auto r = rule(
      "t", std::string(kConvMerge)
               .insert(std::string(kConvMerge).find("min: 2"), "key: [\"attr(c, 'strides')\"], "));
  Attempt a = match_any(*r, maker(g, "z"), context(g));
  REQUIRE(std::holds_alternative<Rejection>(a));
  CHECK(std::get<Rejection>(a).id == "key");
  CHECK(std::get<Rejection>(a).why ==
        "\"Conv_1\" (Conv) and \"Conv_0\" (Conv) differ in strides ([2, 2] and [1, 1])");
  a = match_any(*rule("t", kConvMerge), maker(g, "z"), context(g));
  REQUIRE(std::holds_alternative<Rejection>(a));
  CHECK(std::get<Rejection>(a).why ==
        "not one computation with other constants: attribute strides of Conv differs");
  // The first of the two learns the same, as nothing but the other could join it.
  a = match_any(*rule("t", kConvMerge), maker(g, "y"), context(g));
  REQUIRE(std::holds_alternative<Rejection>(a));
  CHECK(
      std::get<Rejection>(a).why ==
      "\"Conv_1\" (Conv) did not join \"Conv_0\" (Conv): not one computation with other constants: "
      "attribute strides of Conv differs");
  Graph alone = graph(
      "agraph (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] z) <float[2,2,1,1] W = {1.0, "
      "-2.0, "
      "3.0, 0.5}> { y = Conv(x, W)\n z = Relu(x) }");
  a = match_any(*rule("t", kConvMerge), maker(alone, "y"), context(alone));
  REQUIRE(std::holds_alternative<Rejection>(a));
  CHECK(std::get<Rejection>(a).why ==
        "\"Conv_0\" (Conv) has no sibling: no other node of its kind reads \"x\"");
  Graph biased = graph(
      "agraph (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] z) <float[2,2,1,1] W = {1.0, "
      "-2.0, "
      "3.0, 0.5}, float[2] B = {1.0, 2.0}> { y = Conv(x, W)\n z = Conv(x, W, B) }");
  std::string unfilled = kConvMerge;
  unfilled.replace(unfilled.find(", fill: [\"2\"]"), 13, "");
  a = match_any(*rule("t", unfilled), maker(biased, "z"), context(biased));
  REQUIRE(std::holds_alternative<Rejection>(a));
  CHECK(std::get<Rejection>(a).why ==
        "not one computation with other constants: one of them has no input 2 of Conv, which would "
        "be "
        "zero where the rule's fill lists it");
  std::string three = kConvMerge;
  three.replace(three.find("min: 2"), 6, "min: 3");
  a = match_any(*rule("t", three), maker(g, "y"), context(g));
  REQUIRE(std::holds_alternative<Rejection>(a));
  CHECK(std::get<Rejection>(a).why ==
        "1 node of its kind reads \"x\" beside \"Conv_0\" (Conv); the rule takes 3 or more");
}

TEST_CASE("an axis that results do not lie along is the rule's fault") {
  Graph g = graph(R"(agraph (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] z)
    <float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}, float[2,2,1,1] V = {0.5, 2.0, 1.0, 1.0}> {
    y = Conv(x, W)
    z = Conv(x, V)
  })");
  RuleSet set;
  set.phases.push_back({"merge", "", true, {}});
  std::string body = kConvMerge;
  body.replace(body.find("axis: \"1\""), 9, "axis: \"2\"");
  set.rules.push_back(rule("t", body));
  Journal journal;
  Status s = merge_phase(pass_context(g, set, journal), "merge");
  REQUIRE(!s.has_value());
  CHECK(s.error().code == Code::rule_broken);
}

TEST_CASE("results of other ranks are not joined") {
  for (const char* text :
       {"agraph (float[2] x) => (float[1,2] y, float[2] z)\n"
        "  <float[1,1] c = {2.0}, float d = {3.0}> { y = Mul(x, c)\n z = Mul(x, d) }",
        "agraph (float[2] x) => (float[2] y, float[1,2] z)\n"
        "  <float d = {3.0}, float[1,1] c = {2.0}> { y = Mul(x, d)\n z = Mul(x, c) }"}) {
    Graph g = graph(text);
    CHECK(merged_by(g,
                    "kind: merge\nphase: merge\ncontract: pointwise\nmatch: \"y = Mul(x, c!)\"\n"
                    "merge: {over: x, axis: \"-1\"}\n")
              .empty());
  }
}

TEST_CASE("plans know the slices; inner ones are found through the outer") {
  Graph g = graph(R"(agraph (float[2,3] x) => (float[2,9] y) {
    a = Relu(x)
    b = Abs(x)
    c = Concat<axis=1>(a, b)
    d = Neg(x)
    y = Concat<axis=1>(c, d)
  })");
  RuleSet set;
  set.phases.push_back({"place", "", true, {}});
  set.rules.push_back(rule("t",
                           "kind: place\nphase: place\nmatch: \"y = "
                           "Concat<axis=$a>(xs...)\"\nplace: {xs: \"slices(y, a)\"}\n"));
  Journal journal;
  for (const char* c : {"pointwise", "copy"}) target().contracts[c].strided = {"any"};
  must(place_phase(pass_context(g, set, journal), "place"));
  target().contracts["pointwise"].strided.clear(), target().contracts.erase("copy");
  must(verify(g));
  CHECK(layers_of(g) == 3);
  Plan plan = must(make_plan(std::move(g), target(), ops()));
  const auto at = strided_view(plan, plan.graph.find_value("b"));
  REQUIRE(at.has_value());
  CHECK(at->root == plan.graph.find_value("y"));
  CHECK(at->offset == 3);
  CHECK(at->strides == std::vector<int64_t>{9, 1});
  CHECK(plan.slices.size() == 4);
}
