// The shipped operator table loads, is complete, and its errors point at the right place.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/semantics/definition.h"
#include "engine/semantics/formula.h"
#include "engine/semantics/meets.h"
#include "engine/semantics/semantics.h"
#include "tests/support/paths.h"

using namespace ferrule;

namespace {

Result<Semantics> load(const std::string& dir) {
  std::vector<std::string> dirs{dir};
  return Semantics::load(dirs);
}

/// Loads one ops file of this text.
Result<Semantics> load_text(const std::string& text) {
  char dir[] = "/tmp/ferrule-ops-XXXXXX";
  REQUIRE(mkdtemp(dir));
  std::filesystem::create_directories(std::string(dir) + "/ops");
  std::ofstream(std::string(dir) + "/ops/a.yaml") << text;
  auto r = load(dir);
  std::filesystem::remove_all(dir);
  return r;
}

/// Loads the shipped operators and one file of a user's, of these entries.
Result<Semantics> load_beside(const std::string& entries,
                              Result<Semantics> (*load)(std::span<const std::string>,
                                                        Semantics::BySchema) = Semantics::load) {
  char dir[] = "/tmp/ferrule-ops-XXXXXX";
  REQUIRE(mkdtemp(dir));
  std::filesystem::create_directories(std::string(dir) + "/ops");
  std::ofstream(std::string(dir) + "/ops/mine.yaml") << "ferrule: 1\nops:\n" << entries;
  std::vector<std::string> dirs{rules_dir(), dir};
  auto ops = load(dirs, nullptr);
  std::filesystem::remove_all(dir);
  return ops;
}

}  // namespace

TEST_CASE("every pointwise operator of ai.onnx has a formula") {
  auto ops = load(rules_dir());
  if (!ops) FAIL(render(ops.error()));
  for (const char* op : {"Abs",         "Acos",
                         "Acosh",       "Add",
                         "And",         "Asin",
                         "Asinh",       "Atan",
                         "Atanh",       "BitShift",
                         "BitwiseAnd",  "BitwiseNot",
                         "BitwiseOr",   "BitwiseXor",
                         "Cast",        "CastLike",
                         "Ceil",        "Celu",
                         "Clip",        "Cos",
                         "Cosh",        "Div",
                         "Elu",         "Equal",
                         "Erf",         "Exp",
                         "Floor",       "Gelu",
                         "Greater",     "GreaterOrEqual",
                         "HardSigmoid", "HardSwish",
                         "Identity",    "IsInf",
                         "IsNaN",       "LeakyRelu",
                         "Less",        "LessOrEqual",
                         "Log",         "Max",
                         "Mean",        "Min",
                         "Mish",        "Mod",
                         "Mul",         "Neg",
                         "Not",         "Or",
                         "PRelu",       "Pow",
                         "Reciprocal",  "Relu",
                         "Round",       "Selu",
                         "Shrink",      "Sigmoid",
                         "Sign",        "Sin",
                         "Sinh",        "Softplus",
                         "Softsign",    "Sqrt",
                         "Sub",         "Sum",
                         "Swish",       "Tan",
                         "Tanh",        "ThresholdedRelu",
                         "Where",       "Xor"}) {
    CAPTURE(op);
    const OpFormula* f = ops->find("", op);
    REQUIRE(f);
    CHECK(f->pointwise());
    CHECK(f->source.starts_with("https://"));
  }
  for (const char* op : {"Softmax", "LogSoftmax", "LayerNormalization", "ReduceSum"}) {
    REQUIRE(ops->find("", op));
    CHECK_FALSE(ops->find("", op)->pointwise());
  }
}

TEST_CASE("an input that only lends its type is not data") {
  auto ops = load(rules_dir());
  REQUIRE(ops);
  CHECK(ops->find("", "CastLike")->reads(0));
  CHECK_FALSE(ops->find("", "CastLike")->reads(1));
  CHECK(ops->find("", "Sum")->reads(7));
  CHECK_FALSE(ops->find("", "Abs")->reads(1));
}

TEST_CASE("formulas are printed so that they read back equal") {
  for (const char* text :
       {"a + b * c", "(a + b) * c", "a - (b - c)", "--x", "not (a and b) or c",
        "select(x < 0, alpha * x, x)", "(a < b) == (c < d)", "1.0 / x", "a xor b and c"}) {
    auto e = parse_formula(text);
    REQUIRE(e);
    CHECK(to_text(**e) == text);
  }
  auto e = parse_formula("if a == 'tanh' then 1e-3 else 2");
  REQUIRE(e);
  CHECK(to_text(**e) == "select(a == 'tanh', 0.001, 2)");
}

TEST_CASE("what is no formula is refused at its place") {
  auto at = [](const char* text) {
    auto e = parse_formula(text);
    REQUIRE_FALSE(e);
    return e.error();
  };
  CHECK(at("x +").offset == 3);
  CHECK(at("a < b < c").offset == 6);
  CHECK(at("exq(x)").hint == "did you mean \"exp\"?");
  CHECK(at("exp(x, y)").message == "exp takes 1 operand, not 2");
  CHECK(at("a = b").hint == "write == to compare");
  CHECK(at("'abc").message == "a text that does not end");
  CHECK(at(std::string(5000, 'a').c_str()).message ==
        "the formula has 5000 characters, more than 4000");
  CHECK(at(std::string(3000, '(').c_str()).message == "the formula is nested too deeply");
  CHECK(at(std::string(3000, '-').c_str()).message == "the formula is nested too deeply");
  CHECK(at("1.2.3").message == "\"1.2.3\" is not a number");
  CHECK(at("").message == "the formula ends where an operand is wanted");
}

TEST_CASE("all errors of an operator file come at once, with line and column") {
  auto r = load_text(R"yaml(ferrule: 1
ops:
  - op: A
    in: [x]
    attrs: {alpha: 1.0}
    expr: "select(x < 0, alfa * x, x)"
  - op: B
    in: [x]
    exprr: "x"
  - op: C
    in: [x]
    expr: "bitand(x, x)"
  - op: D
    in: [x]
    expr: x + 1
  - op: E
    in: [x, "lo?"]
    expr: "max(x, lo)"
)yaml");
  REQUIRE_FALSE(r);
  std::string text = render(r.error());
  CAPTURE(text);
  CHECK(text.find("a.yaml:6:26: unknown name \"alfa\"") != std::string::npos);
  CHECK(text.find("did you mean \"alpha\"?") != std::string::npos);
  CHECK(text.find("a.yaml:9:5: unknown key \"exprr\"") != std::string::npos);
  CHECK(text.find("a.yaml:10:5: formula of C: bitand is not defined on f32") != std::string::npos);
  CHECK(text.find("a.yaml:15:11: expr is not quoted") != std::string::npos);
  CHECK(text.find("formula of E: input lo is absent here") != std::string::npos);
}

TEST_CASE("a later folder replaces an operator of an earlier one where it says so") {
  auto ops = load_beside(
      "  - {op: Relu, in: [x], types: float, expr: \"x\", replaces: true}\n"
      "  - {op: Mine, domain: my.ops, in: [x], types: float, expr: \"x * x\"}\n");
  REQUIRE(ops);
  CHECK(to_text(*ops->find("", "Relu")->expr) == "x");
  CHECK(ops->find("my.ops", "Mine"));
  CHECK_FALSE(ops->find("", "Mine"));
}

TEST_CASE("inputs of one element, and those that broadcast to the first") {
  auto ops = load_beside(
      "  - {op: PRelu, in: [v, \"s[v]\"], expr: \"v * s\", replaces: true}\n"
      "  - {op: Mine, domain: my.ops, in: [x, \"k[]\"], expr: \"x * k\"}\n");
  REQUIRE(ops);
  CHECK(meets_first(*ops->find("", "PRelu"), 1) == Meets::one_way);
  CHECK(meets_first(*ops->find("", "Add"), 1) == Meets::broadcast);
  CHECK_FALSE(shaped_by_first(*ops->find("", "Add")));
  CHECK(meets_first(*ops->find("my.ops", "Mine"), 1) == Meets::single);
  CHECK(shaped_by_first(*ops->find("my.ops", "Mine")));
  auto refusal = [](const std::string& entry) {
    auto refused = load_beside("  - {op: Mine, domain: my.ops, expr: \"x\", " + entry + "}\n");
    REQUIRE_FALSE(refused);
    return render(refused.error());
  };
  for (const char* in : {"\"x[]\"", "x, \"k[y]\"", "x, \"k[]...\"", "x, \"k[\""}) {
    CAPTURE(in);
    CHECK(refusal(fmt::format("in: [{}]", in)).find("is not an input") != std::string::npos);
  }
  CHECK(refusal("in: [x, \"k[]\"], row: axis").find("is not an input") != std::string::npos);
  CHECK(
      render(load_beside("  - {op: PRelu, in: [x, s], expr: \"x * s\", replaces: true}\n").error())
          .find("other operands") != std::string::npos);
}

TEST_CASE("the first definitions are there for the oracle, whatever later folders say") {
  auto ops = load_beside(
      "  - {op: Relu, in: [x], types: float, expr: \"x\", replaces: true}\n"
      "  - {op: Mine, domain: my.ops, in: [x], types: float, expr: \"x * x\"}\n",
      load_first_definitions);
  REQUIRE(ops);
  CHECK(definition(*ops->find("", "Relu")) == definition(*load(rules_dir())->find("", "Relu")));
  CHECK(ops->find("my.ops", "Mine"));
}

TEST_CASE("an operator is not redefined without a word, nor as something else") {
  auto refusal = [](const std::string& entry) {
    auto ops = load_beside("  - {" + entry + "}\n");
    REQUIRE_FALSE(ops);
    return render(ops.error());
  };
  auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string silent =
      refusal("op: Relu, domain: ai.onnx, in: [x], types: float, expr: \"x + 1\"");
  CAPTURE(silent);
  CHECK(has(silent, "mine.yaml:3:5: operator Relu is described at "));
  CHECK(has(silent, "/ops/activation.yaml:"));
  CHECK(has(silent, "write `replaces: true`"));
  CHECK(has(refusal("op: Rellu, in: [x], expr: \"x\", replaces: true"), "did you mean \"Relu\"?"));
  CHECK(has(refusal("op: Relu, in: [x, y], types: float, expr: \"x + y\", replaces: true"),
            "other operands or another result type"));
  CHECK(has(refusal("op: Less, in: [a, b], expr: \"a - b\", replaces: true"),
            "other operands or another result type"));
  CHECK(has(refusal("op: Softmax, in: [x], attrs: {axis: -1}, row: axis, types: float, expr: \"x / "
                    "rsum(x)\", replaces: true"),
            "works on rows"));
}

TEST_CASE("the table loads in little time") {
  auto start = std::chrono::steady_clock::now();
  REQUIRE(load(rules_dir()));
  std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  MESSAGE("loaded in " << took.count() << " ms");
  CHECK(took.count() < 500);
}
