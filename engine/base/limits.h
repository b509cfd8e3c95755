// Default limits (every one can be raised by --limit name=value) and cooperative cancellation.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace ferrule {

struct Limits {
#define FERRULE_LIMITS(X)                                                              \
  X(file_bytes, int64_t{2147483647}, "bytes of the model file (protobuf's own bound)") \
  X(nodes, 1000000, "nodes after inlining functions")                                  \
  X(functions, 10000, "model-local functions")                                         \
  X(call_depth, 100, "functions that call each other in a chain")                      \
  X(subgraph_depth, 32, "If / Loop / Scan bodies in each other")                       \
  X(rank, 64, "dimensions of a tensor")                                                \
  X(fold_tensor_bytes, int64_t{64} << 20, "bytes of one constant-folded tensor")       \
  X(fold_model_bytes, int64_t{1} << 30, "bytes of all constant-folded tensors")        \
  X(match_steps, 10000, "matcher steps per rule and root")                             \
  X(match_steps_model, 50000000, "matcher steps per model")                            \
  X(rewrites_per_node, 4, "rewrites per node of the graph")                            \
  X(rewrite_seconds, 30, "seconds of rewriting")                                       \
  X(phase_rounds, 8, "times that folding lets the rewrites of a phase run again")      \
  X(groups_per_node, 4, "groups that a phase forms per node of the graph")             \
  X(yaml_bytes, 1 << 20, "bytes of a rule file")                                       \
  X(yaml_depth, 64, "nesting of a rule file")                                          \
  X(rules, 10000, "rules loaded")                                                      \
  X(plans, 64, "plans that a session keeps, one for each shape of its inputs")         \
  X(memory_bytes, int64_t{0}, "bytes planned for a run; 0 = 80 % of free memory")      \
  X(cache_bytes, int64_t{2} << 30, "bytes kept in the cache on disk; 0 = nothing new")
#define X(name, value, text) int64_t name = value;
  FERRULE_LIMITS(X)
#undef X
};

/// Parses "name=value" into `limits`. errors: usage (unknown name, with a suggestion; not a
/// number).
Status set_limit(Limits& limits, std::string_view assignment);

/// Asked at every node of long work; set by a time-out or the caller.
class Cancel {
 public:
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  void deadline(std::chrono::steady_clock::time_point at) { at_ = at; }
  bool stopped() const {
    return stopped_.load(std::memory_order_relaxed) || std::chrono::steady_clock::now() >= at_;
  }

 private:
  std::atomic<bool> stopped_{false};
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::time_point::max();
};

}  // namespace ferrule
