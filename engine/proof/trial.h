// One rule tried on one small graph: does it fire, what declines it, and what becomes of the graph?
#pragma once
#include "engine/proof/proof.h"

namespace ferrule {

/// A test's ONNX text as a graph.
Result<Graph> case_graph(std::string_view text, const ProofContext& ctx);

/// The graph of a rule's test: its own text, or a firing case, changed by its edits.
Result<Graph> test_graph(const Rule& rule, const RuleTest& t, const Target* target,
                         const ProofContext& ctx);

struct Trial {
  bool fired = false;
  Rejection nearest;             ///< not fired: what declined, of the attempt that came furthest
  Match match;                   ///< fired: the first match
  std::unique_ptr<Graph> after;  ///< fired: the graph when the rule came to rest
  bool unsaid = false;           ///< fired: views of these sizes, which are open, cannot be spelled
  std::string broken;            ///< fired: D7 or verify says the rule is wrong
  uint64_t met = 0;              ///< approach_rule: the conditions that `nearest` meets, as bits
};
/// Tries the rule at every node: `after` stays null.
Trial attempt_rule(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx);
/// The same without texts; what is nearest has met most conditions, in whatever order.
Trial approach_rule(const Rule& rule, const Graph& g, const Target* target,
                    const ProofContext& ctx);
/// The rest of an attempt that fired: lets the rule run to rest on a copy.
void run_to_rest(Trial& t, const Rule& rule, const Graph& g, const Target* target,
                 const ProofContext& ctx);
/// Both.
Trial try_rule(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx);

}  // namespace ferrule
