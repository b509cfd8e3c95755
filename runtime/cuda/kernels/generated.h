// Generated launches before they are kernels: planned for the operands' places, compiled all at once.
#pragma once
#include <span>

#include "codegen/cuda_launch.h"
#include "runtime/cuda/kernel.h"

namespace ferrule::cuda {

/// errors: those of plan_gpu_launch.
Result<CudaLaunch> plan_generated(const Context& context, const Launch& launch, const Call& call);
/// On several threads; make_generated finds the results, and the errors come up there.
void compile_generated(Context& context, std::span<const CudaLaunch> launches);

}  // namespace ferrule::cuda
