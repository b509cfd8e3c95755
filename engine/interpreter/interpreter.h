// The oracle: runs a graph node by node, plainly, one operator one function, no fusion, no layout.
// Every rule and every kernel is judged against it, and constant folding uses it. Pointwise
// operators come from rules/ops (semantics/evaluate.h); the others are here, one file a family. Not
// fast, never parallel.
#pragma once
#include <span>

#include "engine/interpreter/options.h"

namespace ferrule {

/// Outputs of one node for given inputs (absent optional inputs: nullptr). Groups run their body.
/// `rooms`: one for each output or none at all; an output lies there if it is of that type and size
/// and its operator can compute it in place, otherwise in memory of its own.
/// errors: unsupported_operator, bad_shape, limit_exceeded.
Result<std::vector<Tensor>> interpret_node(const Graph& g, const Node& n,
                                           std::span<const Tensor* const> inputs,
                                           const InterpreterOptions& options,
                                           std::span<const Room> rooms = {});
/// Outputs of the graph, in its order. `inputs`: by graph input order.
Result<std::vector<Tensor>> interpret(const Graph& g, std::span<const Tensor> inputs,
                                      const InterpreterOptions& options);
/// Whether interpret_node knows this operator (domain, op), formulas included.
bool interpretable(const Node& n, const Semantics& ops);

}  // namespace ferrule
