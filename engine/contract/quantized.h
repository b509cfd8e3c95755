// Operators between DequantizeLinear and QuantizeLinear, taken as one group (catalogue Q01): what
// kernels of integers would compute. Until there are such kernels the group is executed in float:
// integers become floats, convolutions, products and poolings run with their tails as they would on
// their own, results are rounded back. This reads a group as a chain of such steps and gives the
// conversions as scalar programs; codegen/program/lower makes launches of them, the quantized
// contract accepts what this can read. One scale and zero point for a whole tensor, constant.
#pragma once
#include "engine/base/applicable.h"
#include "engine/graph/graph.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

struct QuantizedStep {
  NodeId node;  ///< a conversion, or an anchor, whose first input is the step before
  bool conversion = false;
  std::vector<NodeId> tail;  ///< pointwise operators behind an anchor
  NodeId last() const { return tail.empty() ? node : tail.back(); }
};

/// Reads `nodes` (topological order): a DequantizeLinear first. Not applicable, with the
/// reason.
Applicable<std::vector<QuantizedStep>> read_quantized(const Graph& g, std::span<const NodeId> nodes,
                                                      const Semantics& ops);

/// A conversion as a generated kernel of one input and one output.
LoweredRegion lower_conversion(const Graph& g, NodeId conversion);

}  // namespace ferrule
