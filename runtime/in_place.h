// Which operands of a generated launch its result may be written over: what the memory planner asks
// (memory_plan.h), the same for every backend. A backend adds the pairs of its own library kernels.
#pragma once
#include <utility>
#include <vector>

#include "codegen/program/layers_to_launches.h"
#include "engine/plan/plan.h"

namespace ferrule {

/// Whether both have the same dims and layout, in elements of one size.
bool same_elements(const Plan& plan, const Lowered& lowered, size_t layer, ValueId a, ValueId b);

/// (input, output) pairs of a generated launch, by any way of sharing its elements out among
/// threads: whoever writes an element has read it, and nobody else reads it.
std::vector<std::pair<int, int>> generated_in_place(const Plan& plan, const Lowered& lowered,
                                                    size_t layer, const Launch& launch);

}  // namespace ferrule
