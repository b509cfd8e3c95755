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
/// Replaces every such instruction in `p`, exp not where it is kept, and simplifies the result.
void expand_transcendentals(Program& p, bool keep_exp = false);

/// What its exp is made of, for processors, which multiply by 2^n in another way: with x kept
/// within `least` and `most` and n = (x log2e + magic) - magic, a whole number, it is 2^n times the
/// polynomial of x - n ln 2, whose coefficients begin with the highest. Results are the same.
struct ExpParts {
  double least, most, log2e, magic, ln2_high, ln2_low;
  std::array<double, 7> polynomial;
};
extern const ExpParts kExpParts;

}  // namespace ferrule
