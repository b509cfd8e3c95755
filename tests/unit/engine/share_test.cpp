// Common subexpressions, equal constants, branches decided while folding.
#include "engine/rewrite/share.h"
#include "engine/rewrite/branches.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {
int share(Graph& g) {
  Journal journal;
  int gone = must(share_common({g, ops(), limits(), journal}));
  must(verify(g));
  return gone;
}
int decide(Graph& g) {
  int n = must(inline_branches(ops(), g));
  must(verify(g));
  return n;
}
}  // namespace

TEST_CASE("nodes that compute the same become one, through several of them") {
  Graph g = graph(
      "g (float[4] i) => (float[4] o) { a = Exp(i) b = Exp(i) c = Neg(a) d = Neg(b) o = Add(c, d) "
      "}");
  CHECK(share(g) == 2);
  CHECK(ops_of(g) == "Exp Neg Add");
}

TEST_CASE("other attributes, operands, operand orders, or another operator stay apart") {
  Graph g = graph(
      "g (float[4,4] i, float[4,4] j) => (float[4,4] o) { a = Softmax<axis=0>(i) b = "
      "Softmax<axis=1>(i) "
      "c = Sub(a, b) d = Sub(b, a) e = Sub(a, j) f = Add(a, j) h = Sum(c, d, e, f) o = Neg(h) }");
  CHECK(share(g) == 0);
}

TEST_CASE("equal constants are one; larger ones share their bytes and keep their names") {
  Graph g = graph(
      "g (float[4] i) => (float[4] o) <float k = {2.0}, float l = {2.0}, float m = {3.0}, float[4] "
      "v = {1, 2, 3, 4}, float[4] w = {1, 2, 3, 4}> "
      "{ a = Mul(i, k) b = Mul(i, l) c = Mul(i, m) d = Add(i, v) e = Add(i, w) o = Sum(a, b, c, d, "
      "e) }");
  CHECK(share(g) == 2);
  CHECK(ops_of(g) == "Mul Mul Add Sum");
}

TEST_CASE("large equal constants keep their readers apart and their bytes together") {
  Graph g = graph(
      "g (float[4] i, float[4] j) => (float[4] o) <float[4] v = {1, 2, 3, 4}, float[4] w = {1, 2, "
      "3, 4}> { d = Add(i, v) e = Add(j, w) o = Mul(d, e) }");
  CHECK(share(g) == 0);
  ValueId v = g.find_value("v"), w = g.find_value("w");
  REQUIRE((v && w));
  CHECK(g.constant(v)->data() == g.constant(w)->data());
  CHECK(g.value(v).uses.size() == 1);
}

TEST_CASE("a graph output keeps its name; two outputs of the same value stay two nodes") {
  Graph one =
      graph("g (float[4] i) => (float[4] o, float[4] p) { a = Exp(i) o = Exp(i) p = Neg(a) }");
  CHECK(share(one) == 1);
  CHECK(one.value(one.outputs()[0]).name == "o");
  Graph two = graph("g (float[4] i) => (float[4] o, float[4] p) { o = Exp(i) p = Exp(i) }");
  CHECK(share(two) == 0);
}

TEST_CASE("random nodes stay apart") {
  Graph random = graph(
      "g (float[4] i) => (float[4] o) { a = RandomNormalLike(i) b = RandomNormalLike(i) o = Add(a, "
      "b) }");
  CHECK(share(random) == 0);
}

TEST_CASE("sharing is linear in a graph of equal chains") {
  std::string text = "g (float[4] i) => (float[4] o) {\n";
  for (int k = 0; k < 20000; ++k) text += fmt::format("a{0} = Exp(i)\nb{0} = Neg(a{0})\n", k);
  Graph g = graph(text + "o = Abs(b19999) }");
  CHECK(share(g) == 39998);
  CHECK(ops_of(g) == "Exp Neg Abs");
}

TEST_CASE("the branch of a constant condition takes the If's place") {
  const char* text =
      "g (float[4] i) => (float[4] o) <bool c = {%}> { t = If(c) < then_branch = yes () => "
      "(float[4] u) { u = Exp(i) }, "
      "else_branch = no () => (float[4] v) <float[4] w = {1, 2, 3, 4}> { x = Add(i, w) v = Mul(x, "
      "i) } > o = Neg(t) }";
  for (bool yes : {true, false}) {
    std::string model = text;
    model.replace(model.find('%'), 1, yes ? "1" : "0");
    Graph g = graph(model);
    std::vector<Tensor> in = {Tensor::of_f32({4}, {1, 2, -1, 0.5f})};
    const Tensor before = run(g, in)[0];
    CHECK(decide(g) == 1);
    CHECK(ops_of(g) == (yes ? "Exp Neg" : "Add Mul Neg"));
    CHECK(g.value(g.outputs()[0]).name == "o");
    CHECK(run(g, in)[0].identical(before));
  }
}

TEST_CASE(
    "a branch that passes an outer value on, one with a nested branch, and a computed condition") {
  Graph passes = graph(
      "g (float[4] i) => (float[4] o) <bool c = {1}> { o = If(c) < then_branch = yes () => "
      "(float[4] u) { u = Identity(i) }, "
      "else_branch = no () => (float[4] v) { v = Neg(i) } > }");
  CHECK(decide(passes) == 1);
  CHECK(ops_of(passes) == "Identity");
  CHECK(passes.value(passes.outputs()[0]).name == "o");

  Graph nested = graph(
      "g (float[4] i, bool d) => (float[4] o) <bool c = {1}> { t = If(c) < then_branch = yes () => "
      "(float[4] u) { e = Exp(i) "
      "u = If(d) < then_branch = a () => (float[4] p) { p = Neg(e) }, else_branch = b () => "
      "(float[4] q) { q = Add(e, i) } > }, "
      "else_branch = no () => (float[4] v) { v = Neg(i) } > o = Abs(t) }");
  std::vector<Tensor> in = {Tensor::of_f32({4}, {1, 2, -1, 0.5f}),
                            Tensor::scalar(DType::boolean, 0)};
  const Tensor before = run(nested, in)[0];
  CHECK(decide(nested) == 1);
  CHECK(ops_of(nested) == "Exp If Abs");
  CHECK(run(nested, in)[0].identical(before));

  Graph open = graph(
      "g (float[4] i, bool c) => (float[4] o) { o = If(c) < then_branch = yes () => (float[4] u) { "
      "u = Exp(i) }, "
      "else_branch = no () => (float[4] v) { v = Neg(i) } > }");
  CHECK(decide(open) == 0);
}

TEST_CASE("a Loop that never turns passes its start values on; one that stacks results stays") {
  const char* text =
      "g (float[4] i) => (float[4] o) <int64 m = {%}> { t = Loop(m, , i) < body = b (int64 n, bool "
      "c, float[4] x) => (bool d, float[4] y) "
      "{ d = Identity(c) y = Exp(x) } > o = Neg(t) }";
  for (const char* turns : {"0", "2"}) {
    std::string model = text;
    model.replace(model.find('%'), 1, turns);
    Graph g = graph(model);
    CHECK(decide(g) == (*turns == '0' ? 1 : 0));
    CHECK(ops_of(g) == (*turns == '0' ? "Neg" : "Loop Neg"));
  }
  Graph stacks = graph(
      "g (float[4] i) => (float[N,4] o) <int64 m = {0}> { t, s = Loop(m, , i) < body = b (int64 n, "
      "bool c, float[4] x) => "
      "(bool d, float[4] y, float[4] z) { d = Identity(c) y = Exp(x) z = Neg(x) } > o = Neg(s) }");
  CHECK(decide(stacks) == 0);
}
