// Attempts of rewrite rules that failed for what no size changes: operators, attributes, constants,
// structure. They are noted in the canonical graph; the plan of one shape starts from a copy of it
// and does not repeat them where the copy still is as it was. Never a reason to match, only one not
// to try.
#pragma once
#include <unordered_map>
#include <vector>

#include "engine/rewrite/pass.h"

namespace ferrule {

class KnownFailures {
 public:
  /// Tries every rewrite rule at every node of the context's graph.
  explicit KnownFailures(const PhaseContext& ctx);
  /// Whether the rule failed at each node; null: nothing is known of the rule.
  const std::vector<bool>* failed(const Rule& rule) const;
  /// The nodes of `now`, a changed copy of `then`, from which a pattern sees nothing that changed
  /// but sizes. `then` is the graph of the constructor.
  std::vector<bool> unchanged(const Graph& then, const Graph& now) const;

 private:
  std::unordered_map<const Rule*, std::vector<bool>> failed_;
  int reach_ = 0;  ///< how far the largest pattern looks
};

/// For a copy of `origin`: what was tried there without success.
struct OriginFailures {
  const KnownFailures& known;
  const Graph& origin;
};

}  // namespace ferrule
