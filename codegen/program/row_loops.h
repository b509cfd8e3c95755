// The axes of a row region over operands as they lie in memory: which count rows and which run
// along a row, collapsed where every operand allows it. How they are walked is decided by who makes
// a kernel (row_nest.h, rows.h).
#pragma once
#include <span>
#include <vector>

#include "codegen/program/loop.h"
#include "engine/base/applicable.h"
#include "engine/semantics/row.h"

namespace ferrule {

/// An operand as it lies in memory; strides in elements.
struct RowLayout {
  std::vector<int64_t> dims, strides;
};

struct RowLoops {
  std::vector<LoopAxis> kept, reduced;  ///< outermost first; strides in elements, per operand
  std::vector<DType> types;             ///< per operand
  size_t guide =
      0;  ///< the operand that decides the order of the axes: it moves along most of them
};
/// `operands`: of the region's inputs, then its outputs. Not applicable (sizes that do not
/// broadcast).
Applicable<RowLoops> row_loops(const RowRegion& region, std::span<const RowLayout> operands);

}  // namespace ferrule
