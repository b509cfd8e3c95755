// Plan -> launches, counted: what `explain` says of each layer's kernels and arithmetic.
#pragma once
#include "codegen/program/layers_to_launches.h"

namespace ferrule {

/// lower_layers, with the passes that GPUs' row kernels take; writes Layer::kernels and
/// Layer::numerics into the plan. errors: codegen_failed, formula_invalid.
Result<Lowered> lower(Plan& plan, const Semantics& ops, const Target& target,
                      const LowerOptions& options = {});

}  // namespace ferrule
