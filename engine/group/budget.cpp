#include "engine/group/budget.h"

#include "engine/base/diagnostics.h"

namespace ferrule {

GroupBudget::GroupBudget(const PhaseContext& ctx, std::string_view phase)
    : ctx_(ctx),
      phase_(phase),
      most_(ctx.limits.groups_per_node * static_cast<int64_t>(ctx.graph.live_nodes())) {}

Status GroupBudget::more() const {
  FERRULE_TRY(ctx_.in_time(phase_));
  if (steps <= ctx_.limits.match_steps_model) return {};
  return error(Code::limit_exceeded, "phase " + phase_,
               "the number of matcher steps (match_steps_model)", steps,
               ctx_.limits.match_steps_model);
}

Status GroupBudget::formed(const Rule& rule) {
  if (++groups_ <= most_) return {};
  return error(Code::rule_loop, "phase " + phase_,
               fmt::format("{} forms group {} (--limit groups_per_node={})", rule.id, groups_,
                           ctx_.limits.groups_per_node));
}

}  // namespace ferrule
