// The nodes of a group as a graph of their own. It knows neither rules nor contracts.
#pragma once
#include <span>

#include "engine/graph/graph.h"

namespace ferrule {

/// The nodes as a graph of their own, groups among them flattened. Every value read from outside is
/// an input (constants keep their tensor), every value that leaves an output.
struct Body {
  Graph graph;
  std::vector<ValueId> inputs, outputs;  ///< values of the outer graph, in the body's order
  std::vector<std::string> origins;
  std::vector<NodeId> nodes;  ///< of the outer graph
};
/// The values of the nodes that another node reads or the model gives out, in the nodes' order.
std::vector<ValueId> leaving(const Graph& g, std::span<const NodeId> nodes);
Body make_body(const Graph& g, std::span<const NodeId> nodes);

}  // namespace ferrule
