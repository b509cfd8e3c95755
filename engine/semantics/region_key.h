// By what the program of a region that was lowered before is found again (region_programs.h).
#pragma once
#include <span>
#include <string>
#include <vector>

#include "engine/semantics/semantics.h"

namespace ferrule {

/// What lower_region's program depends on, and the region's values in the order that they are met.
struct RegionKey {
  std::string text;  ///< empty: not to be kept
  std::vector<ValueId> values;
};
RegionKey region_key(const Semantics& ops, const Graph& g, std::span<const NodeId> nodes,
                     std::span<const ValueId> outputs);

}  // namespace ferrule
