// Contracts whose files stand for single nodes (rules/contracts: convolutions, products, poolings,
// copies, …), and the tail behind such a node. Contracts that are made of regions or of all their
// nodes together are accepts.h's, which asks this one, too.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "engine/base/accept.h"
#include "engine/base/applicable.h"
#include "engine/graph/graph.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"

namespace ferrule {

/// accepts.h's `accepts` for them.
Accept accepts_anchored(const Graph& g, std::span<const NodeId> nodes, NodeId anchor,
                        std::string_view contract, const Target& target, const Semantics& ops,
                        bool explain = true, const Graph* whole = nullptr);

/// Why something is no part of a group, of what a lowering says: each of its operators alone may
/// well run here.
std::string not_of_group(const Refusal& r);
/// "Sin, Mul": what the nodes of a tail compute, in messages.
std::string operators_of(const Graph& g, std::span<const NodeId> tail);

}  // namespace ferrule
