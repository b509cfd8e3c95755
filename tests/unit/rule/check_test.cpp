// Checks over whole rule sets, the shipped one included, and the generated schema.
#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "engine/rule/load.h"
#include "engine/rule/vocabulary.h"
#include "tests/unit/rule/kit.h"

using namespace ferrule;

namespace {

std::string rewrite(std::string match, std::string to, std::string more = "") {
  return fmt::format("doc: d\nkind: rewrite\nphase: p\n{}match: |\n  {}\nrewrite: |\n  {}\n", more,
                     match, to);
}

/// Rules a, b, c, … in this order, checked; errors and notes as lines.
std::string checked(std::vector<std::string> texts) {
  RuleSet set;
  for (size_t k = 0; k < texts.size(); ++k) {
    std::string id(1, static_cast<char>('a' + k));
    auto r = load_rule_text("ferrule: 1\nid: " + id + "\n" + texts[k], id + ".yaml", op_table(),
                            Limits{});
    REQUIRE_MESSAGE(r.has_value(), (r ? "" : render(r.error())));
    set.rules.push_back(std::make_shared<const Rule>(std::move(*r)));
  }
  CheckReport report = check_rules(set, op_table());
  std::string s;
  for (const Error& e : report.errors) s += "error " + e.message + "\n";
  for (const RuleNote& n : report.notes) s += (n.rule ? n.rule->id + ": " : "") + n.text + "\n";
  return s;
}

}  // namespace

TEST_CASE("unreachable rules") {
  auto dead = [](std::string first, std::string second) {
    return has(checked({rewrite(first, "y = Abs(x)"), rewrite(second, "y = Neg(x)")}),
               "error rule b never fires: a comes first");
  };
  CHECK(dead("y = Relu(Relu(x))", "y = Relu(Relu(x))"));
  // A rule that lets its inner value have other readers matches what one that does not leaves.
  CHECK(!has(checked({rewrite("t = Relu(x)\n  y = Relu(t)", "y = Abs(x)"),
                      rewrite("t = Relu(x)\n  y = Relu(t)", "y = Neg(x)", "shared: [t]\n")}),
             "never fires"));
  CHECK(dead("y = {Relu|Abs}(Relu(x))", "y = Relu(Relu(x))"));
  CHECK(dead("y = Relu(Relu(x))", "t = Relu(x)\n  y = Relu(t)"));
  CHECK(dead("y = Relu(Mul(x, z))", "y = Relu(Mul(x, x))"));
  CHECK(dead("y = Relu(Mul(x, k!))", "y = Relu(Mul(x, ~2))"));
  CHECK(dead("y = @unary(Relu(x))", "y = Exp(Relu(x))") == op_table().in_class(
                                                               [] {
                                                                 Node n;
                                                                 n.op = "Exp";
                                                                 return n;
                                                               }(),
                                                               "unary"));
  CHECK(dead("y = Relu(Softmax<...>(x))", "y = Relu(Softmax<axis=1>(x))"));
  CHECK(dead("y = Relu(Mul(x, k) | Add(x, k))", "y = Relu(Add(x, k))"));
  CHECK(!dead("y = Relu(Relu(x))", "y = {Relu|Abs}(Relu(x))"));
  CHECK(!dead("y = Relu(Mul(x, x))", "y = Relu(Mul(x, z))"));
  CHECK(!dead("y = Relu(Mul(x, ~2))", "y = Relu(Mul(x, k!))"));
  CHECK(!dead("y = Relu(Softmax<axis=1>(x))", "y = Relu(Softmax<...>(x))"));
  CHECK(!dead("y = Relu(Add(x, k))", "y = Relu(Mul(x, k) | Add(x, k))"));
  std::string conditional = "where: [{id: c, sound: \"rank(x) == 4\", why: \"w\"}]\n";
  CHECK(!has(checked({rewrite("y = Relu(Relu(x))", "y = Abs(x)", conditional),
                      rewrite("y = Relu(Relu(x))", "y = Abs(x)")}),
             "never fires"));
}

TEST_CASE("rewrites decrease") {
  auto grows = [](std::string match, std::string to, std::string more = "") {
    return has(checked({rewrite(match, to, more)}), "does not decrease");
  };
  CHECK(!grows("y = Relu(Relu(x))", "y = Relu(x)"));
  CHECK(grows("y = Relu(x)", "y = Abs(x)"));
  CHECK(!grows("y = Relu(x)", "y = Abs(x)", "once: true\n"));
  CHECK(!grows("y = Identity(x)", "y = x"));
  // What is computed from constants is folded and costs nothing.
  CHECK(!grows("y = Mul(Mul(x, a!), b!)", "k = Mul(a, Sqrt(b))\n  y = Mul(x, k)"));
  CHECK(grows("y = Mul(Mul(x, a), b)", "k = Mul(a, b)\n  y = Mul(x, k)"));
  CHECK(!grows("y = Mul(Mul(x, a?!), b!)", "k = Mul(a ?? 1, {[1, 2]})\n  y = Mul(x, k)"));
  CHECK(grows("y = Relu(Abs(x)) | Abs(x)", "y = Exp(x)"));
  CHECK(grows("t = Abs(x)\n  y = Relu(t)", "y = Exp(t)", "shared: [t]\n"));
  CHECK(grows("y = Relu?(Abs(x))", "y = Exp(x)"));
}

TEST_CASE("notes") {
  std::string two = checked({rewrite("y = Relu(Mul(x, k))", "y = x"),
                             rewrite("y = Relu(Mul(x, x))", "y = x", "before: [z]\n")});
  CHECK(has(two, "never fires"));
  std::string overlap =
      checked({rewrite("y = Relu(Mul(x, ~2))", "y = x"), rewrite("y = Relu(Mul(x, z))", "y = x")});
  CHECK(has(overlap, "b: overlaps a"));
  CHECK(!has(
      checked({rewrite("y = Relu(Mul(x, z))", "y = x"), rewrite("y = Relu(Add(x, z))", "y = x")}),
      "overlaps"));
  CHECK(!has(checked({rewrite("y = Relu(Softmax<axis=1>(x))", "y = x"),
                      rewrite("y = Relu(Softmax<axis=2>(x))", "y = x")}),
             "overlaps"));
  CHECK(has(overlap, "a: has no firing case"));
  CHECK(has(checked({rewrite("[m] y = Relu(Abs(x))", "y = x")}), "label m is used by nothing"));
  CHECK(!has(checked({rewrite("[m] y = Relu(Abs(x))", "y = x",
                              "where: [{id: c, profit: \"op(m) == 'x'\", why: \"w\"}]\n")}),
             "label"));
  CHECK(has(checked({rewrite("y = Relu(Abs(x))", "y = x",
                             "where: [{id: c, sound: \"rank(x) == 1\", why: \"w\"}]\n")}),
            "condition c has no case that it declines"));
}

TEST_CASE("loops, blocks that nobody uses, conditions that never decide") {
  auto ring = [](std::string a, std::string to, std::string b, std::string back) {
    return checked({rewrite(a, to, "once: true\n"), rewrite(b, back, "once: true\n")});
  };
  CHECK(has(ring("y = Neg(x)", "y = Mul(x, -1)", "y = Mul(x, -1)", "y = Neg(x)"),
            "a: loop: a -> b -> a"));
  CHECK(!has(ring("y = Neg(x)", "y = Mul(x, -1)", "y = Sub(x, 2)", "y = Neg(x)"), "loop"));
  CHECK(!has(ring("y = Neg(x)", "y = Mul(x, -1)", "y = Mul(x, -1)", "y = Abs(x)"), "loop"));
  // Through a label: whatever it stands for.
  CHECK(
      has(ring("[op] y = {Neg|Abs}(x)", "y = op<...op>(Relu(x))", "y = Abs(Relu(x))", "y = Neg(x)"),
          "loop: a -> b -> a"));
  // Both make the tree smaller, the value in between kept for others or not.
  CHECK(!has(
      ring("t = Neg(x)\n  y = Abs(t)", "y = Relu(x)", "t = Relu(x)\n  y = Relu(t)", "y = Abs(x)"),
      "loop"));
  CHECK(!has(ring("y = Gemm(Neg(a), b, c?)", "y = Gemm(a, b, c)", "y = Gemm(a, Neg(b), c?)",
                  "y = Gemm(a, b, c)"),
             "loop"));
  CHECK(!has(
      ring("y = Gemm(a, b, c!)", "y = Gemm(a, b)", "y = Gemm(Neg(a), b, c?)", "y = Gemm(a, b, c)"),
      "loop"));
  // A value read twice may be any number of operators more.
  CHECK(has(ring("y = Abs(Neg(Neg(x)))", "y = Add(x, x)", "y = Add(Neg(x), z)",
                 "y = Abs(Neg(Neg(Neg(x))))"),
            "loop: a -> b -> a"));
  CHECK(has(ring("y = Abs(Neg(Neg(x)))", "y = Add(x, x)", "y = Add(x, z)", "y = Abs(x)"),
            "loop: a -> b -> a"));
  // A shape that is written as a constant is none that is computed; attributes come along with
  // their label.
  CHECK(!has(ring("y = Reshape(x, Neg(s))", "y = Reshape(Abs(x), {[1, -1]})",
                  "y = Reshape(x, Neg(s))", "y = Reshape(Abs(x), {[-1]})"),
             "loop"));
  CHECK(!has(ring("[r] y = ReduceSum<keepdims=1, ...>(x, a)", "y = Neg(r<...r>(x, a))",
                  "y = Neg(ReduceSum<keepdims=0>(x, a))", "y = ReduceSum(x, a)"),
             "loop"));
  CHECK(has(ring("[r] y = ReduceSum<keepdims=1, ...>(x, a)", "y = Neg(r<...r>(x, a))",
                 "y = Neg(ReduceSum(x, a))", "y = ReduceSum(Abs(x), a)"),
            "loop"));
  std::string blocks = "blocks: {square(x): \"Mul(x, x)\", cube(x): \"Mul(square(x), x)\"}\n";
  CHECK(has(checked({rewrite("y = Relu(square(x))", "y = Abs(x)", blocks)}),
            "block cube is used by nothing"));
  CHECK(!has(checked({rewrite("y = Relu(square(x))", "y = Abs(x)", blocks)}),
             "block square is used"));
  auto never = [](std::string text) {
    return has(checked({rewrite("y = Relu(Abs(x))", "y = x",
                                "where: [{id: c, sound: \"" + text + "\", why: \"w\"}]\n")}),
               "never decides");
  };
  CHECK(never("true"));
  CHECK(never("1 + 1 == 3"));
  CHECK(!never("rank(x) == 1"));
  CHECK(!never("device == cpu"));
}

TEST_CASE("the shipped rules have no errors") {
  auto set = load_rules(std::vector<std::string>{rules_dir()}, op_table(), {}, Limits{});
  REQUIRE(set.has_value());
  CheckReport report = check_rules(*set, op_table());
  for (const Error& e : report.errors) CHECK_MESSAGE(false, render(e));
  for (const RuleNote& n : report.notes) MESSAGE(n.rule->id, ": ", n.text);
}

TEST_CASE("the reference names every function and every key") {
  std::ifstream file(rules_dir() + "/README.md");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::set<std::string> words;
  std::string word;
  for (char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_')
      word += c;
    else
      words.insert(std::exchange(word, ""));
  }
  for (const VocabularyEntry& e : vocabulary())
    CHECK_MESSAGE(words.contains(std::string(e.name)), e.name);
  const auto schema = nlohmann::json::parse(rule_schema());
  for (const auto& [key, v] : schema["properties"].items()) CHECK_MESSAGE(words.contains(key), key);
}

TEST_CASE("the schema is JSON, names every key, and rules/schema.json is what it says") {
  std::ifstream file(rules_dir() + "/schema.json");
  std::string kept((std::istreambuf_iterator<char>(file)), {});
  CHECK_MESSAGE(kept == rule_schema(), "renew it: ferrule rules schema > rules/schema.json");
  auto schema = nlohmann::json::parse(rule_schema());
  CHECK(schema["properties"].contains("match"));
  CHECK(schema["properties"]["kind"]["enum"].size() == 6);
  CHECK(schema["additionalProperties"] == false);
  CHECK(schema["$defs"]["condition"]["properties"].contains("hint"));
  CHECK(schema["$defs"]["case"]["properties"].contains("rewire"));
}
