// A role's formula (engine/contract/roles.h) as a scalar program over f32: what a kernel applies to
// its own numbers. Where the model computes it in a shorter type, it is rounded to that type in
// between, as the model does.
#pragma once
#include <string>

#include "engine/base/applicable.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// One input and one output, f32. Not applicable (names `layer`): it does not make one tensor of
/// one.
Applicable<Program> role_formula(const Semantics& ops, const Graph& formula,
                                 const std::string& layer);

}  // namespace ferrule
