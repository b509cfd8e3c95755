// How a tail's operand lies over the result of its call: what every CPU kernel with a tail asks.
// The shapes say it (engine/contract/broadcast.h), neither the number of elements nor the rank.
#pragma once
#include "engine/contract/broadcast.h"
#include "runtime/kernel_call.h"

namespace ferrule::cpu {

/// By dims alone, axes aligned at the right. `channel`: the result's axis along which a vector
/// goes, or -1.
Broadcast broadcast_of(const Operand& o, const Operand& y, int channel = 1);

/// Whether an operand spread `full` has its elements in the order of a dense value with the
/// result's dims and layout.
bool lies_like(const Operand& o, const Operand& y);

}  // namespace ferrule::cpu
