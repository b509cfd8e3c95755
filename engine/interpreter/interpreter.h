// The oracle: runs a graph node by node, plainly, one operator one function, no fusion, no layout. Every
// rule and every kernel is judged against it, and constant folding uses it. Pointwise operators come from
// rules/ops through formula/; the others are in interpreter_*.cpp. Not fast, never parallel.
#pragma once
#include <functional>
#include <map>
#include <span>

#include "engine/base/limits.h"
#include "engine/graph/graph.h"

namespace ferrule {

class OpTable;  // formula/ops.h

struct InterpreterOptions {
  const OpTable* ops = nullptr;     ///< pointwise operators; required
  const Limits* limits = nullptr;   ///< bounds the size of each result
  const Cancel* cancel = nullptr;
  /// Compute f32 / f16 / bf16 in double, and keep results in double, unrounded (arbiter, weight folding).
  bool f64 = false;
  /// Called with the results of each node before others read them: compares them layer by layer, or moves them.
  std::function<void(const Graph&, NodeId, std::vector<Tensor>&)> on_node;
};

/// Outputs of one node for given inputs (absent optional inputs: nullptr). Groups run their body.
/// errors: unsupported_operator, bad_shape, limit_exceeded.
Result<std::vector<Tensor>> interpret_node(const Graph& g, const Node& n,
                                           std::span<const Tensor* const> inputs,
                                           const InterpreterOptions& options);
/// Outputs of the graph, in its order. `inputs`: by graph input order.
Result<std::vector<Tensor>> interpret(const Graph& g, std::span<const Tensor> inputs,
                                      const InterpreterOptions& options);
/// Whether interpret_node knows this operator (domain, op), formulas included.
bool interpretable(const Node& n, const OpTable& ops);

}  // namespace ferrule
