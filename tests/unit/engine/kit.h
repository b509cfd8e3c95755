// What tests of matching, rewriting and grouping share: the shipped operators, graphs and rules
// from text, and running a graph in the interpreter.
#pragma once
#include <doctest/doctest.h>

#include <array>

#include "engine/base/diagnostics.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/group/group.h"
#include "engine/interpreter/interpreter.h"
#include "engine/match/match_rule.h"
#include "engine/onnx/import.h"
#include "engine/onnx/infer_onnx.h"
#include "engine/plan/match_any.h"
#include "engine/rewrite/rewrite.h"
#include "engine/rule/load.h"
#include "engine/semantics/semantics.h"
#include "tests/support/paths.h"

namespace kit {

using namespace ferrule;

template <class T>
T must(Result<T> r) {
  if (!r) FAIL(render(r.error()));
  return std::move(*r);
}
inline void must(Status s) {
  if (!s) FAIL(render(s.error()));
}

inline const Semantics& ops() {
  static const Semantics table = [] {
    std::array<std::string, 1> dirs{rules_dir()};
    return must(load_semantics(dirs, infer_by_schema));
  }();
  return table;
}

inline const Limits& limits() {
  static const Limits l;
  return l;
}

inline Graph graph(std::string_view text) {
  ImportOptions options;
  options.ops = &ops();
  return std::move(must(import_text(text, options)).graph);
}

/// A rule from its essential lines; header keys that every rule needs are added.
inline std::shared_ptr<const Rule> rule(const std::string& id, const std::string& body) {
  std::string text = "ferrule: 1\nid: " + id + "\ndoc: A rule of a test.\nsource: [test]\n" + body;
  return std::make_shared<const Rule>(must(load_rule_text(text, id + ".yaml", ops(), limits())));
}

/// The body of a rewrite rule, from the lines of its pattern and its replacement.
inline std::string rewrite_text(const std::string& numerics, const std::string& match,
                                const std::string& rewrite, const std::string& more = "") {
  auto block = [](const std::string& key, const std::string& text) {
    std::string out = key + ": |\n";
    for (size_t i = 0; i < text.size();) {
      size_t end = std::min(text.find('\n', i), text.size());
      out += "  " + text.substr(i, end - i) + "\n";
      i = end + 1;
    }
    return out;
  };
  return "kind: rewrite\nphase: fold\nnumerics: " + numerics + "\n" + block("match", match) + more +
         block("rewrite", rewrite);
}

inline Target& target() {
  static Target t = [] {
    Target t;
    t.name = "test";
    t.device = "cpu";
    ContractFacts all;
    all.types = {DType::f32};
    all.max_epilogue_ops = 16;
    all.max_operands = 4;
    all.generated_tail = true;
    for (const char* c : {"conv", "deconv", "gemm", "pointwise", "pool", "conv_pool", "row_reduce"})
      t.contracts[c] = all;
    t.l2_bytes = 1 << 20;
    return t;
  }();
  return t;
}

inline MatchContext context(const Graph& g) { return {g, ops(), limits(), &target()}; }

/// The node that makes a value.
inline NodeId maker(const Graph& g, std::string_view value) {
  ValueId v = g.find_value(value);
  REQUIRE(v);
  return g.value(v).producer;
}

inline Attempt attempt(const Rule& r, const Graph& g, std::string_view value) {
  return match_any(r, maker(g, value), context(g));
}
/// "" if it matches, else the id that declined.
inline std::string declined(const Rule& r, const Graph& g, std::string_view value) {
  Attempt a = attempt(r, g, value);
  auto* x = std::get_if<Rejection>(&a);
  return x ? x->id : "";
}
inline Rejection rejection(const Rule& r, const Graph& g, std::string_view value) {
  Attempt a = attempt(r, g, value);
  REQUIRE(std::holds_alternative<Rejection>(a));
  return std::get<Rejection>(a);
}

inline RuleSet set_of(std::vector<std::shared_ptr<const Rule>> rules) {
  RuleSet s;
  for (const auto& r : rules) {
    bool known = false;
    for (const Phase& p : s.phases) known |= p.id == r->phase;
    if (!known) s.phases.push_back({r->phase, "", true, {}});
  }
  s.rules = std::move(rules);
  return s;
}

struct Passed {
  Journal journal;
  std::vector<Rejection> misses;
};

/// What a phase of these rules on the graph works with.
inline PhaseContext pass_context(Graph& g, const RuleSet& rules, Journal& journal) {
  return {{g, ops(), limits(), journal}, rules, &target()};
}

/// Rewrites, folds and groups in every phase of the set.
inline Result<Passed> pass(Graph& g, const RuleSet& rules) {
  Passed out;
  PhaseContext ctx = pass_context(g, rules, out.journal);
  ctx.near_misses = &out.misses;
  for (const Phase& p : rules.phases) {
    FERRULE_TRY(rewrite_phase(ctx, p.id));
    FERRULE_TRY(group_phase(ctx, p.id));
    FERRULE_TRY(verify(g));
  }
  g.remove_dead();
  FERRULE_TRY(verify(g));
  for (const Rejection& r : out.misses)
    if (std::getenv("FERRULE_TEST_MISSES")) MESSAGE(r.rule->id << " " << r.id << ": " << r.why);
  return out;
}

/// Operators in order, groups with their body in parentheses: "Conv Relu", "group.conv(Conv Relu)".
inline std::string ops_of(const Graph& g) {
  std::string out;
  for (NodeId n : g.order()) {
    out += (out.empty() ? "" : " ") + g.node(n).op.text();
    if (g.node(n).body) out += "(" + ops_of(*g.node(n).body) + ")";
  }
  return out;
}

inline std::vector<Tensor> run(const Graph& g, const std::vector<Tensor>& inputs) {
  InterpreterOptions o;
  o.ops = &ops();
  o.limits = &limits();
  return must(interpret(g, inputs, o));
}

}  // namespace kit
