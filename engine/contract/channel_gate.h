// The gate of a squeeze-and-excite block: the mean of each channel, then layers of 1x1 convolutions
// on those means, each with an activation. What a group of such nodes computes, as a list of dense
// layers; the channel_gate contract accepts what this can read, and the CPU's kernel runs it. It
// knows nothing of how the gate is applied afterwards.
#pragma once
#include "engine/base/applicable.h"
#include "engine/contract/epilogue.h"
#include "engine/graph/graph.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

struct DenseLayer {
  const Tensor* weights = nullptr;  ///< [out, in, 1, …]
  const Tensor* bias = nullptr;     ///< [out], or none
  std::vector<PostOp> tail;         ///< eltwise only, of the kinds in gate_activations()
};

struct ChannelGate {
  NodeId pool;
  std::vector<DenseLayer> layers;
};

/// The activations that a gate's layers may have, by the epilogue table's names.
std::span<const std::string_view> gate_activations();

/// Reads `nodes` (topological order) as a gate. Not applicable, with the reason.
Applicable<ChannelGate> read_channel_gate(const Graph& g, std::span<const NodeId> nodes,
                                          const Semantics& ops);

}  // namespace ferrule
