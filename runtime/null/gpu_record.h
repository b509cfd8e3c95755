// What a run on a GPU would launch, as text: each launch with its kernel and grid or its library
// call and tail, where every operand lies (in the arena, or which input, output or constant), the
// arguments' and the scratch memory's size, and where CUDA graphs would be cut. By the same
// decisions as the CUDA backend's (gpu_steps.h), with neither driver nor libraries: what depends on
// them (engines, their workspaces, and so the arena's last bytes) is not in it.
#pragma once
#include "runtime/backend.h"
#include "runtime/memory_plan.h"

namespace ferrule {

struct GpuRecord {
  Storage storage;
  std::string text;
};
/// Not applicable where not even the host could run a layer; errors: size_unknown;
/// unsupported_type.
Applicable<GpuRecord> record_gpu(const PrepareContext& context);

}  // namespace ferrule
