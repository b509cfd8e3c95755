// The null backend: prepares and "runs" any plan on any target, launching nothing. Its text is the
// list of launches with their operands, which golden tests hold and which needs no device; for GPUs
// also grids, places in memory and CUDA graphs (gpu_record.h).
#pragma once
#include "runtime/backend.h"

namespace ferrule {
std::unique_ptr<Backend> make_null_backend();
}  // namespace ferrule
