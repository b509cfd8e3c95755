// Whether rules do what they say: the tests inside a rule, and proofs of rewrites
// by search. A proof draws graphs from the rule's pattern (generate.h), changes its author's cases
// (edit.h), compares before and after in the interpreter wherever the rule fires (agree.h), and
// drops each sound condition in turn to find a graph that only it keeps from going wrong.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/rewrite/rewrite.h"

namespace ferrule {

struct ProofContext {
  const Semantics* ops = nullptr;
  const Target* target = nullptr;  ///< where a case names none
  const Limits* limits = nullptr;
  std::vector<std::string> rule_dirs;  ///< where the targets that cases name are found
  std::string cache;                   ///< folder for stamps; empty: none are kept
  std::vector<std::string> allowed;    ///< globs over the rewrites that may run unproved
  double seconds = 5;                  ///< of computing, for one rule's proof
};

struct CaseResult {
  std::string name;  ///< "fires 1", "holds 3 (D1, leak: t)"
  bool passed = false;
  std::string text;     ///< why not
  std::string outcome;  ///< the graph after it fired, or what declined it
  Place place;
};

/// How often something decided in the cases and mutations tried.
struct ConditionCount {
  std::string id;
  ConditionClass cls = ConditionClass::sound;
  int yes = 0, no = 0, unknown = 0;
};
struct RuleCoverage {
  int hits = 0;
  std::vector<ConditionCount> conditions;
  std::map<std::string, int> tags;                       ///< alternatives by tag
  std::map<std::string, std::pair<int, int>> optionals;  ///< optional names: present, absent
};

struct RuleTestReport {
  std::string rule;
  std::vector<CaseResult> cases;
  RuleCoverage coverage;
  bool passed() const {
    for (const CaseResult& c : cases)
      if (!c.passed) return false;
    return true;
  }
};
/// Every `fires` and `holds` of the rule. A firing case is also run before and after in the
/// interpreter.
RuleTestReport run_rule_tests(const Rule& rule, const ProofContext& ctx);

struct ConditionProof {
  std::string id;
  enum class State { killed, implied, open } state = State::open;
  std::string how;  ///< the mutation that needs it, or what was tried
};
std::string_view name(ConditionProof::State s);

/// What a rule promises of its results, from the strongest to the weakest; none:
/// nothing that is sold.
enum class Numerics : uint8_t { exact, signed_zero, reassociating, approximate, reduced, none };

struct RewriteProof {
  std::string rule;
  int graphs = 0, valid = 0, fired = 0;  ///< tried, those that are valid, those where it fired
  int compared = 0;                      ///< firings where both graphs ran
  int instances = 0;       ///< of those, distinct by structure, attributes, types and sizes
  bool exhausted = false;  ///< no further distinct ones came up
  Numerics needed = Numerics::exact;  ///< the strongest promise that all comparisons keep
  std::vector<std::string> wrong;  ///< firings with another result: what was changed, what differed
  std::string example;             ///< the smallest of them, as ONNX text with inputs
  std::vector<ConditionProof> conditions;  ///< the sound ones
  bool in_time = true;  ///< every graph that came up was compared, every condition tried
  bool holds() const {
    for (const ConditionProof& c : conditions)
      if (c.state == ConditionProof::State::open) return false;
    return wrong.empty();
  }
};
/// Rewrites only; other kinds give an empty proof that holds.
RewriteProof prove_rewrite(const Rule& rule, const ProofContext& ctx);

}  // namespace ferrule
