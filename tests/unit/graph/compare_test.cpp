// What compare() calls equal: elements one by one, and all of them together where each is small
// beside the tolerance.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/graph/compare.h"

namespace ferrule {
namespace {

bool equal(const std::vector<float>& got, const std::vector<float>& want) {
  const auto n = static_cast<int64_t>(want.size());
  return compare(Tensor::of_f32({n}, got), Tensor::of_f32({n}, want), model_tolerance(DType::f32))
      .ok;
}

}  // namespace

TEST_CASE("elements that are not finite are said before any other difference") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  auto compared = [](const std::vector<float>& got, const std::vector<float>& want) {
    const auto n = static_cast<int64_t>(got.size());
    return compare(Tensor::of_f32({n}, got), Tensor::of_f32({n}, want),
                   model_tolerance(DType::f32));
  };
  const Difference d = compared({1, 3, -nan, inf}, {1, 2, 4, inf});
  CHECK_FALSE(d.ok);
  CHECK(d.not_finite == 1);
  CHECK(d.text == "1 of 4 elements are not finite; the first, element 2, is nan, want 4");
  CHECK(margin_text(d).empty());
  CHECK(compared({1, 3}, {1, inf}).text == "element 1 is 3, want inf");
  CHECK(compared({nan, inf}, {nan, inf}).ok);
}

TEST_CASE("results that are small beside the absolute tolerance are compared with their own size") {
  for (const float scale : {1e-6f, 1e-20f, 1e-30f}) {
    std::vector<float> want, near, wrong, half;
    for (int k = 0; k < 1000; ++k) {
      const float x = scale * (1 + std::fabs(std::sin(static_cast<float>(k))));
      want.push_back(x), near.push_back(x * 1.00001f), wrong.push_back(-x),
          half.push_back(k % 2 ? x : -x);
    }
    CAPTURE(scale);
    CHECK(equal(want, want));
    CHECK(equal(near, want));
    CHECK(!equal(wrong, want));
    CHECK(!equal(half, want));
    CHECK(!equal(std::vector<float>(1000, 0), want));
  }
  CHECK(equal({0, 1e-39f}, {1e-39f, 0}));  // some flush it
}

TEST_CASE("beside a large element, near nothing is equal") {
  CHECK(equal({1e3f, 5e-3f}, {1e3f, 0}));
  CHECK(!equal({1e3f, 5e-2f}, {1e3f, 0}));
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  CHECK(equal({inf, nan, -inf, 1}, {inf, nan, -inf, 1}));
  CHECK(!equal({inf, nan, -inf, 1}, {inf, 1, -inf, 1}));
  CHECK(!equal({3e38f}, {inf}));
}

TEST_CASE("small elements that are systematically off beside a large one make a result doubtful") {
  const Tolerance allowed = model_tolerance(DType::f32);
  std::vector<float> want{1}, turned{1}, one{1};
  for (int k = 0; k < 999; ++k) {
    const float x = 1e-6f * (1 - std::fabs(std::sin(static_cast<float>(k))) / 4);
    want.push_back(x), turned.push_back(-x), one.push_back(k == 7 ? -x : x);
  }
  auto compared = [&](const std::vector<float>& got) {
    return compare(Tensor::of_f32({1000}, got), Tensor::of_f32({1000}, want), allowed);
  };
  const Difference d = compared(turned);
  CHECK(d.ok);
  CHECK(d.doubtful);
  CHECK(d.mistrusted);
  CHECK(d.at == 1);
  CHECK(!d.text.empty());
  for (const auto& same : {want, one}) {
    CHECK_FALSE(compared(same).doubtful);
    CHECK_FALSE(compared(same).mistrusted);
    CHECK(compared(same).text.empty());
  }
  // Beside a result in f64: wrong, unless the interpreter's own rounding goes as far.
  auto of = [](const std::vector<float>& values) { return Tensor::of_f32({1000}, values); };
  CHECK(wrong_alike(of(turned), of(want), allowed, 0) == 1);
  CHECK(wrong_alike(of(turned), of(want), allowed, 1e-6) == -1);
  CHECK(wrong_alike(of(one), of(want), allowed, 0) == -1);
}

}  // namespace ferrule
