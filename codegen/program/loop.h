// Loops over operands of any rank: in which order their axes are walked, and which are one
// (collapsed).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace ferrule {

/// A loop over all operands: how often, and by how much each operand moves.
struct LoopAxis {
  int64_t size = 0;
  std::vector<int64_t> strides;  ///< per operand, in the unit of the strides given
};
/// From an operand's first element to the farthest, in the unit of the strides.
int64_t reach(std::span<const LoopAxis> axes, size_t operand);
/// The axes of `dims` larger than 1, outermost first (by the strides of the first output, which is
/// operand `first_output`), neighbours made one wherever every operand allows it. Empty when there
/// is one element.
std::vector<LoopAxis> collapse_axes(std::span<const int64_t> dims,
                                    std::span<const std::vector<int64_t>> strides,
                                    size_t first_output);

}  // namespace ferrule
