// Ways to meet a rule's conditions, one by one, and the last numbers that comparisons let through.
#include "engine/proof/goals.h"

#include "engine/rule/expr.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

/// The conditions of each goal in one line.
std::string goals(const std::string& condition, const std::string& let = "",
                  const std::string& rewrite = "y = x") {
  const auto r = rule("asked", rewrite_text("exact", "y = Transpose<perm=$p>(x)", rewrite,
                                            let + "where:\n  - {id: c, sound: \"" + condition +
                                                "\", why: \"no\"}\n"));
  std::string out;
  for (const Goal& g : goals_of(*r)) {
    std::string line;
    for (const Condition& c : g.where) line += (line.empty() ? "" : "; ") + to_text(*c.expr);
    out += line + "\n";
  }
  return out;
}

}  // namespace

TEST_CASE("each way to meet a condition is a goal of its own") {
  CHECK(goals("is_float(x) and rank(x) == 2").empty());
  CHECK(goals("is_float(x) or const(x)") ==
        "is_float(x); not const(x)\n"
        "const(x); not is_float(x)\n");
  CHECK(goals("is_float(x) implies const(x)") ==
        "not is_float(x); not const(x)\n"
        "const(x); is_float(x)\n");
  CHECK(goals("not (is_float(x) and const(x))") ==
        "not is_float(x); const(x)\n"
        "not const(x); is_float(x)\n");
  CHECK(goals("dtype(x) in [f16, i8]") == "dtype(x) == f16\ndtype(x) == i8\n");
  CHECK(goals("if const(x) then is_float(x) else is_int(x)") ==
        "const(x); is_float(x)\n"
        "not const(x); is_int(x)\n");
  CHECK(goals("short", "let:\n  short: \"is_float(x) or const(x)\"\n") ==
        "is_float(x); not const(x)\n"
        "const(x); not is_float(x)\n");
  CHECK(goals("all(k in p: const(x) or k == 0)") ==
        "all(k in p: const(x) or k == 0); any(k in p: const(x) and not k == 0)\n"
        "all(k in p: const(x) or k == 0); any(k in p: k == 0 and not const(x))\n"
        "all(k in p: const(x) and not k == 0)\n"
        "all(k in p: k == 0 and not const(x))\n");
}

TEST_CASE("each branch of a formula is a goal beside the conditions") {
  CHECK(goals("const(x)", "", "y = Mul(x, {if rank(x) == 2 or is_float(x) then 1 else 2})") ==
        "const(x); rank(x) == 2; not is_float(x)\n"
        "const(x); is_float(x); not rank(x) == 2\n"
        "const(x); not rank(x) == 2; not is_float(x)\n");
}

TEST_CASE("the last number that a comparison lets through is a goal, and what is within it") {
  CHECK(goals("rank(x) <= 4") == "rank(x) == 4\nrank(x) < 4\n");
  CHECK(goals("rank(x) < 4") == "rank(x) == 3\n");
  CHECK(goals("rank(x) > 4") == "rank(x) == 5\n");
  CHECK(goals("4 > rank(x)") == "rank(x) == 3\n");
  CHECK(goals("-2 <= p[0]") == "p[0] == -2\n-2 < p[0]\n");
  CHECK(goals("not (rank(x) < 4)") == "rank(x) == 4\nrank(x) > 4\n");
  CHECK(goals("rank(x) > 4 or const(x)") ==
        "rank(x) > 4; not const(x)\n"
        "const(x); not rank(x) > 4\n"
        "rank(x) == 5; not const(x)\n"
        "const(x); rank(x) == 4\n"
        "const(x); rank(x) < 4\n");
  CHECK(goals("rank(x) == 4").empty());

  const auto r = rule("asked", rewrite_text("exact", "y = Transpose<perm=$p>(x)", "y = x",
                                            "where:\n  - {id: c, sound: \"rank(x) <= 4\", why: "
                                            "\"no\"}\n"));
  CHECK(goals_of(*r)[0].numbers == std::vector<int64_t>{3, 4, 5});
}
