// A softmax (or its logarithm) and the selection of its largest or smallest elements along the same
// axis: what such a group computes. The softmax_topk contract accepts what this can read, and the
// CPU's kernel runs it.
#pragma once
#include "engine/base/applicable.h"
#include "engine/contract/accept.h"
#include "engine/graph/graph.h"
#include "engine/target/target.h"

namespace ferrule {

struct SoftmaxTopK {
  /// What is selected and given: LogSoftmax does not underflow, the logarithm of a Softmax does.
  enum class Form : uint8_t { softmax, log_softmax, log_of_softmax } form = Form::softmax;
  NodeId softmax, top;
  int64_t k = 0;
  bool largest = true;
};

/// Reads `nodes` (topological order). Not applicable, with the reason.
Applicable<SoftmaxTopK> read_softmax_topk(const Graph& g, std::span<const NodeId> nodes);

/// contracts.h's `accepts` for it; `nodes` are all of the group's.
Accept accepts_softmax_topk(const Graph& g, std::span<const NodeId> nodes, const Target& target);

}  // namespace ferrule
