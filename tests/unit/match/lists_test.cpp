// Lists in patterns and replacements: several among ordered operands, all results of a node,
// forwarded results.
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {
std::shared_ptr<const Rule> rewrite(const std::string& match, const std::string& make,
                                    const std::string& more = "") {
  return rule("t", rewrite_text("exact", match, make, more));
}

std::vector<std::string> names(const Graph& g, const std::vector<ValueId>& values) {
  std::vector<std::string> out;
  for (ValueId v : values) out.push_back(g.value(v).name);
  return out;
}
using Names = std::vector<std::string>;
}  // namespace

TEST_CASE("two lists around an operand: every place is tried, the first that fits is taken") {
  auto r = rewrite("t = Relu(x)\ny = Concat<axis=$a>(before..., t, behind...)",
                   "y = Concat<axis=$a>(before..., x, behind...)", "once: true\n");
  Graph g = graph(
      "g (float[1] i, float[1] j, float[1] k) => (float[4] o) { r = Relu(k) o = Concat<axis=0>(i, "
      "j, r, i) }");
  Attempt a = attempt(*r, g, "o");
  REQUIRE(std::holds_alternative<Match>(a));
  const Bindings& b = std::get<Match>(a).bindings;
  CHECK(names(g, b.value_lists.at("before")) == Names{"i", "j"});
  CHECK(names(g, b.value_lists.at("behind")) == Names{"i"});
  must(pass(g, set_of({r})));
  REQUIRE(ops_of(g) == "Concat");
  CHECK(names(g, g.node(g.order()[0]).inputs) == Names{"i", "j", "k", "i"});
  Graph none = graph("g (float[1] i) => (float[2] o) { o = Concat<axis=0>(i, i) }");
  CHECK(declined(*r, none, "o") == "structure");
}

TEST_CASE("all results of a node, in order, and nothing else") {
  auto r = rewrite("ts... = Split<...>(x, s?)\ny = Concat<...>(ts...)", "y = x");
  auto text = [](const char* parts) {
    return fmt::format(
        "g (float[6] i) => (float[N] o) <int64[3] s = {{1, 2, 3}}> {{ a, b, c = Split<axis=0>(i, "
        "s) "
        "z = Concat<axis=0>({}) o = Neg(z) }}",
        parts);
  };
  Graph g = graph(text("a, b, c"));
  CHECK(declined(*r, g, "z") == "");
  must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Neg");
  for (const char* parts : {"a, c, b", "a, b", "a, b, c, a", "b, c"}) {
    CAPTURE(parts);
    Graph other = graph(text(parts));
    CHECK(declined(*r, other, "z") == "structure");
  }
}

TEST_CASE("a result of the node that is read elsewhere too is a leak (D1, D2)") {
  auto r = rewrite("ts... = Split<...>(x, s?)\ny = Concat<...>(ts...)", "y = x");
  Graph read = graph(
      "g (float[4] i) => (float[4] o, float[2] p) { a, b = Split<axis=0, num_outputs=2>(i) z = "
      "Concat<axis=0>(a, b) o = Neg(z) p = Abs(b) }");
  CHECK(declined(*r, read, "z") == "D1");
  Graph output = graph(
      "g (float[4] i) => (float[4] o, float[2] b) { a, b = Split<axis=0, num_outputs=2>(i) z = "
      "Concat<axis=0>(a, b) o = Neg(z) }");
  CHECK(declined(*r, output, "z") == "D2");
}

TEST_CASE("the root's results as a list, forwarded or made anew") {
  auto forward = rewrite("t = Concat<...>(xs...)\nys... = Split<...>(t, s?)", "ys... = xs...");
  const char* text =
      "g (float[2] i, float[2] j) => (float[2] o, float[2] p) { t = Concat<axis=0>(i, j) a, b = "
      "Split<axis=0, num_outputs=2>(t) o = Neg(a) p = Abs(b) }";
  Graph g = graph(text);
  CHECK(declined(*forward, g, "a") == "");
  must(pass(g, set_of({forward})));
  CHECK(ops_of(g) == "Neg Abs");
  CHECK(names(g, g.node(g.order()[1]).inputs) == Names{"j"});

  auto again =
      rewrite("t = Relu(x)\n[s] ys... = Split<...>(t, sizes?)", "ys... = s<...s>(x, sizes)");
  Graph h = graph(
      "g (float[4] i) => (float[2] o, float[2] p) { t = Relu(i) o, p = Split<axis=0, "
      "num_outputs=2>(t) }");
  must(pass(h, set_of({again})));
  CHECK(ops_of(h) == "Split");
  CHECK(names(h, h.node(h.order()[0]).outputs) == Names{"o", "p"});
}

TEST_CASE("another number of results than the node has is declined") {
  auto r = rewrite("t = Concat<...>(xs...)\nys... = Split<...>(t, s?)", "ys... = xs...");
  Graph g = graph(
      "g (float[2] i, float[2] j) => (float[4] o) { t = Concat<axis=0>(i, j) a = Split<axis=0, "
      "num_outputs=1>(t) o = Neg(a) }");
  must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Concat Split Neg");
}

TEST_CASE(
    "a list of values made by an expression is operands; an operator of an absent operand is "
    "absent") {
  auto r = rewrite("y = Concat<axis=$a>(ts...)",
                   "y = Relu(Concat<axis=$a>({map(t in ts: input(t, 0))}))",
                   "once: true\nwhere:\n  - {id: all, sound: \"all(t in ts: producer_op(t) == "
                   "'Relu')\", why: no}\n");
  Graph g = graph(
      "g (float[2] i, float[2] j) => (float[4] o) { a = Relu(i) b = Relu(j) o = Concat<axis=0>(a, "
      "b) }");
  must(pass(g, set_of({r})));
  CHECK(ops_of(g) == "Concat Relu");

  auto bias =
      rewrite("t = Gemm<...>(a, b, c?)\ny = Neg(t)",
              "y = Gemm<transA=0, transB=0, alpha=-1.0, beta=1.0>(a, b, Neg(c))", "once: true\n");
  Graph with = graph(
      "g (float[2,2] i, float[2,2] j, float[2] k) => (float[2,2] o) { t = Gemm(i, j, k) o = Neg(t) "
      "}");
  must(pass(with, set_of({bias})));
  CHECK(ops_of(with) == "Neg Gemm");
  Graph without =
      graph("g (float[2,2] i, float[2,2] j) => (float[2,2] o) { t = Gemm(i, j) o = Neg(t) }");
  must(pass(without, set_of({bias})));
  CHECK(ops_of(without) == "Gemm");
}
