// What is read when a rule declines: every rule's `why:` texts, each on a case of the rule's own
// tests where its condition does not hold, and the answer that `why` leads with on these cases. A
// text is read by itself, by somebody who has never seen a rule.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <regex>

#include "engine/pipeline.h"
#include "engine/proof/trial.h"
#include "engine/why/why.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

/// FERRULE_TEST_REASONS=1 prints them all, for a person to read.
bool printing() { return std::getenv("FERRULE_TEST_REASONS") != nullptr; }

std::shared_ptr<const Knowledge> knowledge(const std::string& target) {
  static std::map<std::string, std::shared_ptr<const Knowledge>> known;
  auto& k = known[target];
  if (!k) {
    EngineOptions o;
    o.rule_dirs = {rules_dir()};
    o.target = target;
    o.allow_unproven = {"*"};
    o.cache = "";
    k = must(load_knowledge(o));
  }
  return k;
}

constexpr const char* kTarget = "cpu-avx512";

/// A test of a rule that declines, as a graph.
struct Case {
  const Rule* rule;
  const RuleTest* test;
  std::shared_ptr<const Knowledge> known;
  Target target;
  Graph graph;
};

template <class Use>
void each_case(const Use& use) {
  for (const auto& rule : knowledge(kTarget)->rules.rules)
    for (const RuleTest& t : rule->tests) {
      if (t.fires) continue;
      auto known = knowledge(t.target.empty() ? kTarget : t.target);
      Target target = known->target;
      if (!t.profile.empty()) must(use_profile(target, t.profile));
      ProofContext ctx;
      ctx.ops = &known->ops;
      ctx.target = &target;
      ctx.limits = &limits();
      ctx.rule_dirs = {rules_dir()};
      Graph g = must(test_graph(*rule, t, &target, ctx));
      Case c{rule.get(), &t, known, target, std::move(g)};
      use(c, ctx);
    }
}

/// What a reader stumbles over; empty: nothing.
std::string stumbles(const std::string& text) {
  static const std::regex kBad[] = {
      std::regex(R"(\bunknown: |unknown:\s*$)"),     // no word of what is unknown
      std::regex(R"(\?|\babsent\b)"),                // an empty slot
      std::regex(R"(  |\( ?\)|, ,|: *$|; *$)"),      // … or what is left around one
      std::regex(R"(\b(?!max|floordiv)[a-z_]+\()"),  // a function of the rules' language
      std::regex(R"(= (true|false)\b|@|group\.|\bnode::)"),
      std::regex(R"(\b(\w+) \1\b)"),  // a word twice
      std::regex(R"(\b1 (groups|axes|elements|values|nodes|channels|filters|bytes|scales)\b)"),
  };
  for (const std::regex& r : kBad) {
    std::smatch m;
    if (std::regex_search(text, m, r)) return m.str();
  }
  return text.empty() ? "(nothing is said)" : "";
}

}  // namespace

TEST_CASE("every reason of a rule can be read by itself") {
  std::map<std::pair<std::string, std::string>, int> seen;  // rule, condition -> cases
  each_case([&](const Case& c, const ProofContext& ctx) {
    const Trial t = attempt_rule(*c.rule, c.graph, &c.target, ctx);
    if (t.fired) return;
    ++seen[{c.rule->id, t.nearest.id}];
    const std::string bad = stumbles(t.nearest.why);
    if (printing())
      std::cout << (bad.empty() ? "    " : "BAD ") << c.rule->id << " [" << t.nearest.id << "] "
                << t.nearest.why << "\n";
    CHECK_MESSAGE(bad.empty(), c.rule->id << " (" << t.nearest.id << "): \"" << t.nearest.why
                                          << "\" has \"" << bad << "\"");
  });
  for (const auto& rule : knowledge(kTarget)->rules.rules)
    for (const Condition& c : rule->where)
      if (c.expr && c.id != kOff && !seen.contains({rule->id, c.id}) && printing())
        std::cout << "no case: " << rule->id << "." << c.id << "\n";
}

TEST_CASE("an answer leads with the rule that its case is about") {
  std::map<std::string, int> led;
  each_case([&](const Case& c, const ProofContext& ctx) {
    const Trial t = attempt_rule(*c.rule, c.graph, &c.target, ctx);
    if (t.fired || c.rule->kind == RuleKind::rewrite || !c.test->profile.empty()) return;
    const NodeId root = t.nearest.root;
    if (!root) return;
    EngineOptions o;
    o.rule_dirs = {rules_dir()};
    o.target = c.target.name;
    o.cache = "";
    Imported model;
    model.graph = std::move(*c.graph.clone());
    const std::string name = model.graph.node(root).name;
    auto observed = why::observe(std::move(model), c.known, o);
    if (!observed) return;
    why::Inquiry inquiry(*observed);
    auto a = inquiry.node(name, "", 4);
    if (!a) return;
    std::string lead = a->considered.empty() ? "-" : a->considered[0].rule->id;
    if (!a->considered.empty()) lead += " [" + a->considered[0].rejection.id + "]";
    const std::string want = c.rule->id + " [" + t.nearest.id + "]";
    // Another reader is one that leaves the graph, where it was an Identity.
    const bool right = lead == want || (t.nearest.id == "D1" && lead == c.rule->id + " [D2]");
    ++led[right ? "right" : "other"];
    if (printing())
      std::cout << (right ? "      " : "OTHER ") << want << " at " << name << " -> " << lead
                << "\n        " << a->outcome.text << "\n        "
                << (a->considered.empty() ? a->otherwise : why::reason(a->considered[0])) << "\n";
  });
  // The others lead with another rule, which the case's change keeps from its nodes as well.
  const int all = led["right"] + led["other"];
  CHECK(all > 200);
  CHECK_MESSAGE(led["right"] * 100 >= 80 * all, led["right"] << " of " << all);
}
