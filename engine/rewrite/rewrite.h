// Applies rewrite rules to a fixpoint within a phase: an index by root operator, a worklist, a decreasing
// measure; each hit is instantiated, inferred again, compared in type and shape (D7), and rolled back and
// reported if it differs. Weight arithmetic (replacement lines over constants) is folded in f64.
#pragma once
#include "engine/graph/journal.h"
#include "engine/match/match.h"

namespace ferrule {

class Settled;  // settled.h

struct PassContext {
  Graph* graph = nullptr;
  const RuleSet* rules = nullptr;
  const OpTable* ops = nullptr;
  const Target* target = nullptr;
  const Limits* limits = nullptr;
  const Cancel* cancel = nullptr;
  Journal* journal = nullptr;
  std::vector<Rejection>* near_misses = nullptr;  ///< filled when not null (explain, why)
  const std::vector<std::string>* ignore_profit = nullptr;
  bool fold = true;
  /// What was tried in vain in `origin`, which the graph is a copy of; null: nothing is known.
  const Settled* settled = nullptr;
  const Graph* origin = nullptr;
};

/// Runs the phase's rewrite rules to a fixpoint. errors: rule_loop naming the rules, rule_broken, limits.
Status rewrite_phase(const PassContext& ctx, std::string_view phase);
/// Instantiates one match in the graph (used by the proofs, too). Returns the new nodes.
Result<std::vector<NodeId>> apply_rewrite(Graph& g, const Match& m, const OpTable& ops, const Limits& limits);
/// Constant folding and dead code: not rules. Returns how many nodes were folded.
Result<int> fold_constants(const PassContext& ctx);

}  // namespace ferrule
