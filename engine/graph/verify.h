// Checks every invariant of a Graph (SSA, producers and uses agree, acyclic, captures right, groups
// agree with their bodies, types of outputs known). Run after import and after every pass; a
// failure after a pass is our bug or the rule's, never the user's.
#pragma once
#include "engine/graph/graph.h"

namespace ferrule {

/// errors: model_invalid naming node or value and the broken invariant.
Status verify(const Graph& g);

}  // namespace ferrule
