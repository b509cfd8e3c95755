// Graphs nested in control flow as graphs of their own, in which every size is known: so they are
// fused and planned once, and run step by step.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/base/applicable.h"
#include "engine/graph/graph.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

struct NestedGraph {
  std::string attribute;          ///< of the node: "body"
  Graph graph;                    ///< inputs: the nested graph's, then what it captures
  std::vector<ValueId> captured;  ///< outside, in that order
  std::map<NodeId, std::vector<NestedGraph>> nested;  ///< of its own nodes
};
/// By node.
using NestedGraphs = std::map<NodeId, std::vector<NestedGraph>>;

/// Copies of the graphs nested in a node of contract scan, loop or branch, their types inferred;
/// constants that they capture are theirs. Not applicable where a size is not known or changes from
/// step to step.
Applicable<std::vector<NestedGraph>> graphs_of_their_own(const Semantics& ops, const Graph& g,
                                                         const Node& n, std::string_view contract);
/// Whether all sizes of the graph's values are known.
bool sizes_known(const Graph& g);

}  // namespace ferrule
