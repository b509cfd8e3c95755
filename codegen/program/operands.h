// The operands of a generated launch as a loop sees them: the result's dims, and per operand its strides along
// them, 0 where it is broadcast. For commands that compile without running; sizes that are not known take one
// placeholder, because a kernel depends on which sizes are equal and not on how large they are.
#pragma once
#include <cstdint>
#include <vector>

#include "codegen/cuda/launch.h"
#include "codegen/program/lower.h"
#include "codegen/cpu/row_nest.h"

namespace ferrule {

struct RegionOperands {
  std::vector<int64_t> dims;
  std::vector<std::vector<int64_t>> strides;  ///< elements; the program's inputs, then its outputs
  std::vector<int> element_bytes;
  bool offset = false;                        ///< some operand begins inside its value (pieces)
};

/// `launch`: a generated one of `layer`; `piece`: of a region in pieces.
/// errors: unsupported_operator (unknown rank, results of several sizes, operands that do not broadcast).
Result<RegionOperands> region_operands(const Plan& plan, const LoweredLayer& layer, const Launch& launch, size_t piece = 0);

/// The same for a launch over rows, as RowNest::make takes it.
/// errors: unsupported_operator (unknown rank).
Result<std::vector<RowLayout>> row_operands(const Plan& plan, const LoweredLayer& layer, const Launch& launch);

/// The same for any launch on a GPU, as plan_cuda_launch takes it.
struct CudaOperands {
  std::vector<CudaOperand> operands;
  bool aligned = true;   ///< no operand is a slice that begins inside 16 bytes
};
/// errors: unsupported_operator (unknown rank).
Result<CudaOperands> cuda_operands(const Plan& plan, const LoweredLayer& layer, const Launch& launch);
/// How many kernels it is in its built-in shape, one after the other; 1 where that is not known.
int cuda_passes(const Plan& plan, const LoweredLayer& layer, const Launch& launch, int cores);

}  // namespace ferrule
