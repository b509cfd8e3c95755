// Inputs that are written as nothing: left out in the pattern, left out in the replacement.
#include "tests/unit/engine/kit.h"

using namespace kit;

TEST_CASE("an input written as nothing must be left out") {
  auto r = rule("t",
                "kind: rewrite\nphase: fold\nmatch: |\n  y = Clip(Relu(x), , hi!)\nrewrite: |\n  y "
                "= Clip(x, {0.0}, hi)\n");
  const char* text =
      "g (float[2] i) => (float[2] a, float[2] b) <float lo = {1.0}, float hi = {2.0}> "
      "{ s = Relu(i) a = Clip(s, , hi) u = Relu(i) b = Clip(u, lo, hi) }";
  Graph g = graph(text);
  CHECK(declined(*r, g, "a") == "");
  CHECK(declined(*r, g, "b") == "D5");
}

TEST_CASE("a replacement leaves an input out") {
  auto r = rule("t",
                "kind: rewrite\nphase: fold\nmatch: |\n  y = Clip(Relu(x), lo!, hi!)\nrewrite: |\n "
                " y = Clip(x, , hi)\n");
  Graph g = graph(
      "g (float[2] i) => (float[2] o) <float lo = {1.0}, float hi = {2.0}> { s = Relu(i) o = "
      "Clip(s, lo, hi) }");
  Attempt a = attempt(*r, g, "o");
  REQUIRE(std::holds_alternative<Match>(a));
  auto made = must(apply_rewrite(g, std::get<Match>(a), ops(), limits()));
  REQUIRE(made.size() == 1);
  CHECK_FALSE(g.input(made[0], 1));
  CHECK(g.constant(g.input(made[0], 2)) != nullptr);
}
