// Contracts of one operator and the tail behind it: convolutions, products, poolings, resizing,
// batch norms, copies and views. One row per contract in anchored.cpp: its operators, and what it
// asks of them. Contracts that are made of regions or of all their nodes together are
// contracts.h's, which asks this one, too.
#pragma once
#include <span>
#include <string_view>

#include "engine/contract/accept.h"
#include "engine/graph/graph.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"

namespace ferrule {

/// The contract that has the node's operator among its anchors; empty: none.
std::string_view anchored_contract(const Node& n);
/// The operators that layers of the contract are anchored in; none for regions and what is made of
/// all its nodes.
std::span<const std::string_view> anchors_of(std::string_view contract);

/// contracts.h's `accepts` for them.
Accept accepts_anchored(const Graph& g, std::span<const NodeId> nodes, NodeId anchor,
                        std::string_view contract, const Target& target, const Semantics& ops);

/// Whatever slides a window: of rank 3 to 5, with elements to compute and to compute them from.
Accept windowed(const Graph& g, const Node& n);
/// Whether the target has the contract's kernel for the element type.
Accept check_type(const ContractFacts& facts, const Type& t, std::string_view contract,
                  const Target& target);

}  // namespace ferrule
