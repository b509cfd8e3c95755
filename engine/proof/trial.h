// One rule tried on one small graph: does it fire, what declines it, and is the result the same?
#pragma once
#include "engine/proof/proof.h"

namespace ferrule {

/// A test's ONNX text as a graph.
Result<Graph> case_graph(std::string_view text, const ProofContext& ctx);

struct Trial {
  bool fired = false;
  Rejection nearest;                 ///< not fired: what declined, of the attempt that came furthest
  Match match;                       ///< fired: the first match
  std::unique_ptr<Graph> after;      ///< fired: the graph when the rule came to rest
  std::string broken;                ///< fired: D7 or verify says the rule is wrong
};
/// Tries the rule at every node: `after` stays null.
Trial attempt_rule(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx);
/// The rest of an attempt that fired: lets the rule run to rest on a copy.
void run_to_rest(Trial& t, const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx);
/// Both.
Trial try_rule(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx);

inline constexpr int kRounds = 8;   ///< inputs per comparison; enough for every special value to meet others

/// Runs both graphs on random inputs (several; open sizes of 2 and 1; special values where the numerics allow) and compares the
/// outputs by the rule's numerics class, within the tolerance of their type (or of `as`). "" when equal; nullopt:
/// `before` does not run.
std::optional<std::string> difference(const Graph& before, const Graph& after, const Rule& rule,
                                      const ProofContext& ctx, int rounds, DType as = DType::undefined);

/// Moved arithmetic on numbers that nearly cancel differs by more than any tolerance. f64 settles it: true where the same
/// graph in f64 gives results equal within f32's tolerance before and after, so that a difference was rounding and no mistake.
bool only_rounding(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx);

}  // namespace ferrule
