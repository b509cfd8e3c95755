// Which inputs of a model are read as places in another tensor, and how many places there are: what
// random values for them must stay below.
#pragma once
#include <map>

#include "engine/graph/graph.h"

namespace ferrule {

/// Graph inputs whose elements operators read as indices or lengths, as they are or moved, with the
/// smallest size that they must stay below.
std::map<ValueId, Dim> index_inputs(const Graph& g);

}  // namespace ferrule
