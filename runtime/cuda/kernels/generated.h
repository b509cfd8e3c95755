// Generated launches before they are kernels: planned for the operands' places, compiled all at
// once.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "codegen/cuda/plan_launch.h"
#include "engine/base/applicable.h"
#include "runtime/cuda/kernel.h"

namespace ferrule::cuda {

class KernelCode;  // device.h

/// The only kernel of its source: no name of a model's, so that equal kernels are compiled once.
inline constexpr const char* kGeneratedEntry = "ferrule_kernel";

/// What is planned once and then made.
struct PlannedLaunch {
  CudaLaunch launch;
  std::string note;  ///< a warning
};
/// In the shape that the tuning file wants.  errors: those of plan_gpu_launch.
Applicable<PlannedLaunch> plan_generated(const Context& context, const Launch& launch,
                                         const KernelCall& call);
using CodePtr = std::shared_ptr<KernelCode>;
/// On several threads. make_planned finds what somebody still holds, and the errors come up there.
std::vector<CodePtr> compile_generated(Context& context,
                                       std::span<const CudaLaunch* const> launches);
/// errors: those of compiling and of memory.
Applicable<KernelPtr> make_planned(Context& context, const Launch& launch, const KernelCall& call,
                                   PlannedLaunch planned);
/// work(k) for every k below `count`, on as many threads as compile at once.
void on_compilers(size_t count, const std::function<void(size_t)>& work);

}  // namespace ferrule::cuda
