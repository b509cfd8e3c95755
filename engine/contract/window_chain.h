// Chains of two operators that slide windows over an image, the second over the first's result: a
// convolution and its pooling, a depthwise and a 1x1 convolution. What such a group computes, as
// stages of an anchor and its epilogue; the contracts conv_pool and depthwise_pointwise accept what
// this can read, and the CPU's kernel runs it strip by strip. It knows nothing of strips, threads
// or libraries.
#pragma once
#include "engine/base/accept.h"
#include "engine/base/applicable.h"
#include "engine/contract/epilogue.h"
#include "engine/graph/graph.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"

namespace ferrule {

struct WindowStage {
  NodeId anchor;
  std::vector<NodeId> tail;
  ValueId result;                ///< behind the tail
  std::vector<PostOp> post_ops;  ///< the tail; an operand is an index into `operands`
  std::vector<ValueId> operands;
};

/// `nodes` (topological order) as stages, each reading the one before. Not applicable, with
/// the reason.
Applicable<std::vector<WindowStage>> read_window_chain(const Graph& g,
                                                       std::span<const NodeId> nodes,
                                                       const Semantics& ops);

/// contracts.h's `accepts` for the two contracts; `nodes` are all of the group's.
Accept accepts_conv_pool(const Graph& g, std::span<const NodeId> nodes, const Target& target,
                         const Semantics& ops);
Accept accepts_depthwise_pointwise(const Graph& g, std::span<const NodeId> nodes,
                                   const Target& target, const Semantics& ops);

}  // namespace ferrule
