// The polynomials against the correctly rounded reference, over the whole range of f32: every
// FERRULE_STRIDE-th bit pattern (a prime by default; 1 checks all 2^32) and every special value.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "engine/semantics/block_eval.h"
#include "engine/semantics/polynomials.h"
#include "engine/semantics/program_builder.h"

using namespace ferrule;

namespace {

Program unary(Prim op) {
  ProgramBuilder b;
  b.output(b.op(op, DType::f32, {b.input(DType::f32, "x")}));
  return b.take();
}

double truth(Prim op, double x) {
  Scalar in{x, 0};
  return apply(op, DType::f64, DType::f64, &in, true).f;
}

/// |got - want| in units of the last place of `want` as f32 (subnormals: 2^-149).
double ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : 1e30;
  auto rounded = static_cast<float>(want);
  if (got == rounded) return std::signbit(got) == std::signbit(rounded) ? 0 : 1e30;
  if (std::isinf(rounded) || std::isinf(got) || std::isnan(got)) return 1e30;
  int e = std::max(std::ilogb(std::fabs(want) > 0 ? want : 1e-300), -126);
  return std::fabs(got - want) / std::ldexp(1.0, e - 23);
}

struct Worst {
  double ulps = 0;
  float at = 0, got = 0;
};

Worst worst(Prim op, uint64_t stride) {
  Program p = unary(op);
  expand_transcendentals(p);
  BlockEvaluator run(p);
  Worst w;
  auto in = static_cast<float*>(run.input(0));
  auto flush = [&](int n) {
    run.run(n);
    auto out = static_cast<const float*>(run.output(0));
    for (int i = 0; i < n; ++i)
      if (double u = ulps(out[i], truth(op, in[i])); u > w.ulps) w = {u, in[i], out[i]};
  };
  int n = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += stride) {
    in[n++] = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (n == kBlock) flush(n), n = 0;
  }
  flush(n);
  return w;
}

constexpr Prim kOps[] = {Prim::exp,  Prim::log,     Prim::expm1, Prim::log1p,
                         Prim::tanh, Prim::sigmoid, Prim::erf};

}  // namespace

TEST_CASE("each function is within 4 ulp") {
  const char* text = std::getenv("FERRULE_STRIDE");
  uint64_t stride = text ? std::strtoull(text, nullptr, 10) : 20011;
  for (Prim op : kOps) {
    Worst w = worst(op, stride ? stride : 1);
    MESSAGE(info(op).id << ": " << w.ulps << " ulp at " << w.at << ", cost " << [&] {
      Program p = unary(op);
      expand_transcendentals(p);
      return p.cost();
    }());
    CAPTURE(w.at);
    CAPTURE(w.got);
    CHECK(w.ulps <= 4);
  }
}

TEST_CASE("special values are exact") {
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {
      0.0f,         -0.0f,      inf,       -inf,       std::nanf(""), 1.0f,           -1.0f,
      1e-45f,       -1e-45f,    0x1p-126f, -0x1p-126f, 3.4028235e38f, -3.4028235e38f, 88.7228f,
      88.73f,       -87.3f,     -103.9f,   -104.1f,    0.70710677f,   1.4142135f,     16777216.0f,
      0.927734375f, 0.9277344f, 10.0f,     -10.0f};
  for (Prim op : kOps) {
    Program p = unary(op);
    expand_transcendentals(p);
    REQUIRE(verify(p));
    std::vector<Scalar> scratch;
    for (float v : values) {
      Scalar in{v, 0}, out;
      evaluate(p, &in, &out, scratch);
      CAPTURE(info(op).id);
      CAPTURE(v);
      CHECK(ulps(static_cast<float>(out.f), truth(op, v)) <= 4);
    }
  }
}

TEST_CASE("only f32 is expanded, and nothing else is touched") {
  ProgramBuilder b;
  uint32_t x = b.input(DType::f64, "x");
  b.output(b.op(Prim::exp, DType::f64, {b.op(Prim::sin, DType::f64, {x})}));
  Program p = b.take(), before = p;
  expand_transcendentals(p);
  CHECK(to_text(p) == to_text(before));
  CHECK(expandable(Prim::tanh, DType::f32));
  CHECK_FALSE(expandable(Prim::tanh, DType::f64));
  CHECK_FALSE(expandable(Prim::sin, DType::f32));
}
