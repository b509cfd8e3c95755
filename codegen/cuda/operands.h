// The operands of any launch on a GPU, as plan_cuda_launch takes them, and how many kernels a
// launch is. For commands that compile without running, and for plans (program/operands.h).
#pragma once
#include <vector>

#include "codegen/cuda/plan_launch.h"
#include "codegen/program/layers_to_launches.h"
#include "engine/base/applicable.h"

namespace ferrule {

struct CudaOperands {
  std::vector<CudaOperand> operands;
  bool aligned = true;  ///< no operand is a slice that begins inside 16 bytes
};
/// Not applicable (unknown rank).
Applicable<CudaOperands> cuda_operands(const Plan& plan, const LoweredLayer& layer,
                                       const Launch& launch);
/// How many kernels it is in its built-in shape, one after the other; 1 where that is not known,
/// and on CPUs.
int cuda_passes(const Plan& plan, const LoweredLayer& layer, const Launch& launch,
                const Target& target);

}  // namespace ferrule
