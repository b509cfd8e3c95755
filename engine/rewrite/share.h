// Common subexpressions and equal constants, which no rule can say: nodes that compute the same
// from the same values become one, constants of one element become one value, larger ones share
// their bytes. Nodes with nested graphs, random ones and quantizing ones (each reader has its own:
// they become part of its kernel) stay. Switched off like a rule, as `common_subexpressions`.
#pragma once
#include "engine/rewrite/rewrite.h"

namespace ferrule {

/// How many nodes went. Linear in the graph.
Result<int> share_common(const PassContext& ctx);

}  // namespace ferrule
