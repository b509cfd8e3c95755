// What decides sizes while a model runs: the shape of a Reshape, the bounds of a Range, the
// condition of an If.
#pragma once
#include <vector>

#include "engine/graph/graph.h"

namespace ferrule {

/// The inputs whose elements decide how large the node's results are, or which of its graphs runs:
/// with these known, inference or folding finds the sizes.
std::vector<ValueId> deciding_inputs(const Node& n);

}  // namespace ferrule
