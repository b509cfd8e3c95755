// Reference semantics of every primitive and conversion on the values where they are easy to get
// wrong, and the exactness of simplify().
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "engine/base/minifloat.h"
#include "engine/semantics/block_eval.h"
#include "engine/semantics/program_builder.h"
#include "engine/semantics/scalar.h"

using namespace ferrule;

namespace {

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

struct FloatRow {
  Prim op;
  double a, b, want;
};
struct IntRow {
  Prim op;
  DType type;
  int64_t a, b, want;
};

std::set<Prim> g_tested;

}  // namespace

TEST_CASE("primitives on floats") {
  const FloatRow rows[] = {{Prim::neg, 0.0, 0, -0.0},
                           {Prim::neg, kNan, 0, kNan},
                           {Prim::add, 0.1f, 0.2f, 0.1f + 0.2f},
                           {Prim::add, kInf, -kInf, kNan},
                           {Prim::add, -0.0, 0.0, 0.0},
                           {Prim::sub, kInf, kInf, kNan},
                           {Prim::mul, 0.0, kInf, kNan},
                           {Prim::mul, -0.0, 3, -0.0},
                           {Prim::div, 1, 0, kInf},
                           {Prim::div, 1, -0.0, -kInf},
                           {Prim::div, 0, 0, kNan},
                           {Prim::mod, -5, 3, 1},
                           {Prim::mod, 5, -3, -1},
                           {Prim::mod, 5, kInf, 5},
                           {Prim::mod, -5, kInf, kInf},
                           {Prim::mod, -6, 3, 0.0},
                           {Prim::mod, 5, 0, kNan},
                           {Prim::fmod, -5, 3, -2},
                           {Prim::fmod, 5, -3, 2},
                           {Prim::pow, 0, 0, 1},
                           {Prim::pow, kNan, 0, 1},
                           {Prim::pow, 1, kNan, 1},
                           {Prim::pow, -8, 1.0 / 3, kNan},
                           {Prim::pow, 0.0, -1, kInf},
                           {Prim::pow, -0.0, -1, -kInf},
                           {Prim::min, kNan, 1, kNan},
                           {Prim::min, 1, kNan, kNan},
                           {Prim::min, -kInf, 1, -kInf},
                           {Prim::max, kNan, 1, kNan},
                           {Prim::max, 1, kNan, kNan},
                           {Prim::max, 2, 1, 2},
                           {Prim::abs, -0.0, 0, 0.0},
                           {Prim::abs, -kInf, 0, kInf},
                           {Prim::sign, kNan, 0, kNan},
                           {Prim::sign, -3, 0, -1},
                           {Prim::sign, -0.0, 0, 0.0},
                           {Prim::floor, -0.5, 0, -1},
                           {Prim::ceil, -0.5, 0, -0.0},
                           {Prim::trunc, -1.5, 0, -1},
                           {Prim::rint, 2.5, 0, 2},
                           {Prim::rint, -2.5, 0, -2},
                           {Prim::rint, 0.5, 0, 0.0},
                           {Prim::sqrt, -1, 0, kNan},
                           {Prim::sqrt, -0.0, 0, -0.0},
                           {Prim::exp, -kInf, 0, 0.0},
                           {Prim::exp, 89, 0, kInf},
                           {Prim::exp, -104, 0, 0.0},
                           {Prim::log, 0, 0, -kInf},
                           {Prim::log, -1, 0, kNan},
                           {Prim::log1p, -1, 0, -kInf},
                           {Prim::log1p, 1e-30f, 0, 1e-30f},
                           {Prim::expm1, -kInf, 0, -1},
                           {Prim::expm1, 1e-30f, 0, 1e-30f},
                           {Prim::tanh, kInf, 0, 1},
                           {Prim::tanh, -kInf, 0, -1},
                           {Prim::sigmoid, -kInf, 0, 0.0},
                           {Prim::sigmoid, kInf, 0, 1},
                           {Prim::sigmoid, 0, 0, 0.5},
                           {Prim::sigmoid, -100, 0, static_cast<float>(std::exp(-100.0))},
                           {Prim::erf, kInf, 0, 1},
                           {Prim::erf, -0.0, 0, -0.0},
                           {Prim::sin, kInf, 0, kNan},
                           {Prim::sin, -0.0, 0, -0.0},
                           {Prim::cos, 0, 0, 1},
                           {Prim::tan, -0.0, 0, -0.0},
                           {Prim::asin, 2, 0, kNan},
                           {Prim::acos, 1, 0, 0.0},
                           {Prim::atan, kInf, 0, static_cast<float>(std::atan(kInf))},
                           {Prim::sinh, -kInf, 0, -kInf},
                           {Prim::cosh, -kInf, 0, kInf},
                           {Prim::asinh, -0.0, 0, -0.0},
                           {Prim::acosh, 0.5, 0, kNan},
                           {Prim::atanh, 1, 0, kInf},
                           {Prim::atanh, 2, 0, kNan}};
  for (const FloatRow& r : rows) {
    g_tested.insert(r.op);
    Scalar args[2] = {{static_cast<float>(r.a), 0}, {static_cast<float>(r.b), 0}};
    double got = apply(r.op, DType::f32, DType::f32, args).f;
    CAPTURE(info(r.op).id);
    CAPTURE(r.a);
    CAPTURE(r.b);
    CAPTURE(got);
    CHECK(same(got, r.want));
  }
  Scalar fma[3] = {{1 + 0x1p-23, 0}, {1 - 0x1p-23, 0}, {-1, 0}};
  CHECK(apply(Prim::fma, DType::f32, DType::f32, fma).f == -0x1p-46);
  Scalar bits[1] = {{-2.0, 0}};
  CHECK(apply(Prim::float_to_bits, DType::i32, DType::f32, bits).i ==
        static_cast<int32_t>(0xc0000000u));
  Scalar back[1] = {{0, 0x3f800000}};
  CHECK(apply(Prim::bits_to_float, DType::f32, DType::i32, back).f == 1);
  g_tested.insert({Prim::fma, Prim::float_to_bits, Prim::bits_to_float});
}

TEST_CASE("primitives on integers wrap, and nothing traps") {
  const int64_t low = std::numeric_limits<int64_t>::min(),
                high = std::numeric_limits<int64_t>::max();
  const IntRow rows[] = {
      {Prim::add, DType::i8, 127, 1, -128},     {Prim::add, DType::u8, 255, 1, 0},
      {Prim::add, DType::i64, high, 1, low},    {Prim::sub, DType::u32, 0, 1, 4294967295},
      {Prim::mul, DType::u16, 65535, 65535, 1}, {Prim::mul, DType::i32, 65536, 65536, 0},
      {Prim::mul, DType::i64, low, -1, low},    {Prim::neg, DType::i8, -128, 0, -128},
      {Prim::neg, DType::u8, 1, 0, 255},        {Prim::div, DType::i32, -7, 2, -3},
      {Prim::div, DType::i32, 7, 0, 0},         {Prim::div, DType::i64, low, -1, low},
      {Prim::div, DType::u64, -1, 2, high},     {Prim::mod, DType::i32, -7, 3, 2},
      {Prim::mod, DType::i32, 7, -3, -2},       {Prim::mod, DType::i64, low, -1, 0},
      {Prim::mod, DType::u8, 7, 0, 0},          {Prim::fmod, DType::i32, -7, 3, -1},
      {Prim::fmod, DType::i32, 7, -3, 1},       {Prim::fmod, DType::i64, low, -1, 0},
      {Prim::ipow, DType::i32, 3, 4, 81},       {Prim::ipow, DType::i32, 2, -1, 0},
      {Prim::ipow, DType::i32, -1, -3, -1},     {Prim::ipow, DType::i32, 0, 0, 1},
      {Prim::ipow, DType::u8, 2, 8, 0},         {Prim::ipow, DType::i64, 1, low, 1},
      {Prim::min, DType::u8, 200, 100, 100},    {Prim::max, DType::i8, -100, 100, 100},
      {Prim::max, DType::u64, -1, 1, -1},       {Prim::abs, DType::i8, -128, 0, -128},
      {Prim::abs, DType::i32, -5, 0, 5},        {Prim::sign, DType::i64, low, 0, -1},
      {Prim::sign, DType::u8, 200, 0, 1},       {Prim::band, DType::i32, -1, 12, 12},
      {Prim::bor, DType::u8, 12, 3, 15},        {Prim::bxor, DType::i8, -1, 1, -2},
      {Prim::bnot, DType::u8, 0, 0, 255},       {Prim::bnot, DType::i8, 0, 0, -1},
      {Prim::shl, DType::u8, 1, 8, 0},          {Prim::shl, DType::u8, 255, 1, 254},
      {Prim::shl, DType::i64, 1, 63, low},      {Prim::shr, DType::u8, 255, 9, 0},
      {Prim::shr, DType::i8, -128, 3, -16},     {Prim::shr, DType::u64, -1, 63, 1},
      {Prim::shl, DType::i32, 1, -1, 0},        {Prim::add, DType::i4, 7, 1, -8},
      {Prim::add, DType::u4, 15, 1, 0}};
  for (const IntRow& r : rows) {
    g_tested.insert(r.op);
    Scalar args[2] = {{0, r.a}, {0, r.b}};
    CAPTURE(info(r.op).id);
    CAPTURE(r.a);
    CAPTURE(r.b);
    CHECK(apply(r.op, r.type, r.type, args).i == r.want);
  }
}

TEST_CASE("comparisons, logic and tests, and every primitive has a row") {
  auto cmp = [](Prim op, double a, double b) {
    g_tested.insert(op);
    Scalar args[2] = {{a, 0}, {b, 0}};
    return apply(op, DType::boolean, DType::f32, args).i;
  };
  CHECK(cmp(Prim::eq, 0.0, -0.0) == 1);
  CHECK(cmp(Prim::eq, kNan, kNan) == 0);
  CHECK(cmp(Prim::ne, kNan, kNan) == 1);
  CHECK(cmp(Prim::lt, kNan, 1) == 0);
  CHECK(cmp(Prim::le, 1, 1) == 1);
  CHECK(cmp(Prim::gt, kInf, 1) == 1);
  CHECK(cmp(Prim::ge, kNan, 1) == 0);
  CHECK(cmp(Prim::isnan, kNan, 0) == 1);
  CHECK(cmp(Prim::isnan, kInf, 0) == 0);
  CHECK(cmp(Prim::isinf, -kInf, 0) == 1);
  Scalar big[2] = {{0, -1}, {0, 1}};
  CHECK(apply(Prim::lt, DType::boolean, DType::u64, big).i == 0);
  CHECK(apply(Prim::lt, DType::boolean, DType::i64, big).i == 1);
  for (int a = 0; a < 2; ++a)
    for (int b = 0; b < 2; ++b) {
      Scalar args[2] = {{0, a}, {0, b}};
      CHECK(apply(Prim::land, DType::boolean, DType::boolean, args).i == (a & b));
      CHECK(apply(Prim::lor, DType::boolean, DType::boolean, args).i == (a | b));
      CHECK(apply(Prim::lxor, DType::boolean, DType::boolean, args).i == (a ^ b));
      CHECK(apply(Prim::lnot, DType::boolean, DType::boolean, args).i == !a);
    }
  g_tested.insert({Prim::land, Prim::lor, Prim::lxor, Prim::lnot});
  for (int p = 0; p < static_cast<int>(Prim::load); ++p) {
    CAPTURE(info(static_cast<Prim>(p)).id);
    CHECK(g_tested.count(static_cast<Prim>(p)));
  }
}

TEST_CASE("conversions") {
  auto to = [](DType t, DType from, double f) { return convert(t, from, {f, 0}, false); };
  CHECK(to(DType::i32, DType::f32, 2.9).i == 2);
  CHECK(to(DType::i32, DType::f32, -2.9).i == -2);
  CHECK(to(DType::i32, DType::f32, 3e9).i == 2147483647);
  CHECK(to(DType::i32, DType::f32, kNan).i == 0);
  CHECK(to(DType::i64, DType::f32, -kInf).i == std::numeric_limits<int64_t>::min());
  CHECK(to(DType::u8, DType::f32, -1).i == 0);
  CHECK(to(DType::u8, DType::f32, 300).i == 255);
  CHECK(to(DType::u64, DType::f64, 1.5e19).i == static_cast<int64_t>(15000000000000000000u));
  CHECK(to(DType::boolean, DType::f32, kNan).i == 1);
  CHECK(to(DType::boolean, DType::f32, -0.0).i == 0);
  CHECK(to(DType::boolean, DType::f32, 0.25).i == 1);
  CHECK(convert(DType::i8, DType::i32, {0, 200}, false).i == -56);
  CHECK(convert(DType::f32, DType::u64, {0, -1}, false).f == 18446744073709551616.0);
  CHECK(convert(DType::f32, DType::i64, {0, (int64_t{1} << 53) + 1}, false).f ==
        9007199254740992.0);
  // One rounding: through f32 this would become 1 + 2^-10, the wrong neighbour of the tie.
  CHECK(to(DType::f16, DType::f64, 1 + 0x1p-11 + 0x1p-40).f == 1 + 0x1p-10);
  CHECK(to(DType::f16, DType::f64, 1 + 0x1p-11 - 0x1p-40).f == 1);
  CHECK(to(DType::f16, DType::f32, 65520).f == kInf);
  CHECK(to(DType::bf16, DType::f64, 1 + 0x1p-8 + 0x1p-40).f == 1 + 0x1p-7);
  CHECK(to(DType::f8e4m3fn, DType::f32, 1000).f == 448);
  CHECK(convert(DType::f8e5m2, DType::f32, {1e6, 0}, true).f == kInf);
  CHECK(std::isnan(convert(DType::f8e4m3fn, DType::f32, {1e6, 0}, true).f));
  CHECK(same(to(DType::f8e4m3fnuz, DType::f32, -0.0).f, 0.0));
}

TEST_CASE("fp8 and fp4: every code decodes and encodes to itself, rounding is to nearest even") {
  for (DType t :
       {DType::f8e4m3fn, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e5m2fnuz, DType::f4e2m1}) {
    int codes = t == DType::f4e2m1 ? 16 : 256;
    std::vector<float> values;
    for (int c = 0; c < codes; ++c) {
      float v = decode_mini(t, static_cast<uint8_t>(c));
      CAPTURE(name(t));
      CAPTURE(c);
      if (std::isnan(v))
        CHECK(std::isnan(decode_mini(t, encode_mini(t, double{v}, false))));
      else
        CHECK(encode_mini(t, double{v}, true) == c);
      if (std::isfinite(v) && c < codes / 2) values.push_back(v);
    }
    for (size_t k = 0; k + 1 < values.size(); ++k) {
      double middle = (double{values[k]} + values[k + 1]) / 2;
      CHECK(encode_mini(t, middle, true) == (k % 2 == 0 ? k : k + 1));
      CHECK(encode_mini(t, std::nextafter(middle, 1e9), true) == k + 1);
    }
  }
}

TEST_CASE("simplify keeps every bit and removes what is not needed") {
  ProgramBuilder b;
  uint32_t x = b.input(DType::f32, "x");
  auto c = [&](double v) { return b.constant(DType::f32, v, 0); };
  auto op = [&](Prim p, uint32_t u, uint32_t v) { return b.op(p, DType::f32, {u, v}); };
  b.output(op(Prim::mul, x, c(1)));                                         // x
  b.output(op(Prim::add, x, c(-0.0)));                                      // x
  b.output(op(Prim::add, x, c(0.0)));                                       // not x: -0 + 0 is 0
  b.output(op(Prim::sub, x, c(0.0)));                                       // x
  b.output(op(Prim::mul, x, c(0.0)));                                       // not 0
  b.output(op(Prim::div, x, c(4)));                                         // x * 0.25
  b.output(op(Prim::div, x, c(3)));                                         // not x * (1/3)
  b.output(op(Prim::add, c(0.1f), c(0.2f)));                                // folded, in f32
  b.output(op(Prim::add, op(Prim::mul, x, c(3)), op(Prim::mul, c(3), x)));  // one product
  Program p = b.take();
  REQUIRE(verify(p));
  CHECK(p.outputs[0] == p.outputs[1]);
  CHECK(p.insts[p.outputs[0]].op == Prim::load);
  CHECK(p.insts[p.outputs[2]].op == Prim::add);
  CHECK(p.outputs[3] == p.outputs[0]);
  CHECK(p.insts[p.outputs[4]].op == Prim::mul);
  CHECK(p.insts[p.outputs[5]].op == Prim::mul);
  CHECK(p.insts[p.outputs[6]].op == Prim::div);
  CHECK(p.insts[p.outputs[7]].op == Prim::constant);
  CHECK(p.insts[p.outputs[7]].f == 0.1f + 0.2f);
  CHECK(p.insts[p.outputs[8]].args[0] == p.insts[p.outputs[8]].args[1]);
}

TEST_CASE("casts are dropped only when nothing is lost") {
  auto count = [](DType from, DType through, DType back) {
    ProgramBuilder b;
    b.output(b.cast(b.cast(b.input(from), through), back));
    return b.take().insts.size();
  };
  CHECK(count(DType::f16, DType::f32, DType::f16) == 1);
  CHECK(count(DType::f32, DType::f16, DType::f32) == 3);
  CHECK(count(DType::u8, DType::f32, DType::u8) == 1);
  CHECK(count(DType::i32, DType::f32, DType::i32) == 3);
  CHECK(count(DType::i32, DType::f64, DType::i32) == 1);
  CHECK(count(DType::i8, DType::u8, DType::i8) == 3);
  CHECK(count(DType::u8, DType::i16, DType::f32) == 2);
  CHECK(count(DType::i32, DType::boolean, DType::i32) == 3);
}

TEST_CASE("verify finds wrong programs") {
  ProgramBuilder b;
  uint32_t x = b.input(DType::f32), y = b.input(DType::i32);
  b.output(b.op(Prim::add, DType::f32, {x, y}));
  Program p = b.take();
  auto s = verify(p);
  REQUIRE_FALSE(s);
  CHECK(s.error().message == "%2 = add f32 %0, %1: has operands of another type");
  p.insts[2].args[1] = 9;
  CHECK_FALSE(verify(p));
}

TEST_CASE("evaluation in double precision does not round") {
  ProgramBuilder b;
  b.output(b.op(Prim::add, DType::f32, {b.input(DType::f32), b.constant(DType::f32, 1, 0)}));
  Program p = b.take();
  std::vector<Scalar> scratch;
  Scalar in{0x1p-40, 0}, out;
  evaluate(p, &in, &out, scratch);
  CHECK(out.f == 1);
  evaluate(p, &in, &out, scratch, true);
  CHECK(out.f == 1 + 0x1p-40);
  CHECK(p.cost() == 2);
  CHECK(p.live_max() == 2);
}
