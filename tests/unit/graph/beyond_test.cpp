// What the judge of random graphs takes for rounding and what for a wrong result, in each element
// type.
#include <doctest/doctest.h>

#include "tests/fuzz/beyond.h"

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
  bool accepts(const std::vector<double>& plan) const {
    const auto n = static_cast<int64_t>(exact.size());
    const Tensor wide = Tensor::of<double>(DType::f64, {n}, std::span<const double>(exact));
    const Tensor want = stored(exact);
    return beyond(stored(plan), want, {wide, {want}}, model_tolerance(dtype)) < 0;
  }
};

double half_ulp(DType t) { return t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-8; }

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

}  // namespace ferrule::fuzz
