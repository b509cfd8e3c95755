// How far off the judge of random graphs takes the steps of a formula to be.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/semantics/block_eval.h"
#include "engine/semantics/program_builder.h"
#include "tests/fuzz/noise.h"

namespace ferrule::fuzz {
namespace {

/// The furthest that a function of one number is off its value when each of its steps is rounded.
double furthest(const Program& p, double x, DType computed) {
  Draw noise(1);
  auto value = [&](const Program& of) {
    Scalar in{x, 0}, out;
    std::vector<Scalar> scratch;
    evaluate(of, &in, &out, scratch, true);
    return out.f;
  };
  double far = 0;
  for (int n = 0; n < 8; ++n)
    far = std::max(far, std::abs(value(with_rounding(p, computed, noise)) - value(p)));
  return far;
}

}  // namespace

TEST_CASE("steps of a formula are rounded where they are made, not where they end") {
  auto one_plus = [](Prim p) {
    ProgramBuilder b;
    const uint32_t x = b.input(DType::f64);
    const uint32_t one = b.constant(DType::f64, 1, 0);
    b.output(b.op(Prim::add, DType::f64, {one, b.op(p, DType::f64, {x})}));
    return b.take();
  };
  // Of 1 + tanh(-5.47) = 3.6e-5 a kernel leaves what its tanh is off at -1, up to 4 ulp.
  CHECK(furthest(one_plus(Prim::tanh), -5.47, DType::f32) > 0x1p-24);
  CHECK(furthest(one_plus(Prim::tanh), -5.47, DType::f32) < 4 * 0x1p-23);
  CHECK(furthest(one_plus(Prim::tanh), -5.47, DType::f64) < 6 * 0x1p-52);
  // Exact steps are exact, and a sum is off by its own rounding alone.
  CHECK(furthest(one_plus(Prim::neg), 0.99999, DType::f32) < 1e-5 * 0x1p-23);
}

}  // namespace ferrule::fuzz
