// Generated launches before they are kernels: planned for the operands' places, compiled all at
// once.
#pragma once
#include <functional>
#include <span>

#include "codegen/cuda/launch.h"
#include "engine/base/applicable.h"
#include "runtime/cuda/kernel.h"

namespace ferrule::cuda {

/// In the shape that the tuning file wants.  errors: those of plan_gpu_launch.
Applicable<CudaLaunch> plan_generated(const Context& context, const Launch& launch,
                                      const KernelCall& call, std::string* note = nullptr);
/// On several threads; make_generated finds the results, and the errors come up there.
void compile_generated(Context& context, std::span<const CudaLaunch> launches);
/// work(k) for every k below `count`, on as many threads as compile at once.
void on_compilers(size_t count, const std::function<void(size_t)>& work);

}  // namespace ferrule::cuda
