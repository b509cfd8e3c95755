// The operands of a generated launch as a loop sees them: the result's dims, and per operand its
// strides along them, 0 where it is broadcast. For commands that compile without running; sizes
// that are not known take one placeholder, because a kernel depends on which sizes are equal and
// not on how large they are.
#pragma once
#include <cstdint>
#include <vector>

#include "codegen/program/layers_to_launches.h"
#include "codegen/program/row_loops.h"
#include "engine/base/applicable.h"

namespace ferrule {

/// A value of the plan or a temporary of the layer, as it is when it is no slice.
struct OperandValue {
  std::vector<int64_t> dims;
  Layout layout = Layout::plain;
  DType dtype = DType::undefined;
};
/// Not applicable (unknown rank, none).
Applicable<OperandValue> operand_value(const Plan& plan, const LoweredLayer& layer, ValueId v);

struct RegionOperands {
  std::vector<int64_t> dims;
  std::vector<std::vector<int64_t>> strides;  ///< elements; the program's inputs, then its outputs
  std::vector<int> element_bytes;
  bool offset = false;  ///< some operand begins inside its value (pieces)
};

/// `launch`: a generated one of `layer`; `piece`: of a region in pieces. Not applicable (unknown
/// rank, results of several sizes, operands that do not broadcast).
Applicable<RegionOperands> region_operands(const Plan& plan, const LoweredLayer& layer,
                                           const Launch& launch, size_t piece = 0);

/// The same for a launch over rows, as RowNest::make takes it. Not applicable (unknown rank).
Applicable<std::vector<RowLayout>> row_operands(const Plan& plan, const LoweredLayer& layer,
                                                const Launch& launch);

}  // namespace ferrule
