// How a graph is interpreted.
#pragma once
#include <functional>
#include <vector>

#include "engine/base/limits.h"
#include "engine/graph/graph.h"

namespace ferrule {

class OpTable;  // semantics/ops.h

struct InterpreterOptions {
  const OpTable* ops = nullptr;     ///< pointwise operators; required
  const Limits* limits = nullptr;   ///< bounds the size of each result
  const Cancel* cancel = nullptr;
  /// Compute f32 / f16 / bf16 in double, and keep results in double, unrounded (arbiter, weight folding).
  bool f64 = false;
  /// Called after each node, for layer-by-layer comparison.
  std::function<void(const Graph&, NodeId, const std::vector<Tensor>&)> on_node;
};

}  // namespace ferrule
