#include "engine/rewrite/pass.h"

#include "engine/base/diagnostics.h"

namespace ferrule {

Status PassContext::in_time(std::string_view pass) const {
  if (cancel && cancel->stopped())
    return error(Code::cancelled, std::string(pass), "time or caller");
  return {};
}

MatchContext PhaseContext::match_context(const Graph& g, int64_t& steps) const {
  return {g, ops, limits, target, ignore_profit, &steps, near_misses != nullptr};
}

}  // namespace ferrule
