// How an operand of a tail is spread over the result of its anchor: by their shapes alone, axes
// aligned at the right. Planners of tails and makers of kernels with one ask this, so that two
// shapes with as many elements are never taken for each other. It knows neither layouts nor
// libraries.
#pragma once
#include <cstdint>
#include <span>

#include "engine/base/dim.h"

namespace ferrule {

enum class Broadcast : uint8_t {
  channel,  ///< one value for each index of the result's axis `channel`
  full,     ///< one value an element
  one,      ///< one value
  other,    ///< any other way, or not at all
};

/// The first that holds. `channel`: an axis of `result`, or -1 for none.
/// shapes: an operand of lower rank has leading axes of size 1; one of higher rank is `other`.
Broadcast broadcast_of(const Shape& operand, const Shape& result, int channel);
Broadcast broadcast_of(std::span<const int64_t> operand, std::span<const int64_t> result,
                       int channel);

}  // namespace ferrule
