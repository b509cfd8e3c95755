// exp, log, expm1, log1p, tanh, sigmoid and erf on f32 as programs of cheap primitives: what a
// vector unit runs without a call. Every result is within 4 ulp of the true value
// (tests/unit/semantics/polynomials_test measures it), NaN, infinities, signed zeros and subnormals
// included. They need fused multiply-adds that round once, and round-to-nearest-even; comparisons
// are written so that x86 min / max instructions fit.
#pragma once
#include "engine/semantics/scalar.h"

namespace ferrule {

/// Whether expand_transcendentals replaces this instruction.
bool expandable(Prim op, DType type);
/// Replaces every such instruction in `p` and simplifies the result.
void expand_transcendentals(Program& p);

}  // namespace ferrule
