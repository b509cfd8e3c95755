#include "engine/semantics/polynomials.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

using Slot = uint32_t;

// Adding this to |v| < 2^22 leaves round(v) in the low bits of the sum, to nearest even.
constexpr double kMagic = 0x1.8p23;
constexpr double kLog2e = 1.44269504088896341;
// ln 2 in two parts, both positive: then n = +0 leaves the sign of a zero argument alone.
constexpr double kLn2High = 0x1.62e42ep-1;
constexpr double kLn2Low = 0x1.efa39efp-25;
constexpr double kLogHigh = 0.693359375;  // few bits: e * kLogHigh is exact
constexpr double kLogLow = -2.12194440e-4;
constexpr float kInf = std::numeric_limits<float>::infinity();
// e^r on |r| <= ln 2 / 2, to 0.03 ulp before rounding; our own fit, as expm1's.
constexpr double kExp6 = 1.382073387503624e-3, kExp5 = 8.368677459657192e-3,
                 kExp4 = 4.166826605796814e-2, kExp3 = 1.666652113199234e-1,
                 kExp2 = 4.999999403953552e-1;
constexpr double kExpLeast = -104, kExpMost = 89;

/// Expressions over f32 (and i32 for bits) in a program being built.
class Expansion {
 public:
  explicit Expansion(ProgramBuilder& b) : b_(b) {}

  Slot run(Prim op, Slot x) {
    switch (op) {
      case Prim::exp:
        return exp(x);
      case Prim::log:
        return log(x);
      case Prim::expm1:
        return expm1(x);
      case Prim::log1p:
        return log1p(x);
      case Prim::tanh:
        return tanh(x);
      case Prim::sigmoid:
        return sigmoid(x);
      default:
        return erf(x);
    }
  }

 private:
  Slot f(double v) { return b_.constant(DType::f32, v, 0); }
  Slot i(int64_t v) { return b_.constant(DType::i32, 0, v); }
  Slot op(Prim p, Slot a, Slot b) { return b_.op(p, DType::f32, {a, b}); }
  Slot add(Slot a, Slot b) { return op(Prim::add, a, b); }
  Slot sub(Slot a, Slot b) { return op(Prim::sub, a, b); }
  Slot mul(Slot a, Slot b) { return op(Prim::mul, a, b); }
  Slot div(Slot a, Slot b) { return op(Prim::div, a, b); }
  Slot fma(Slot a, Slot b, Slot c) { return b_.op(Prim::fma, DType::f32, {a, b, c}); }
  Slot neg(Slot a) { return b_.op(Prim::neg, DType::f32, {a}); }
  Slot abs(Slot a) { return b_.op(Prim::abs, DType::f32, {a}); }
  Slot iop(Prim p, Slot a, Slot b) { return b_.op(p, DType::i32, {a, b}); }
  Slot test(Prim p, Slot a, Slot b) { return b_.op(p, DType::boolean, {a, b}); }
  Slot select(Slot c, Slot a, Slot b) { return b_.op(Prim::select, b_.type(a), {c, a, b}); }
  Slot bits(Slot a) { return b_.op(Prim::float_to_bits, DType::i32, {a}); }
  Slot real(Slot a) { return b_.op(Prim::bits_to_float, DType::f32, {a}); }
  Slot at_most(Slot x, double c) { return select(test(Prim::lt, f(c), x), f(c), x); }  // NaN stays
  Slot at_least(Slot x, double c) { return select(test(Prim::gt, f(c), x), f(c), x); }
  /// Horner, highest coefficient first.
  Slot poly(Slot x, std::initializer_list<double> c) {
    auto it = c.begin();
    Slot r = f(*it);
    while (++it != c.end()) r = fma(r, x, f(*it));
    return r;
  }
  /// -0 and subnormals whose sign the evaluation may lose.
  Slot keep_zero(Slot x, Slot y) { return select(test(Prim::eq, x, f(0)), x, y); }

  /// x * unit = n ln 2 + r * unit with |r * unit| <= ln 2 / 2; `shifted` holds n + bias in its low
  /// bits.
  struct Reduced {
    Slot shifted, r;
  };
  Reduced reduce(Slot x, double unit, int bias, bool rough = false) {
    Reduced d{};
    d.shifted = fma(x, f(unit * kLog2e), f(kMagic + bias));
    Slot n = sub(d.shifted, f(kMagic + bias));
    if (rough) {  // off by 2e-9 n: for callers whose result hangs less on it the larger n is
      d.r = fma(n, f(-(kLn2High + kLn2Low) / unit), x);
      return d;
    }
    d.r = fma(n, f(-kLn2High / unit), x);
    d.r = fma(n, f(-kLn2Low / unit), d.r);
    return d;
  }
  /// The bits of n + bias as an exponent; those above them vanish in the shift.
  Slot power(Slot shifted) { return real(iop(Prim::shl, bits(shifted), i(23))); }
  Slot exp_poly(Slot r, int sign) {
    return poly(r, {kExp6, sign * kExp5, kExp4, sign * kExp3, kExp2, sign * 1.0, 1.0});
  }
  /// e^(unit r) - 1 on the same interval, keeping a zero's sign; unit is a power of two.
  Slot expm1_poly(Slot r, double unit) {
    double u2 = unit * unit, u3 = u2 * unit;
    return mul(r, poly(r, {1.3870657421648502e-3 * u3 * u3, 8.36626160889864e-3 * u3 * u2,
                           4.166743531823158e-2 * u2 * u2, 1.666654646396637e-1 * u3,
                           4.999999701976776e-1 * u2, unit}));
  }
  /// s q + (s - c), the sign of q kept where it is zero and s = c.
  Slot shifted_product(Slot s, Slot q, double c) { return fma(s, q, neg(sub(f(c), s))); }

  Slot exp(Slot x) {
    Reduced d = reduce(at_least(at_most(x, kExpMost), kExpLeast), 1, 0);
    // 2^n in two factors, because n runs from -150 to 128.
    Slot whole = bits(d.shifted), half = iop(Prim::shr, whole, i(1));
    auto factor = [&](Slot n) {
      return real(iop(Prim::add, iop(Prim::shl, n, i(23)), i(0x3f800000)));
    };
    return mul(mul(exp_poly(d.r, 1), factor(half)), factor(iop(Prim::sub, whole, half)));
  }

  Slot expm1(Slot x) {
    Reduced d =
        reduce(at_least(at_most(x, 89), -18), 1, 126);  // 2^(n-1), because 2^128 does not exist
    return mul(shifted_product(power(d.shifted), expm1_poly(d.r, 1), 0.5), f(2));
  }

  /// 1 / (1 + e^-x), all of it times 2^-64 so that e^-x stays finite and a subnormal result rounds
  /// once.
  Slot sigmoid(Slot x) {
    Reduced d = reduce(at_least(at_most(x, 20), -104), -1, 127 - 64);
    Slot e = mul(exp_poly(d.r, -1), power(d.shifted));
    return div(f(0x1p-64), add(e, f(0x1p-64)));
  }

  /// e / (e + 2) with e = expm1(2x): no cancellation, and exact at both ends.
  Slot tanh(Slot x) {
    Reduced d = reduce(at_least(at_most(x, 10), -10), 2, 127, true);
    Slot e = shifted_product(power(d.shifted), expm1_poly(d.r, 2), 1);
    return div(e, add(e, f(2)));
  }

  /// u = m 2^e with m in [sqrt(1/2), sqrt(2)), u normal and positive.
  struct Split {
    Slot m, e;
  };
  Split split(Slot u) {
    Slot w = iop(Prim::sub, bits(u), i(0x3f3504f3));
    Slot e = iop(Prim::shr, w, i(23));
    Slot m = real(iop(Prim::sub, bits(u), iop(Prim::shl, e, i(23))));
    return {m, e};
  }
  /// log(1 + t) + e ln 2 (Cephes, logf).
  Slot log_reduced(Slot t, Slot e) {
    Slot p = poly(
        t, {7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
            -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1});
    Slot z = mul(t, t);
    Slot y = mul(mul(t, z), p);
    y = fma(e, f(kLogLow), y);
    y = fma(z, f(-0.5), y);
    return fma(e, f(kLogHigh), add(t, y));
  }
  /// `y`, but log's values at and beyond the ends of its domain (0, inf).
  Slot log_ends(Slot u, Slot y) {
    y = select(test(Prim::eq, u, f(kInf)), u, y);
    Slot out = select(test(Prim::eq, u, f(0)), f(-kInf), f(std::nan("")));
    return select(test(Prim::gt, u, f(0)), y, out);
  }

  Slot log(Slot x) {
    Slot tiny = test(Prim::lt, x, f(0x1p-126));
    Split s = split(select(tiny, mul(x, f(0x1p23)), x));
    Slot e = add(b_.cast(s.e, DType::f32), select(tiny, f(-23), f(0)));
    return log_ends(x, log_reduced(sub(s.m, f(1)), e));
  }

  Slot log1p(Slot x) {
    Slot u = add(x, f(1));
    Slot lost = sub(x, sub(u, f(1)));  // what rounding took from 1 + x, exactly
    Split s = split(u);
    // 2^(1-e), since e is 128 at most and 2^-128 has no such bits.
    Slot scale = real(iop(Prim::sub, i(0x40000000), iop(Prim::shl, s.e, i(23))));
    Slot t = fma(mul(lost, f(0.5)), scale, sub(s.m, f(1)));
    return keep_zero(x, log_ends(u, log_reduced(t, b_.cast(s.e, DType::f32))));
  }

  /// N. Juffa's two polynomials: x + x P(x^2) near 0, 1 - e^Q(|x|) beyond.
  Slot erf(Slot x) {
    Slot t = abs(x), s = mul(x, x);
    Slot near = fma(poly(s, {-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1,
                             -3.76125336e-1, 1.28379166e-1}),
                    x, x);
    Slot c = at_most(t, 5);
    Slot q = poly(c, {-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1,
                      -6.34846687e-1, -1.28717512e-1});
    q = fma(q, c, neg(c));
    Reduced d = reduce(q, 1, 127, true);  // q is above -30: no subnormals
    Slot far = sub(f(1), mul(exp_poly(d.r, 1), power(d.shifted)));
    Slot sign = iop(Prim::band, bits(x), i(std::numeric_limits<int32_t>::min()));
    far = real(iop(Prim::bor, bits(far), sign));
    return select(test(Prim::gt, t, f(0.927734375)), far, near);
  }

  ProgramBuilder& b_;
};

}  // namespace

bool expandable(Prim op, DType type) {
  return type == DType::f32 &&
         (op == Prim::exp || op == Prim::log || op == Prim::expm1 || op == Prim::log1p ||
          op == Prim::tanh || op == Prim::sigmoid || op == Prim::erf);
}

const ExpParts kExpParts{kExpLeast,
                         kExpMost,
                         kLog2e,
                         kMagic,
                         kLn2High,
                         kLn2Low,
                         {kExp6, kExp5, kExp4, kExp3, kExp2, 1, 1}};

void expand_transcendentals(Program& p, bool keep_exp) {
  ProgramBuilder b;
  std::vector<Slot> to;
  for (size_t k = 0; k < p.inputs.size(); ++k) b.input(p.inputs[k], p.input_names[k]);
  Expansion expansion(b);
  for (Inst in : p.insts) {
    for (int a = 0; a < info(in.op).arity; ++a) in.args[a] = to[in.args[a]];
    const bool expand = expandable(in.op, in.type) && !(keep_exp && in.op == Prim::exp);
    to.push_back(expand ? expansion.run(in.op, in.args[0]) : b.append(in));
  }
  for (Slot o : p.outputs) b.output(to[o]);
  p = b.take();
}

}  // namespace ferrule
