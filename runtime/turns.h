// A Loop turn by turn, its body run by whoever can. What the turns make for a scan output is
// collected in memory that grows: how many there are only the run finds out.
#pragma once
#include <functional>
#include <span>

#include "engine/base/limits.h"
#include "engine/graph/graph.h"

namespace ferrule {

/// Whether turn_by_turn runs this Loop: what it carries and stacks are tensors of whole bytes.
bool turns_in_tensors(const Graph& g, const Node& n);

/// The results of Loop `n`. `operands`: its inputs; `body`: what a turn makes of the number of the
/// turn, the condition and the states. nullopt: without a turn, or with operands of a form that the
/// interpreter complains about.
/// errors: those of `body`; bad_shape, limit_exceeded, cancelled.
using TurnBody = std::function<Result<std::vector<Tensor>>(std::vector<Tensor>)>;
Result<std::optional<std::vector<Tensor>>> turn_by_turn(const Node& n,
                                                        std::span<const Tensor* const> operands,
                                                        const Limits& limits, const Cancel* cancel,
                                                        const TurnBody& body);

}  // namespace ferrule
