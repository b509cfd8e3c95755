// What a plan costs as far as it is known without running it: kernels launched, and bytes that they
// read and write.
#pragma once
#include <functional>

#include "codegen/annotate_plan.h"
#include "engine/pipeline.h"

namespace ferrule {

struct Cost {
  size_t nodes = 0, layers = 0;
  int64_t kernels = 0;
  int64_t bytes = 0;  ///< of activations; weights are left out
  bool open = false;  ///< symbolic sizes were counted as 1
};
/// Of what `fuse` gave; `sized`: with these sizes in the place of those that are open. errors:
/// those of make_plan and lower.
Result<Cost> cost_of(const Graph& fused, const Knowledge& knowledge, const LowerOptions& lowering,
                     const std::function<Type(const Type&)>& sized = {});

}  // namespace ferrule
