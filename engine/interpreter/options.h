// How a graph is interpreted.
#pragma once
#include <functional>
#include <vector>

#include "engine/base/limits.h"
#include "engine/graph/graph.h"

namespace ferrule {

class Semantics;  // semantics/semantics.h
struct Program;   // semantics/scalar.h

struct InterpreterOptions {
  const Semantics* ops = nullptr;  ///< pointwise operators; required
  const Limits* limits = nullptr;  ///< bounds the size of each result
  const Cancel* cancel = nullptr;
  /// Compute f32 / f16 / bf16 in double, and keep results in double, unrounded (arbiter, weight
  /// folding).
  bool f64 = false;
  /// Called with the results of each node before others read them: compares them layer by layer, or
  /// moves them.
  std::function<void(const Graph&, NodeId, std::vector<Tensor>&)> on_node;
  /// Called with the program of a node that has a formula, each time before it is evaluated: may
  /// change its steps.
  std::function<void(const Graph&, const Node&, Program&)> on_program;
};

}  // namespace ferrule
