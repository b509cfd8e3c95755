// Rewriting, folding of weights, D7 and termination.
#include <cmath>

#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {
std::string body(const std::string& match, const std::string& rewrite,
                 const std::string& more = "") {
  return rewrite_text("reassociating", match, rewrite, more);
}
}  // namespace

TEST_CASE("a node goes, and the graph output keeps its name") {
  auto r = rule("idem", body("y = Relu(Relu(x))", "y = Relu(x)"));
  Graph g = graph("g (float[2] i) => (float[2] o) { a = Relu(i) o = Relu(a) }");
  Passed p = must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Relu");
  CHECK(g.value(g.outputs()[0]).name == "o");
  REQUIRE(p.journal.steps.size() == 1);
  CHECK(p.journal.steps[0].rule == "idem");
  CHECK(p.journal.steps[0].before.size() == 2);
  CHECK(g.node(g.order()[0]).rule == "idem");
  CHECK(g.node(g.order()[0]).origins.size() == 2);
}

TEST_CASE("a chain of a thousand comes down to one") {
  auto r = rule("idem", body("y = Relu(Relu(x))", "y = Relu(x)"));
  std::string text = "g (float[2] i) => (float[2] o) { a0 = Relu(i)\n";
  for (int k = 1; k < 1000; ++k) text += fmt::format("a{} = Relu(a{})\n", k, k - 1);
  Graph g = graph(text + "o = Relu(a999) }");
  must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Relu");
}

TEST_CASE(
    "a pass-through between a graph input and a graph output keeps one Identity and comes to "
    "rest") {
  auto id = rule("identity", body("y = Identity(x)", "y = x"));
  auto neg = rule("neg", body("y = Neg(Neg(x))", "y = x"));
  Graph g = graph(
      "g (float[2] i) => (float[2] o, float[2] p) { a = Neg(i) o = Neg(a) b = Identity(i) c = "
      "Identity(b) p = Abs(c) }");
  must(pass(g, set_of({id, neg})));
  CHECK(ops_of(g) == "Identity Abs");
  CHECK(g.value(g.outputs()[0]).name == "o");
}

TEST_CASE("large weights too are computed in f64 and rounded once, also over several lines") {
  auto r = rule("scale", body("y = Mul(Mul(Add(x, W!), k!), k)",
                              "d = Div(W, k)\nW2 = Mul(d, Sqrt(k))\ny = Add(x, W2)"));
  constexpr size_t kRows = 257, kColumns = 256;  // more than what is folded through f64 copies
  std::string values;
  for (size_t i = 0; i < kRows * kColumns; ++i)
    values +=
        fmt::format("{}{:.6f}", i ? ", " : "", static_cast<double>(i * 7919 % 65537) / 9973 - 3);
  Graph g = graph(fmt::format(
      "g (float[{0},{1}] i) => (float[{0},{1}] o) <float[{0},{1}] w = {{{2}}}, float[{1}] k = "
      "{{{3}}}> "
      "{{ a = Add(i, w) b = Mul(a, k) o = Mul(b, k) }}",
      kRows, kColumns, values, fmt::join(std::vector<std::string>(kColumns, "0.3"), ", ")));
  const Tensor w = *g.constant(g.find_value("w"));
  must(pass(g, set_of({r})));
  REQUIRE(ops_of(g) == "Add");
  const Tensor* folded = g.constant(g.node(g.order()[0]).inputs[1]);
  REQUIRE(folded);
  REQUIRE(folded->dtype() == DType::f32);
  REQUIRE(folded->dims() == w.dims());
  const double k = 0.3f;
  int64_t wrong = 0;
  for (size_t i = 0; i < kRows * kColumns; ++i)
    wrong += folded->as<float>()[i] !=
             static_cast<float>(static_cast<double>(w.as<float>()[i]) / k * std::sqrt(k));
  CHECK(wrong == 0);
}

TEST_CASE("large weights that overflow leave the graph as it was") {
  auto r = rule("scale", body("y = Mul(Add(x, W!), k!)", "W2 = Mul(W, k)\ny = Add(x, W2)"));
  std::string values;
  for (size_t i = 0; i < 70000; ++i) values += i ? ", 1e38" : "1e38";
  Graph g = graph("g (float[70000] i) => (float[70000] o) <float[70000] w = {" + values +
                  "}, float k = {10.0}> { a = Add(i, w) o = Mul(a, k) }");
  must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Add Mul");
}

TEST_CASE("batch normalization goes into a convolution, computed in f64 and rounded once") {
  auto r = rule(
      "bn", body("[conv] t = Conv<...>(x, W!, B?!)\n"
                 "y = BatchNormalization<epsilon=$eps, training_mode=0, ...>(t, g!, b!, m!, v!)",
                 "k = Div(g, Sqrt(Add(v, {eps})))\n"
                 "W2 = Reshape(Mul(Reshape(W, {[0, -1]}), Reshape(k, {[-1, 1]})), Shape(W))\n"
                 "B2 = Add(Mul(Sub(B ?? 0, m), k), b)\n"
                 "y = conv<...conv>(x, W2, B2)"));
  const char* text =
      "g (float[1,1,2,2] i) => (float[1,2,2,2] o) <float[2,1,1,1] w = {2.0, -1.0}, float[2] g = "
      "{1.5, 2.0}, "
      "float[2] b = {0.5, 0.0}, float[2] m = {0.1, 0.2}, float[2] v = {1.0, 0.25}> "
      "{ t = Conv(i, w) o = BatchNormalization<epsilon=0.001>(t, g, b, m, v) }";
  Graph g = graph(text), before = graph(text);
  must(pass(g, set_of({r})));
  REQUIRE(ops_of(g) == "Conv");
  const Node& n = g.node(g.order()[0]);
  CHECK(n.inputs.size() == 3);
  double k = 1.5 / std::sqrt(1.0 + static_cast<double>(0.001f));
  CHECK(g.constant(n.inputs[1])->as<float>()[0] == static_cast<float>(2.0 * k));
  CHECK(g.constant(n.inputs[1])->dtype() == DType::f32);
  std::vector<Tensor> in{Tensor::of_f32({1, 1, 2, 2}, {1, -2, 3, 0.5})};
  auto a = run(before, in)[0].to_f64(), c = run(g, in)[0].to_f64();
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(c[i]).epsilon(1e-6));
}

TEST_CASE("the new convolution keeps the convolution's name") {
  auto r = rule("scale", body("[conv] t = Conv<...>(x, W!)\ny = Mul(t, ~2.0)",
                              "y = conv<...conv>(x, Mul(W, 2))"));
  Graph g = graph(
      "g (float[1,1,2,2] i) => (float[1,1,2,2] o) <float[1,1,1,1] w = {3.0}, float k = {2.0}> "
      "{ t = Conv(i, w) o = Mul(t, k) }");
  std::string name = g.node(maker(g, "t")).name;
  must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Conv");
  CHECK(g.node(g.order()[0]).name == name);
  CHECK(g.constant(g.node(g.order()[0]).inputs[1])->at_f64(0) == 6);
}

TEST_CASE("a weight that would become infinite declines the rewrite") {
  auto r = rule("scale", body("[conv] t = Conv<...>(x, W!)\ny = Mul(t, s!)",
                              "y = conv<...conv>(x, Mul(W, s))"));
  Graph g = graph(
      "g (float[1,1,2,2] i) => (float[1,1,2,2] o) <float[1,1,1,1] w = {3e38}, float[1,1,1,1] k = "
      "{2.0}> "
      "{ t = Conv(i, w) o = Mul(t, k) }");
  Passed p = must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Conv Mul");
  bool said = false;
  for (const Rejection& x : p.misses)
    said |= x.id == "D9" && x.why.find("infinite in f32") != std::string::npos;
  CHECK(said);
}

TEST_CASE("D7: a rule that changes a type is rolled back and reported") {
  auto r = rule("wrong", body("y = Relu(x)", "y = Shape(x)"));
  Graph g = graph("g (float[2] i) => (float[2] o) { o = Relu(i) }");
  Passed p = must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Relu");
  REQUIRE(p.journal.steps.size() == 1);
  CHECK(p.journal.steps[0].kind == "broken");
  CHECK(p.journal.steps[0].text.find("f32[2]") != std::string::npos);
}

TEST_CASE("D7: an equal shape that cannot be proved is declined, and no fault") {
  auto r = rule("dims", body("y = Reshape<...>(x, s)", "y = x"));
  Graph g = graph("g (float[N,2] i, int64[2] s) => (float[M,K] o) { o = Reshape(i, s) }");
  Passed p = must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Reshape");
  CHECK(p.journal.steps.empty());
}

TEST_CASE("D7: a result of unknown rank gets none that a rule claims") {
  auto r = rule("flat", body("y = Squeeze(x, a)", "y = Reshape(x, {[-1]})"));
  Graph g = graph("g (float[N,1] i, int64[k] a) => (float[M] o) { s = Squeeze(i, a) o = Relu(s) }");
  Passed p = must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Squeeze Relu");
  CHECK(p.journal.steps.empty());
}

TEST_CASE("rules that undo each other are stopped and named") {
  auto a = rule("there", body("y = Add(x, z)", "y = Sub(x, Neg(z))", "once: true\n"));
  auto b = rule("back", body("y = Sub(x, Neg(z))", "y = Add(x, z)", "once: true\n"));
  Graph g = graph("g (float[2] i, float[2] j) => (float[2] o) { o = Add(i, j) }");
  auto p = pass(g, set_of({a, b}));
  REQUIRE_FALSE(p);
  CHECK(p.error().code == Code::rule_loop);
  CHECK(p.error().message.find("back, there") != std::string::npos);
}

TEST_CASE("numbers take the type of their neighbour; labels that are absent pass their operand") {
  auto r = rule("half", body("[n] t = Neg?(x)\ny = Relu(t)", "u = n(x)\ny = Max(Mul(u, 1), 0)",
                             "once: true\n"));
  Graph g = graph("g (double[2] i) => (double[2] o) { o = Relu(i) }");
  must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Mul Max");
  CHECK(g.constant(g.node(g.order()[0]).inputs[1])->dtype() == DType::f64);
}

TEST_CASE("several results move to their new places") {
  auto r = rule("split", body("a, b = Split<axis=$ax, num_outputs=2>(Neg(x))",
                              "c, b0 = Split<axis=$ax, num_outputs=2>(x)\na = Neg(c)\nb = Neg(b0)",
                              "once: true\n"));
  Graph g = graph(
      "g (float[4] i) => (float[2] o, float[2] p) { n = Neg(i) s, t = Split<axis=0, "
      "num_outputs=2>(n) o = Abs(s) p = Abs(t) }");
  must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Split Neg Neg Abs Abs");
  std::vector<Tensor> in{Tensor::of_f32({4}, {1, 2, 3, 4})};
  CHECK(run(g, in)[1].to_f64() == std::vector<double>{3, 4});
}

TEST_CASE("rewriting reaches nested graphs") {
  auto r = rule("idem", body("y = Relu(Relu(x))", "y = Relu(x)"));
  Graph g = graph(
      "g (float[2] i, bool c) => (float[2] p) { s = Neg(i) "
      "p = If (c) <then_branch = t () => (float[2] q) { u = Relu(s) q = Relu(u) }, "
      "else_branch = e () => (float[2] q) { q = Identity(s) }> }");
  must(pass(g, set_of({r})));
  const Node& n = g.node(maker(g, "p"));
  for (const auto& [name, sub] : n.subgraphs)
    CHECK(ops_of(*sub) == (name == "then_branch" ? "Relu" : "Identity"));
}

TEST_CASE("constants fold within limits, dead layers go, shape arithmetic becomes constant") {
  Graph g = graph(
      "g (float[2,3] i) => (float[6] o) <float[2] k = {1.0, 2.0}, float[3] q = {1.0, 1.0, 2.0}> "
      "{ s = Shape(i) n = ReduceProd<keepdims=1>(s) r = Reshape(i, n) u = Neg(k) a = Add(q, q) b = "
      "Concat<axis=0>(a, a) o = Mul(r, b) }");
  Journal journal;
  int folded = must(fold_constants({g, ops(), limits(), journal}));
  CHECK(folded >= 3);
  CHECK(ops_of(g) == "Reshape Mul");
  must(verify(g));
  Limits small;
  small.fold_tensor_bytes = 8;
  Graph h = graph(
      "g (float[6] i) => (float[6] o) <float[6] q = {1.0, 1.0, 2.0, 1.0, 2.0, 3.0}> { a = Add(q, "
      "q) o = Mul(i, a) }");
  must(fold_constants({h, ops(), small, journal}));
  CHECK(ops_of(h) == "Add Mul");
}
