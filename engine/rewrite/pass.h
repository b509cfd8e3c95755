// What a pass over the graph is given.
#pragma once
#include <string>
#include <vector>

#include "engine/graph/journal.h"
#include "engine/match/match.h"

namespace ferrule {

class KnownFailures;  // known_failures.h

struct PassContext {
  Graph* graph = nullptr;
  const RuleSet* rules = nullptr;
  const Semantics* ops = nullptr;
  const Target* target = nullptr;
  const Limits* limits = nullptr;
  const Cancel* cancel = nullptr;
  Journal* journal = nullptr;
  std::vector<Rejection>* near_misses = nullptr;  ///< filled when not null (explain, why)
  const std::vector<std::string>* ignore_profit = nullptr;
  bool fold = true;
  /// What was tried in vain in `origin`, which the graph is a copy of; null: nothing is known.
  const KnownFailures* known_failures = nullptr;
  const Graph* origin = nullptr;
};

}  // namespace ferrule
