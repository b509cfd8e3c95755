// Proof of the rules that form groups: for each firing case, what the backend computes for the fused graph is
// compared with what the interpreter computes for the unfused one, on random inputs.
#pragma once
#include "engine/pipeline.h"
#include "engine/proof/proof.h"

namespace ferrule {

struct GroupProof {
  int instances = 0;               ///< fused graphs that were run
  std::vector<std::string> wrong;  ///< what differed
  bool holds() const { return wrong.empty(); }
};

/// `knowledge`: for the device that runs them. `backend`: as for --backend. Rewrites give an empty proof that holds.
GroupProof prove_group(const Rule& rule, const std::shared_ptr<const Knowledge>& knowledge, const ProofContext& context,
                       const std::string& backend);

}  // namespace ferrule
