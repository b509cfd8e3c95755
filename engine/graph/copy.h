// Nodes and values of one graph added to another. Maps lead from values of the one to values of the
// other.
#pragma once
#include <map>
#include <span>

#include "engine/graph/graph.h"

namespace ferrule {

/// The value, if `map` does not have it, as one of `to`.
void add_value(const Graph& from, ValueId v, Graph& to, std::map<ValueId, ValueId>& map);
/// These nodes of `from` added to `to`; `map` has what they read and make.
void add_nodes(const Graph& from, std::span<const NodeId> nodes, Graph& to,
               std::map<ValueId, ValueId>& map);
/// All nodes of `from` added to `to`; `map` has its inputs and captures, and gets the rest.
void add_nodes(const Graph& from, Graph& to, std::map<ValueId, ValueId>& map);
/// A nested graph whose captures stand for other values outside.
std::unique_ptr<Graph> copied(const Graph& from, const std::map<ValueId, ValueId>& outside);

}  // namespace ferrule
