// Groups whose contract is made of layers of others, each reading the result of the one before
// (`stages` in rules/contracts): a convolution and its pooling, a depthwise and a 1x1 convolution,
// layers between conversions from and to integers. A group's body is read as such stages; the CPU's
// kernel of window chains runs them strip by strip, codegen/program lowers those one by one that a
// target calls `staged`. It knows nothing of strips, threads or libraries.
#pragma once
#include "engine/base/applicable.h"
#include "engine/contract/epilogue.h"
#include "engine/graph/graph.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

struct GroupStage {
  NodeId node;
  bool conversion = false;   ///< between integers and floats; else a layer of its own contract
  std::vector<NodeId> tail;  ///< pointwise operators behind a layer
  ValueId result;            ///< behind the tail
  std::vector<PostOp> post_ops = {};  ///< the tail; an operand is an index into `operands`
  std::vector<ValueId> operands = {};
};

/// `nodes` (topological order). Not applicable, with the reason.
Applicable<std::vector<GroupStage>> read_stages(const Graph& g, std::span<const NodeId> nodes,
                                                const Semantics& ops);
/// Their tails as a library's epilogues.
Applicable<> read_epilogues(const Graph& g, std::vector<GroupStage>& stages, const Semantics& ops);

/// A conversion of one scale and zero point, constant, as a generated kernel.
LoweredRegion lower_conversion(const Graph& g, NodeId conversion);

}  // namespace ferrule
