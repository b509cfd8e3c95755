// Contracts of roles: what their files may say, and what rules give them.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "engine/rule/contract.h"
#include "engine/rule/load.h"
#include "tests/unit/rule/kit.h"
#include "tests/unit/rule/same.h"

using namespace ferrule;
namespace fs = std::filesystem;

namespace {

constexpr const char* kContract = R"yaml(ferrule: 2
contract: attention
doc: "A test."
roles: {q: "[B..., Q, D]", add: "[Q, D]?"}
results: {y: "[B..., Q, D]"}
reads: {add: whole}
numbers: {scale: 1, flag: false}
formulas: [act]
requires:
  - {id: size, kernel: "D <= 8 and scale > 0", why: "{D}"}
means: |
  y = act(Mul(Add(q, (add ?? 0)), {scale}))
)yaml";
constexpr const char* kRule = R"yaml(ferrule: 2
id: r
doc: "A test."
kind: window
phase: anchors
match: |
  t = Add(x, bias)
  [m] y = Mul(t, c!)
contract: attention
roles: {q: "x[..., D, Q]", y: "y[..., D, Q]", act: "t -> y", scale: "value(c)", flag: "present(bias)"}
)yaml";

/// What loading says with `what` replaced in one of the two.
std::string loaded(std::string_view what = "", std::string_view by = "") {
  std::string contract = kContract, rule = kRule;
  for (std::string* text : {&contract, &rule})
    if (const size_t at = text->find(what); !what.empty() && at != text->npos) {
      text->replace(at, what.size(), by);
      what = "";
    }
  REQUIRE(what.empty());
  const fs::path dir = fs::temp_directory_path() / fmt::format("ferrule_contract_{}", ::getpid());
  fs::create_directories(dir / "contracts");
  std::ofstream(dir / "pipeline.yaml") << "ferrule: 2\nphases:\n  - {id: anchors}\n";
  std::ofstream(dir / "contracts/attention.yaml") << contract;
  for (const char* other : {"other", "ring"})
    std::ofstream(dir / fmt::format("contracts/{}.yaml", other)) << fmt::format(
        "ferrule: 2\ncontract: {}\ndoc: d\nroles: {{x: \"[A...]\"}}\nresults: {{y: \"[A...]\"}}\n"
        "stages: {{a: {}}}\n",
        other, other == std::string("ring") ? "attention" : "conversion");
  std::ofstream(dir / "r.yaml") << rule;
  const std::vector<std::string> dirs{dir.string()};
  const auto ops = load_semantics(dirs);
  const auto set = ops ? load_rules(dirs, *ops, {}, Limits{}) : fail(ops.error());
  fs::remove_all(dir);
  if (!set) return render(set.error());
  REQUIRE(set->rules.size() == 1);
  REQUIRE(set->rules[0]->kernel);
  const auto again = load_rule_text(print_rule(*set->rules[0]), "r.yaml", op_table(), Limits{});
  REQUIRE_MESSAGE(again.has_value(), (again ? "" : render(again.error())));
  CHECK(same(*again, *set->rules[0]));
  return "";
}

void refused(std::string_view what, std::string_view by, std::string_view message) {
  const std::string said = loaded(what, by);
  CHECK_MESSAGE(said.find(message) != std::string::npos, what, " -> ", by, ": ", said);
}

}  // namespace

TEST_CASE("a rule gives a contract its roles") {
  CHECK(loaded() == "");
  CHECK(loaded("q: \"x[..., D, Q]\"", "q: x") == "");
  CHECK(loaded("x[..., D, Q]\", y", "x[..., D, Q]\", add: bias, y") == "");
  CHECK(loaded("[Q, D]?", "[Q, D]!?") == "");
  CHECK(loaded("x[..., D, Q]", "x[..., D, 1, Q]") == "");
  CHECK(loaded("x[..., D, Q]", "x[..., D, Q] ?? t[..., Q, D]") == "");
  CHECK(loaded("act: \"t -> y\", ", "") == "");
}

TEST_CASE("what a rule with roles cannot say") {
  refused("flag: \"present", "flug: \"present", "has no role flug");
  refused("q: \"x[", "q: \"z[", "\"z\" is no value of the pattern");
  refused("q: \"x[..., D, Q]\"", "q: \"rank(x)\"", "role q of attention is a tensor [..., Q, D]");
  refused("x[..., D, Q]", "x[..., D, K]", "gives others");
  refused("x[..., D, Q]", "x[D, Q]", "gives others");
  refused("scale: \"value(c)\"", "scale: c", "role scale of attention is a number");
  refused("scale: \"value(c)\"", "scale: \"value(d)\"", "d is not bound");
  refused("q: \"x[..., D, Q]\", ", "", "role q [..., Q, D] of attention is not given");
  refused(
      "roles: {q: \"x[..., D, Q]\", y: \"y[..., D, Q]\", act: \"t -> y\", scale: \"value(c)\", "
      "flag: "
      "\"present(bias)\"}\n",
      "", "attention is a contract of roles");
  refused("contract: attention\nroles", "contract: pool\nroles", "there is no contract pool");
  refused("kind: window", "kind: region", "has no roles");
  refused("t -> y", "t -> z", "\"z\" is no value of the pattern");
  refused("t -> y", "value(c)", "role act of attention is a formula");
  refused("value(c)", "t -> y", "role scale of attention is a number");
  refused("x[..., D, Q]", "x[..., D, Q] ?? z[..., Q, D]", "\"z[..., Q, D]\" is no value");
  refused("x[..., D, Q]", "x[..., D, Q, ...]", "gives others");
}

TEST_CASE("a rule promises no more than its contract's kernels keep") {
  CHECK(loaded("means: |", "numerics: exact\nmeans: |") == "");
  refused("means: |", "numerics: close\nmeans: |", "\"close\" is none of exact, signed_zero");
  const std::string contract = std::string(kContract) + "numerics: reassociating\n";
  const std::string said = loaded(kContract, contract);
  CHECK_MESSAGE(said.find("numerics: exact promises more than the kernels of attention keep: "
                          "reassociating") != said.npos,
                said);
  CHECK(said.find("hint: write numerics: reassociating") != said.npos);
  const std::string text = loaded("contract: attention\nroles: {q: \"x[",
                                  "contract: attention\nnumerics: reassociating\nroles: {q: \"x[");
  CHECK_MESSAGE(text == "", text);
}

TEST_CASE("a contract that replaces one of an earlier folder is noted") {
  const fs::path dir = fs::temp_directory_path() / fmt::format("ferrule_replaces_{}", ::getpid());
  fs::create_directories(dir / "contracts");
  fs::copy_file(fs::path(rules_dir()) / "contracts/view.yaml", dir / "contracts/view.yaml",
                fs::copy_options::overwrite_existing);
  const std::vector<std::string> dirs{rules_dir(), dir.string()};
  const auto ops = load_semantics(dirs);
  fs::remove_all(dir);
  REQUIRE_MESSAGE(ops.has_value(), (ops ? "" : render(ops.error())));
  const CheckReport report = check_rules(RuleSet{}, *ops);
  REQUIRE(report.notes.size() == 1);
  CHECK(report.notes[0].rule == nullptr);
  CHECK(report.notes[0].text ==
        fmt::format("contract view: {} replaces {}", (dir / "contracts/view.yaml").string(),
                    (fs::path(rules_dir()) / "contracts/view.yaml").string()));
  CHECK(check_rules(RuleSet{}, op_table()).notes.empty());
}

TEST_CASE("what a contract cannot say") {
  refused("contract: attention\ndoc", "contract: atention\ndoc", "the file is called attention");
  refused("ferrule: 2\ncontract", "ferrule: 3\ncontract", "reads versions 1 and 2");
  refused("means: |", "tail: \"@pointwise\"\nmeans: |", "a tail follows the node");
  refused("[B..., Q, D]\"", "B, Q\"", "is no list of axes");
  refused("[B..., Q, D]\"", "[Q, B..., D]\"", "is no list of axes");
  refused("scale: 1", "q: 1", "two roles are called q");
  refused("[act]", "[q]", "two roles are called q");
  refused("{add: whole}", "{mask: whole}", "no role is called mask");
  refused("{add: whole}", "{add: wide}", "wide");
  refused("D <= 8", "E <= 8", "E is not bound");
  refused("kernel: \"D", "profit: \"D", "profit conditions stand in rules");
  refused("y = act(", "z = act(", "no line makes y");
  refused("act(Mul(", "act(Mull(", "operator Mull is none of ONNX's");
  refused("act(Mul(", "group.gemm(Mul(", "group.gemm is a group, and means is made of operators");
  refused("means: |", "meaning: |", "meaning");
}

TEST_CASE("single nodes that a contract stands for") {
  const std::string before = "formulas: [act]";
  auto with = [&](const std::string& lines) { return before + "\nstands_for: [" + lines + "]"; };
  CHECK(loaded(before, with("\"[n] y = {Det|my.own::Other}<...>(q, add?)\"")) == "");
  refused(before, with("\"y = Mine<...>(add?)\""), "nothing is role q");
  refused(before, with("\"z = Mine<...>(q)\""), "nothing is role y");
  for (const char* line : {"y = Mine(q)", "y = Mine<axis=1, ...>(q)", "y = @unary<...>(q)",
                           "y = Mine<...>(q[A])", "y = Mine<...>(Mine<...>(q))"})
    refused(before, with(fmt::format("\"{}\"", line)), "a contract stands for single nodes");
  refused(before, with("\"y = Mine<...>(q)\", \"y = Mine<...>(q, add)\""),
          "Mine is a single node of attention already");
  refused(before, with("\"y = Dett<...>(q)\""), "did you mean \"Det\"?");
  refused(before, with("\"y = Dett<...>(q)\""), "operator Dett is none of ONNX's");
  refused("means: |\n  y = act(Mul(Add(q, (add ?? 0)), {scale}))\n",
          "stands_for: [\"y = Det<...>(q)\"]\n", "attention is no contract of roles");
  refused(before, with("\"[n] y = Mine<...>(q)\"") + "\ntail: \"@row\"", "@row");
}

TEST_CASE("contracts of stages and of formulas") {
  const std::string means = "means: |\n  y = act(Mul(Add(q, (add ?? 0)), {scale}))\n",
                    roles = "{q: \"[B..., Q, D]\", add: \"[Q, D]?\"}",
                    rest = "reads: {add: whole}\n", asks = "kernel: \"D <= 8 and scale > 0\"";
  // The rule gives roles, which such contracts do not have: the last thing that is said.
  auto said = [&](const std::string& more, const std::string& condition,
                  const std::string& own = "{q: \"[B..., Q, D]\"}") {
    std::string text = kContract;
    for (const auto& [what, by] : {std::pair(means, more),
                                   {roles, own},
                                   {rest, std::string()},
                                   {asks, "kernel: \"" + condition + "\""}})
      text.replace(text.find(what), what.size(), by);
    return loaded(kContract, text);
  };
  auto has = [](const std::string& text, std::string_view part) {
    INFO(text);
    CHECK(text.find(part) != text.npos);
  };
  const std::string none = "attention is no contract of roles",
                    stages = "stages: {a: other, b: conversion}\n",
                    nodes = "nodes: [\"@row\", \"@pointwise\"]\ngenerated: rows\n";
  has(said(stages, "rank(input(b, 0)) == D and count(operands) > 0"), none);
  has(said("stages: {a...: [other]}\n", "all(n in a: const(input(n, 1)))"), none);
  has(said(stages + "let: {e: \"rank(q)\"}\n", "e == 2"), none);
  has(said("stages: {a: atention}\n", "D <= 8"), "there is no contract atention");
  has(said("stages: {a: other, b...: [conversion]}\n", "D <= 8"), "single ones in their order");
  has(said("stages: {q: other}\n", "D <= 8"), "two roles are called q");
  has(said("stages: {a: other, b: attention}\n", "D <= 8"), "attention is a stage of itself");
  has(said("stages: {a: ring, b: conversion}\n", "D <= 8"),
      "contracts are stages of each other: attention -> ring -> attention");
  has(said(stages, "D <= 8", roles), "stages have one role");
  has(said(stages + "let: {a: \"1\"}\n", "D <= 8"), "two roles are called a");
  const std::string of_nodes =
      "ferrule: 2\ncontract: attention\ndoc: d\nrequires: [{id: a, kernel: "
      "\"tensors <= 8 and all(t in types: t == f32)\", why: w}]\n" +
      nodes;
  has(loaded(kContract, of_nodes), none);
  has(said(nodes, "D <= 8"), "a contract of nodes has no roles");
  has(loaded(kContract, of_nodes + "means: \"y = Relu(x)\"\n"), "a contract of nodes has no means");
  has(said("generated: rows\n", "D <= 8"), "generated says how the kernel of `nodes` is written");
  has(said("nodes: [\"@unary\"]\ngenerated: rows\n", "tensors <= 8"), "nodes of @unary");
  has(said("nodes: [\"@row\"]\n", "tensors <= 8"), "generated");
  has(said("nodes: [\"@row\"]\ngenerated: loops\n", "tensors <= 8"), "boxes, rows");
  has(said(stages, "tensors <= 8"), "tensors is not bound");
  has(said(stages, "has_kernel('atention', dtype(q))"), "there is no contract atention");
}
