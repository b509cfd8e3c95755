#include "engine/contract/broadcast.h"

namespace ferrule {

Broadcast broadcast_of(const Shape& operand, const Shape& result, int channel) {
  if (operand.size() > result.size()) return Broadcast::other;
  const size_t missing = result.size() - operand.size();
  bool along = channel >= 0, full = true, one = true;
  for (size_t k = 0; k < result.size(); ++k) {
    const Dim d = k < missing ? Dim(1) : operand[k - missing];
    const bool single = d == Dim(1), same = d == result[k];
    along = along && (static_cast<int>(k) == channel ? same : single);
    full = full && same;
    one = one && single;
  }
  return along  ? Broadcast::channel
         : full ? Broadcast::full
         : one  ? Broadcast::one
                : Broadcast::other;
}

Broadcast broadcast_of(std::span<const int64_t> operand, std::span<const int64_t> result,
                       int channel) {
  return broadcast_of(Shape(operand.begin(), operand.end()), Shape(result.begin(), result.end()),
                      channel);
}

}  // namespace ferrule
