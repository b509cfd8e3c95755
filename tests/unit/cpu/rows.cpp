// Softmax and reductions over rows and columns, with the values that overflow or are not numbers.
#include <limits>

#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {

TEST_CASE("softmax along every axis") {
  for (const Dims& d : std::vector<Dims>{{2, 5, 7}, {3, 71, 2}, {2, 3, 40}})
  for (const char* op : {"Softmax", "LogSoftmax"})
    for (int64_t axis : {0, 1, 2, -1}) {
      const Tensor x = random_tensor(d, 1, -30, 30);
      Harness h(op);
      h.node.attrs.set("axis", axis);
      h.input(x);
      h.output(DType::f32, d);
      const auto a = static_cast<size_t>(axis < 0 ? axis + 3 : axis);
      const Dims strides = strides_of(d, Layout::plain);
      std::vector<double> want;
      each_index(d, [&](const Dims& i, int64_t k) {
        const int64_t start = k - i[a] * strides[a];
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < d[a]; ++j) top = std::max(top, x.at_f64(start + j * strides[a]));
        for (int64_t j = 0; j < d[a]; ++j) sum += std::exp(x.at_f64(start + j * strides[a]) - top);
        const double v = x.at_f64(k) - top;
        want.push_back(std::string(op) == "Softmax" ? std::exp(v) / sum : v - std::log(sum));
      });
      check_close(h.run(make_softmax), want);
    }
}

TEST_CASE("softmax of short rows: infinities, differences beyond every exponent, NaN") {
  const float inf = std::numeric_limits<float>::infinity();
  Harness h("Softmax");
  h.node.attrs.set("axis", int64_t{-1});
  h.input(Tensor::of_f32({4, 3}, {0, -inf, 0, 500, -500, 500, -90, 0, -95, 1, std::nanf(""), 2}));
  h.output(DType::f32, {4, 3});
  const Tensor y = h.run(make_softmax);
  auto v = y.as<float>();
  CHECK(v[0] == 0.5f);
  CHECK(v[1] == 0.0f);
  CHECK(v[4] == 0.0f);
  CHECK(v[5] == 0.5f);
  CHECK(v[6] == doctest::Approx(std::exp(-90.0)).epsilon(1e-5));
  CHECK(v[8] == doctest::Approx(std::exp(-95.0)).epsilon(1e-2));  // below the smallest normal number
  CHECK(v[7] == 1.0f);
  for (size_t k = 9; k < 12; ++k) CHECK(std::isnan(v[k]));
}

TEST_CASE("reductions over neighbouring axes") {
  const Dims d{3, 4, 5, 37};
  const Tensor x = random_tensor(d, 1);
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})
    for (const Dims& axes : std::vector<Dims>{{3}, {0}, {1, 2}, {2, 3}, {-1, -2}, {}}) {
      CAPTURE(op);
      Harness h(op);
      h.input(x);
      if (!axes.empty()) h.constant(Tensor::of_i64({static_cast<int64_t>(axes.size())}, axes));
      Dims y = d;
      for (int64_t a : axes) y[static_cast<size_t>(a < 0 ? a + 4 : a)] = 1;
      if (axes.empty()) y = {1, 1, 1, 1};
      h.output(DType::f32, y);
      std::vector<double> want(static_cast<size_t>(numel(y)), 0.0);
      const std::string kind = std::string(op).substr(6);
      if (kind == "Max") std::fill(want.begin(), want.end(), -INFINITY);
      if (kind == "Min") std::fill(want.begin(), want.end(), INFINITY);
      const Dims ys = strides_of(y, Layout::plain);
      each_index(d, [&](const Dims& i, int64_t k) {
        int64_t at = 0;
        for (size_t a = 0; a < 4; ++a) at += y[a] == 1 ? 0 : i[a] * ys[a];
        double& w = want[static_cast<size_t>(at)];
        const double v = x.at_f64(k);
        w = kind == "Max" ? std::max(w, v) : kind == "Min" ? std::min(w, v) : w + v;
      });
      if (kind == "Mean")
        for (double& w : want) w /= static_cast<double>(numel(d)) / static_cast<double>(numel(y));
      check_close(h.run(make_reduce), want);
    }
}

TEST_CASE("maximum and minimum keep NaN") {
  std::vector<float> v(40, 1.0f);
  v[17] = std::numeric_limits<float>::quiet_NaN();
  for (const char* op : {"ReduceMax", "ReduceMin"}) {
    Harness h(op);
    h.input(Tensor::of_f32({1, 40}, v));
    h.constant(Tensor::of_i64({1}, {1}));
    h.output(DType::f32, {1, 1});
    CHECK(std::isnan(h.run(make_reduce).as<float>()[0]));
  }
}

TEST_CASE("axes that are not neighbours are refused") {
  Harness h("ReduceSum");
  h.input(random_tensor({2, 3, 4}, 1));
  h.constant(Tensor::of_i64({2}, {0, 2}));
  h.output(DType::f32, {1, 3, 1});
  CHECK_FALSE(h.make(make_reduce).has_value());
}

}  // namespace ferrule::cpu::test
