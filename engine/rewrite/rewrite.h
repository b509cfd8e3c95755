// Applies rewrite rules to a fixpoint within a phase: an index by root operator, a worklist, a
// decreasing measure; each hit is instantiated, inferred again, compared in type and shape (D7),
// and rolled back and reported if it differs. Weight arithmetic (replacement lines over constants)
// is folded in f64.
#pragma once
#include "engine/rewrite/pass.h"

namespace ferrule {

struct OriginFailures;  // known_failures.h

/// Runs the phase's rewrite rules to a fixpoint. `skip`: what need not be tried; null: nothing is
/// known. errors: rule_loop naming the rules, rule_broken, limits.
Status rewrite_phase(const PhaseContext& ctx, std::string_view phase,
                     const OriginFailures* skip = nullptr);
/// Instantiates one match in the graph (used by the proofs, too). Returns the new nodes.
Result<std::vector<NodeId>> apply_rewrite(Graph& g, const Match& m, const Semantics& ops,
                                          const Limits& limits);
/// Constant folding and dead code: not rules. `packed`: weights of products that are scaled block
/// by block stay as they are. Returns how many nodes were folded.
Result<int> fold_constants(const PassContext& ctx, bool packed = false);

}  // namespace ferrule
