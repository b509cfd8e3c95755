// What a group means, as a graph: `means` of its contract over its roles. A rule whose groups have
// roles is right if this is what the matched nodes compute.
#pragma once
#include "engine/graph/graph.h"
#include "engine/rule/contract.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// With the inputs and outputs of the group's body.  errors: rewrite_declined (a size that a view
/// needs is not known), and what a replacement's nodes give.
Result<std::shared_ptr<const Graph>> meaning(const Node& group, const Contract& contract,
                                             const Semantics& ops, const Limits& limits);

}  // namespace ferrule
