// What nearly fused, for `explain`: the refusals that the phases recorded, without those that came
// to nothing: a rule of the same kind fused the nodes later, or the rule only takes single nodes
// away. One entry for each rule and condition, with all nodes that it stood in the way of.
#pragma once
#include "engine/pipeline.h"

namespace ferrule::why {

struct NearMiss {
  const Rejection* first = nullptr;
  std::vector<std::string> nodes;  ///< of the model, where the rule would have begun
  int64_t bytes = 0;               ///< that these nodes write; sizes that are open are likely ones
};
/// `graph`: the plan's. What a flag would change first, then by bytes.
std::vector<NearMiss> near_misses(const Fused& fused, const Graph& graph);

}  // namespace ferrule::why
