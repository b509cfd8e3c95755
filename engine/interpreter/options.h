// How a graph is interpreted.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/limits.h"
#include "engine/graph/graph.h"

namespace ferrule {

class Semantics;  // semantics/semantics.h
struct Program;   // semantics/scalar.h

/// How often each random node has drawn numbers, by its name. Any number of threads may ask.
class Draws {
 public:
  /// How often before this time.
  uint64_t next(const std::string& node) {
    const std::lock_guard lock(mutex_);
    return drawn_[node]++;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, uint64_t> drawn_;
};

/// A tensor and its bytes, which may be written: where a result may lie.
using Room = std::pair<Tensor, void*>;

/// What an operator made of a node's attributes alone, for the next time that the node runs.
struct Prepared {
  const Node* of = nullptr;
  std::shared_ptr<const void> what;
};

struct InterpreterOptions {
  const Semantics* ops = nullptr;  ///< pointwise operators; required
  const Limits* limits = nullptr;  ///< bounds the size of each result
  const Cancel* cancel = nullptr;
  Draws* draws = nullptr;        ///< of one run to the next; null: each call begins anew
  Prepared* prepared = nullptr;  ///< of one run of a node to the next; null: nothing is kept
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
