// What bounds the loops of a phase that forms groups.
#pragma once
#include "engine/rewrite/pass.h"

namespace ferrule {

class GroupBudget {
 public:
  GroupBudget(const PhaseContext& ctx, std::string_view phase);
  /// Asked before each piece of work. errors: cancelled; limit_exceeded (match_steps_model).
  Status more() const;
  /// Asked for each group that `rule` forms. errors: rule_loop (groups_per_node).
  Status formed(const Rule& rule);

  int64_t steps = 0;  ///< of the matcher

 private:
  const PhaseContext& ctx_;
  std::string phase_;
  int64_t groups_ = 0, most_;
};

}  // namespace ferrule
