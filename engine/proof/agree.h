// The numerics classes (rule.h), from the strongest promise to the weakest, and which of them two
// graphs keep: both are run on the same inputs, small and of all magnitudes, at the limits and
// special, open sizes at 0, 1, 2 and primes.
#pragma once
#include "engine/proof/proof.h"

namespace ferrule {

/// The class a rule claims.
Numerics numerics_of(const Rule& rule);
std::string_view name(Numerics n);

/// Inputs on which two graphs differ more than the claim allows.
struct Mismatch {
  std::string text;  ///< which element, what it is and what it should be
  std::vector<Tensor> inputs;
};
struct Agreement {
  int ran = 0;  ///< sets of inputs that the graph before takes
  Numerics needed =
      Numerics::exact;  ///< the strongest promise that was kept; beyond the claim: see `wrong`
  std::optional<Mismatch> wrong;
};
/// `seed`: which numbers; the same graphs and seed give the same answer.
Agreement agreement(const Graph& before, const Graph& after, Numerics claim,
                    const ProofContext& ctx, uint64_t seed);
/// The same for one set of inputs.
std::string disagreement(const Graph& before, const Graph& after, Numerics claim,
                         const ProofContext& ctx, const std::vector<Tensor>& inputs);

/// What `rule` claims of a graph and of what it has become (`after`). Of numerics `reduced`, what
/// holds for constants that the shorter type can hold; and no operator may get element types that
/// it does not take together.
Agreement agreement_of(const Rule& rule, const Graph& before, const Graph& after,
                       const Target* target, const ProofContext& ctx, uint64_t seed);

}  // namespace ferrule
