// The reference backend: the fused graph node by node through the interpreter, groups by their
// bodies. Slow and right; also where sizes are only known during the run.
#pragma once
#include "runtime/backend.h"

namespace ferrule {
std::unique_ptr<Backend> make_reference_backend();
}  // namespace ferrule
