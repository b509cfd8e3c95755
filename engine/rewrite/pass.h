// What a pass over the graph is given, and what a phase of rules is given beside that.
#pragma once
#include <string>
#include <vector>

#include "engine/graph/journal.h"
#include "engine/match/match_rule.h"

namespace ferrule {

struct PassContext {
  Graph& graph;
  const Semantics& ops;
  const Limits& limits;
  Journal& journal;
  const Cancel* cancel = nullptr;
  /// errors: cancelled, at `pass`.
  Status in_time(std::string_view pass) const {
    if (cancel && cancel->stopped())
      return error(Code::cancelled, std::string(pass),
                   "the time is up, or the caller wants no more");
    return {};
  }
};

struct PhaseContext : PassContext {
  const RuleSet& rules;
  const Target* target = nullptr;  ///< null: facts of the device are unknown
  std::span<const std::string> ignore_profit = {};
  std::vector<Rejection>* near_misses = nullptr;  ///< filled when not null (explain, why)
  /// For attempts in `g`: the graph, or one nested in it. `steps`: counts theirs.
  MatchContext match_context(const Graph& g, int64_t& steps) const {
    return {g, ops, limits, target, ignore_profit, &steps, near_misses != nullptr};
  }
};

}  // namespace ferrule
