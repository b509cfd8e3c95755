// Region rules with `around:`: row operators over the same axes with their pointwise neighbours.
#pragma once
#include "engine/match/match_rule.h"

namespace ferrule {

/// region.h's match_regions for them.
std::vector<Match> match_row_regions(const Rule& rule, const MatchContext& ctx,
                                     std::vector<Rejection>* misses);

}  // namespace ferrule
