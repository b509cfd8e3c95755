// Conditions that ask for the device: each of them is seen to decide, between two of the shipped
// targets, whether its rule fires; those that ask for a compute capability at exactly the one that
// they name.
#include <algorithm>
#include <regex>

#include "engine/proof/proof.h"
#include "engine/rule/load_rule.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/shipped.h"

using namespace kit;

namespace {

const std::vector<std::string> kRuleDirs{rules_dir()};

bool asks(const Condition& c, std::string_view fact) {
  if (!c.expr) return false;  // the contract's
  const std::vector<std::string> all = names(*c.expr);
  return std::ranges::find(all, fact) != all.end();
}

/// The case with its own model, where it is one of another's on another target; the edited ones
/// stay.
RuleTest resolved(const Rule& rule, RuleTest t) {
  if (!t.model.empty()) return t;
  for (const RuleTest& o : rule.tests)
    if (o.fires && !o.model.empty() && (t.of.empty() || o.name == t.of)) {
      t.model = o.model;
      return t;
    }
  return t;
}

/// Whether nothing but the condition keeps the rule from the case's graph on `target`.
bool declines(const Rule& rule, RuleTest t, const std::string& target) {
  static const Limits limits;
  ProofContext context;
  context.ops = &knowledge().ops;
  context.target = &knowledge().target;
  context.limits = &limits;
  context.rule_dirs = kRuleDirs;
  Rule one = rule;
  t.target = target;
  one.tests = {std::move(t)};
  return run_rule_tests(one, context).passed();
}

}  // namespace

TEST_CASE("conditions on the device decide by target") {
  const std::vector<std::string> targets = target_names(kRuleDirs);
  int found = 0, by_capability = 0;
  for (const auto& rule : knowledge().rules.rules)
    for (const auto* list : {&rule->where, &rule->region.where})
      for (const Condition& c : *list) {
        const bool capability = asks(c, "cc");
        if (!capability && !asks(c, "device")) continue;
        ++found, by_capability += capability;
        const std::string what = rule->id + "." + c.id;
        // One case in which it decides is enough; a rule has several for the other facts that it
        // asks for.
        std::vector<std::string> here, elsewhere;
        for (const RuleTest& t : rule->tests) {
          if (t.fires || t.declined_by != c.id || !t.edits.empty() ||
              (!here.empty() && !elsewhere.empty()))
            continue;
          here.clear(), elsewhere.clear();
          for (const std::string& target : targets)
            (declines(*rule, resolved(*rule, t), target) ? here : elsewhere).push_back(target);
        }
        CHECK_MESSAGE(!here.empty(), what, " declines nowhere");
        CHECK_MESSAGE(!elsewhere.empty(), what, " declines on every target");
        if (!capability) continue;
        std::smatch least;
        REQUIRE_MESSAGE(std::regex_search(c.text, least, std::regex("cc >= ([0-9a-z_.]+)")),
                        c.text);
        const Param* named = find_param(*rule, least[1].str());
        const double from = std::stod(named ? named->text : least[1].str());
        for (const std::string& target : targets) {
          const Target t = must(load_target(kRuleDirs, target));
          const bool only_gpus = c.text.find("device == gpu and") != std::string::npos;
          const bool old = t.device == "gpu" ? t.cc < from : only_gpus;
          CHECK_MESSAGE((std::ranges::find(here, target) != here.end()) == old, what, " on ",
                        target);
        }
      }
  CHECK(found >= 19);
  CHECK(by_capability >= 9);  // Gelu from 7.5, INT8 separable from 7.2, bf16 from 8.0
}

TEST_CASE("kernels of 8-bit floats are for targets from 8.9 on, of bf16 from 8.0 on") {
  for (const std::string& name : target_names(kRuleDirs)) {
    const Target t = must(load_target(kRuleDirs, name));
    if (t.device != "gpu") continue;
    auto takes = [&](DType type) {
      const auto& types = t.contracts.at("pointwise").types;
      return std::ranges::find(types, type) != types.end();
    };
    CHECK_MESSAGE(takes(DType::bf16) == (t.cc >= 8.0), name);
    CHECK_MESSAGE(takes(DType::f8e4m3fn) == (t.cc >= 8.9), name);
    CHECK_MESSAGE(takes(DType::f8e5m2) == (t.cc >= 8.9), name);
  }
}
