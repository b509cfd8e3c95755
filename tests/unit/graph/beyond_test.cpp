// What the judge of random graphs takes for rounding and what for a wrong result, in each element
// type.
#include <doctest/doctest.h>

#include <array>

#include "tests/fuzz/beyond.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/noise.h"

namespace ferrule::fuzz {
namespace {

/// Of one result, as the judge has it: in f64, by the interpreter, and by a plan.
struct Results {
  DType dtype;
  std::vector<double> exact;
  Tensor stored(const std::vector<double>& values) const {
    auto [t, p] = Tensor::allocate(dtype, {static_cast<int64_t>(values.size())});
    for (size_t k = 0; k < values.size(); ++k) {
      const auto v = static_cast<float>(values[k]);
      if (dtype == DType::f32)
        static_cast<float*>(p)[k] = v;
      else
        static_cast<uint16_t*>(p)[k] = dtype == DType::f16 ? float_to_f16(v) : float_to_bf16(v);
    }
    return t;
  }
  Difference compared(const std::vector<double>& plan) const {
    return compare(stored(plan), stored(exact), model_tolerance(dtype));
  }
  bool accepts(const std::vector<double>& plan) const {
    const auto n = static_cast<int64_t>(exact.size());
    const Tensor wide = Tensor::of<double>(DType::f64, {n}, std::span<const double>(exact));
    const Tensor want = stored(exact);
    return beyond(stored(plan), want, {wide, {want}}, model_tolerance(dtype)) < 0;
  }
};

/// From -1 to 1.
double any(Draw& draw) { return static_cast<double>(draw.between(-1000000, 1000000)) / 1e6; }

/// The same sum of `terms` numbers of about 1 in f32 and in f64; `cancel`: they cancel but for the
/// rounding of the last one, and about so much.
std::pair<float, double> sums(int terms, std::optional<double> cancel, Draw& draw) {
  float narrow = 0;
  double wide = 0;
  for (int k = 0; k < terms; ++k) {
    auto term = static_cast<float>(any(draw));
    if (cancel && k + 1 == terms) term = static_cast<float>(*cancel - wide);
    narrow += term, wide += term;
  }
  return {narrow, wide};
}

}  // namespace

TEST_CASE("the judge finds wrong signs of small results, and lets rounding pass") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const double scale : {1.0, 1e-4, 1e-6}) {
      if (dtype == DType::f16 && scale < 1e-4) continue;  // denormals
      CAPTURE(name(dtype));
      CAPTURE(scale);
      Results r{dtype, {}};
      std::vector<double> wrong, half, near;
      for (int k = 0; k < 1000; ++k) {
        const double x = scale * (1 + std::fabs(std::sin(k)));
        r.exact.push_back(x), wrong.push_back(-x), half.push_back(k % 2 ? x : -x);
        near.push_back(x * (1 + (k % 5 - 2) * half_ulp(dtype)));
      }
      CHECK(r.accepts(r.exact));
      CHECK(r.accepts(near));
      CHECK_FALSE(r.accepts(wrong));
      CHECK_FALSE(r.accepts(half));
    }
}

TEST_CASE("the judge finds small results that are wrong together beside a large one") {
  for (const double large : {1.0, 1e3})
    for (const double spread : {0.0, 1.0, 9.0}) {
      CAPTURE(large);
      CAPTURE(spread);
      Results r{DType::f32, {large}};
      for (int k = 0; k < 999; ++k)
        r.exact.push_back((k % 3 ? 1 : -1) * large * 1e-6 * (1 + spread * std::fabs(std::sin(k))));
      Draw draw(1);
      auto scaled = [&](double by, double noise) {
        std::vector<double> out = r.exact;
        for (size_t k = 1; k < out.size(); ++k) out[k] = out[k] * by + large * noise * any(draw);
        return out;
      };
      for (const double noise : {0.0, 2e-7}) {
        CAPTURE(noise);
        for (const double by : {-1.0, 0.0, 2.0}) {
          CAPTURE(by);
          const Difference d = r.compared(scaled(by, noise));
          CHECK((!d.ok || d.doubtful));
          CHECK_FALSE(r.accepts(scaled(by, noise)));
        }
        CHECK_FALSE(r.compared(scaled(1, noise)).doubtful);
        CHECK(r.accepts(scaled(1, noise)));
      }
      // Rounding that is as large as what it falls upon, or much larger.
      for (const double noise : {1e-6, 5e-6}) CHECK(r.accepts(scaled(1, noise)));
    }
}

TEST_CASE("the judge lets pass what f32 sums leave of terms that cancel") {
  Draw draw(2);
  for (const int terms : {3, 30, 300, 3000})
    for (const double small : {0.0, 1e-7, 1e-6, 1e-5, 1e-4}) {
      CAPTURE(terms);
      CAPTURE(small);
      Results r{DType::f32, {}};
      std::vector<double> plan;
      for (int k = 0; k < 1000; ++k) {
        const auto [narrow, wide] =
            sums(terms, k < 30 ? std::nullopt : std::optional(small * any(draw)), draw);
        plan.push_back(narrow), r.exact.push_back(wide);
      }
      CHECK(r.compared(plan).ok);
      CHECK_FALSE(r.compared(plan).doubtful);
      CHECK(r.accepts(plan));
    }
}

TEST_CASE("what nearly overflows on the way may be infinite, and nothing else") {
  struct {
    DType dtype;
    double end;
  } const types[] = {{DType::f16, 65504}, {DType::bf16, 0x1.fep127}, {DType::f32, 0x1.fffffep127}};
  for (const auto& [dtype, end] : types)
    for (const double sign : {1.0, -1.0}) {
      CAPTURE(name(dtype));
      CAPTURE(sign);
      const double off = model_tolerance(dtype).relative;
      const std::vector<double> on_the_way{sign * end * (1 - off / 2), sign * end * (1 - 4 * off)};
      const Tensor wide = Tensor::of<double>(DType::f64, {2}, std::span(on_the_way));
      const Tensor early = overflowing_early(wide, dtype);
      CHECK(early.at_f64(0) == sign * INFINITY);
      CHECK(early.at_f64(1) == on_the_way[1]);
      // The results are a quarter of that.
      Results r{dtype, {on_the_way[0] / 4, on_the_way[1] / 4}};
      const Tensor exact = Tensor::of<double>(DType::f64, {2}, std::span(r.exact));
      auto accepts = [&](double first, double second, const Tensor* overflowing) {
        const Tensor want = r.stored(r.exact);
        return beyond(r.stored({first, second}), want, {exact, {want}, overflowing},
                      model_tolerance(dtype)) < 0;
      };
      CHECK(accepts(sign * INFINITY, r.exact[1], &early));
      CHECK(accepts(r.exact[0], r.exact[1], &early));
      CHECK_FALSE(accepts(sign * INFINITY, r.exact[1], nullptr));
      CHECK_FALSE(accepts(-sign * INFINITY, r.exact[1], &early));
      CHECK_FALSE(accepts(NAN, r.exact[1], &early));
      CHECK_FALSE(accepts(r.exact[0], sign * INFINITY, &early));
      CHECK_FALSE(accepts(0, r.exact[1], &early));
      // Two such numbers that cancel: either may overflow, or both.
      const Tensor met = Tensor::of<double>(DType::f64, {2}, std::array{0.0 / 0.0, on_the_way[1]});
      for (const double any : std::array<double, 3>{INFINITY, -INFINITY, NAN}) {
        CHECK(accepts(any, r.exact[1], &met));
        CHECK_FALSE(accepts(r.exact[0], any, &met));
      }
      CHECK_FALSE(accepts(0, r.exact[1], &met));
    }
}

}  // namespace ferrule::fuzz
