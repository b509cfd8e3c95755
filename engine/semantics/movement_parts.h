// A movement as boxes of its result, each of which is a strided box of one operand: for what copies
// elements without generated code.
#pragma once
#include "engine/semantics/movement.h"

namespace ferrule {

struct MovedPart {
  int operand = 0;                   ///< input slot; Segment::kFill
  std::vector<int64_t> begin, dims;  ///< of the box, by axis of MovedParts::result
  std::vector<int64_t> start;        ///< where it begins, by axis of the operand
  std::vector<int> axis;             ///< of the operand, by axis of the result; -1: none
  std::vector<int64_t> step;         ///< along that axis

  /// In elements of an operand with these strides: where the box begins, and its strides.
  int64_t offset(const std::vector<int64_t>& strides) const;
  std::vector<int64_t> steps(const std::vector<int64_t>& strides) const;
};

struct MovedParts {
  /// Dims under which result and operand are taken apart; others than their own only where all of
  /// an operand lies in row-major order.
  std::vector<int64_t> result, operand;  ///< operand: empty for its own
  std::vector<MovedPart> parts;
};

/// nullopt: more than `most` parts, or a reshape between other steps.
std::optional<MovedParts> parts_of(const Movement& m, const std::vector<int64_t>& result,
                                   size_t operand_rank, size_t most);

}  // namespace ferrule
