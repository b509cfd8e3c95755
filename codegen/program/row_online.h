// Whether two stages of a row region are a softmax's: the maximum of something, then the sum of its
// exponentials below that maximum. Both then come out of one pass, with a sum that is scaled anew
// where the maximum grows. Seen from the scalar programs, so that softmax, log-softmax, log-sum-exp
// and whatever users spell alike are all found.
#pragma once
#include <optional>

#include "engine/semantics/row.h"

namespace ferrule {

/// The first stage of the two that are neighbours: max(x), then sum(exp(x - max(x))), x in a
/// floating-point type.
std::optional<size_t> online_stage(const StagedRows& rows);

}  // namespace ferrule
