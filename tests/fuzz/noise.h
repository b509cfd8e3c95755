// What rounding may do: results in f64 that are off by as much, at each node and at each step of a
// node's formula, so that evaluations of a graph show how far its results may be apart.
#pragma once
#include <cmath>
#include <limits>

#include "engine/base/tolerance.h"
#include "engine/graph/tensor.h"
#include "engine/semantics/scalar.h"
#include "tests/fuzz/draw.h"

namespace ferrule::fuzz {

/// Relative to a number of this type.
inline double half_ulp(DType t) {
  return t == DType::f64 ? 0x1p-53 : t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-8;
}

/// 1, off by up to `by` either way.
inline double about_one(double by, Draw& noise) {
  return 1 + by * (static_cast<double>(noise.between(-1000, 1000)) / 1000);
}

inline Tensor off_by_rounding(const Tensor& t, DType declared, Draw& noise) {
  std::vector<double> values;
  for (int64_t k = 0; k < t.numel(); ++k)
    values.push_back(t.at_f64(k) * about_one(half_ulp(declared), noise));
  return Tensor::of<double>(DType::f64, t.dims(), std::span<const double>(values));
}

/// A result in f64 as it may come out in the type declared for it, where a number within the
/// tolerance of the largest one becomes an infinity.
inline Tensor overflowing_early(const Tensor& t, DType declared) {
  if (declared == DType::f64) return t;
  const double end = declared == DType::f16    ? 65504.0
                     : declared == DType::bf16 ? 0x1.fep127
                                               : std::numeric_limits<float>::max();
  const Tolerance allowed = model_tolerance(declared);
  const double from = end / (1 + allowed.relative + allowed.absolute);
  std::vector<double> values = t.to_f64();
  for (double& v : values)
    if (std::abs(v) > from) v = std::copysign(std::numeric_limits<double>::infinity(), v);
  return Tensor::of<double>(DType::f64, t.dims(), std::span<const double>(values));
}

/// Units in the last place by which a step may be off in a kernel; 0: it is exact. A tanh near 1
/// from which 1 is taken is as far off, however small what is left.
inline double step_ulps(Prim p) {
  constexpr double kFunction = 4;  // tests/unit/codegen
  if ((p >= Prim::exp && p <= Prim::atanh) || p == Prim::pow) return kFunction;
  const bool rounds = p == Prim::add || p == Prim::sub || p == Prim::mul || p == Prim::div ||
                      p == Prim::sqrt || p == Prim::fma;
  return rounds ? 0.5 : 0;
}

/// The program with something after each step in f64 that may be off: `after(step, add)` adds
/// instructions, and returns the one that takes the step's place.
template <class After>
Program with_steps(const Program& p, After&& after) {
  Program out;
  out.inputs = p.inputs, out.input_names = p.input_names;
  std::vector<uint32_t> now;  // by instruction of `p`
  auto add = [&](const Inst& in) {
    out.insts.push_back(in);
    return static_cast<uint32_t>(out.insts.size() - 1);
  };
  for (Inst in : p.insts) {
    for (uint32_t& a : in.args) a = a < now.size() ? now[a] : 0;
    const uint32_t made = add(in);
    now.push_back(in.type == DType::f64 && step_ulps(in.op) > 0 ? after(made, in, add) : made);
  }
  for (uint32_t k : p.outputs) out.outputs.push_back(now[k]);
  return out;
}

/// The program, each of whose steps in f64 is off as it may be in `computed`: by one factor for all
/// elements, or by one that hangs on the element's value, as a function's error in a kernel does.
/// The first cancels where positive and negative elements are summed, the second where all differ.
inline Program with_rounding(const Program& p, DType computed, Draw& noise) {
  return with_steps(p, [&](uint32_t made, const Inst& in, auto& add) {
    auto number = [&](double f) {
      Inst n;
      n.op = Prim::constant, n.type = DType::f64, n.f = f;
      return add(n);
    };
    auto step = [&](Prim op, uint32_t x, uint32_t y = 0) {
      Inst s;
      s.op = op, s.type = DType::f64, s.args = {x, y, 0};
      return add(s);
    };
    const double by = 2 * step_ulps(in.op) * half_ulp(computed);
    if (noise.chance(50)) return step(Prim::mul, made, number(about_one(by, noise)));
    constexpr double kMost = 1e6;  // infinities have no sine
    const uint32_t bounded = step(Prim::max, step(Prim::min, made, number(kMost)), number(-kMost));
    const double turns = static_cast<double>(noise.between(1000, 9999));
    const uint32_t phase = step(Prim::add, step(Prim::mul, bounded, number(turns)), number(turns));
    const uint32_t off = step(Prim::mul, step(Prim::sin, phase), number(by));
    return step(Prim::mul, made, step(Prim::add, off, number(1)));
  });
}

/// The program, each of whose steps in f64 comes out as in `computed`: infinite where that ends.
inline Program computed_in(const Program& p, DType computed) {
  return with_steps(p, [&](uint32_t made, const Inst&, auto& add) {
    Inst narrow, wide;
    narrow.op = wide.op = Prim::cast;
    narrow.type = computed, narrow.args = {made, 0, 0};
    wide.type = DType::f64, wide.args = {add(narrow), 0, 0};
    return add(wide);
  });
}

}  // namespace ferrule::fuzz
