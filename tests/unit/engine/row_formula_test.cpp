// Row operators are inferred and interpreted from their formulas, a user's like the shipped ones:
// here these under a domain of their own, against plain loops.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/rule/load.h"
#include "tests/unit/engine/kit.h"

using namespace ferrule;

namespace {

/// The shipped operators, and each row operator once more in the domain `copy`.
const Semantics& copies() {
  static const Semantics table = [] {
    std::ifstream in(rules_dir() + "/ops/reduction.yaml");
    std::string text, line;
    while (std::getline(in, line))
      text += line + (line.starts_with("  - op: ") ? "\n    domain: copy\n" : "\n");
    std::string dir = (std::filesystem::temp_directory_path() / "ferrule-copies-XXXXXX").string();
    REQUIRE(mkdtemp(dir.data()));
    std::filesystem::create_directory(dir + "/ops");
    std::ofstream(dir + "/ops/copies.yaml") << text;
    auto ops = load_semantics(std::vector{rules_dir(), dir}, infer_by_schema);
    std::filesystem::remove_all(dir);
    return must(std::move(ops));
  }();
  return table;
}

std::vector<float> drawn(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> v(count);
  for (float& e : v) e = std::uniform_real_distribution<float>(-2, 2)(random);
  return v;
}

/// y of `y = copy.CALL` on x and further inputs.
Tensor result(const std::string& call, const std::string& inputs,
              const std::vector<Tensor>& values) {
  ImportOptions import;
  import.ops = &copies();
  const std::string types = inputs.substr(0, inputs.find('['));
  const Graph g =
      std::move(must(import_text("g (" + inputs + ") => (" + types +
                                     "[] y) <int64[2] ends = {0, -1}> { y = copy." + call + " }",
                                 import))
                    .graph);
  InterpreterOptions options;
  options.ops = &copies(), options.limits = &limits();
  return must(interpret(g, values, options))[0];
}

void check(const Tensor& got, const std::vector<int64_t>& dims, const std::vector<double>& want) {
  REQUIRE(got.dims() == dims);
  const Tensor w = Tensor::of_f32(dims, std::vector<float>(want.begin(), want.end()));
  const Difference d = compare(got, w, operator_tolerance(DType::f32));
  CHECK_MESSAGE(d.ok, d.text);
}

}  // namespace

TEST_CASE("row operators have the meaning of their formulas: along an axis in the middle") {
  const std::vector<float> x = drawn(24, 1);
  std::vector<double> softmax(24), norm(24);
  for (size_t outer = 0; outer < 2; ++outer)
    for (size_t inner = 0; inner < 4; ++inner) {
      double sum = 0, square = 0;
      auto at = [&](size_t k) { return outer * 12 + k * 4 + inner; };
      for (size_t k = 0; k < 3; ++k) {
        const double v = x[at(k)];
        sum += std::exp(v), square += v * v;
      }
      for (size_t k = 0; k < 3; ++k) {
        softmax[at(k)] = std::exp(double{x[at(k)]}) / sum;
        norm[at(k)] = x[at(k)] / std::sqrt(square);
      }
    }
  const Tensor t = Tensor::of_f32({2, 3, 4}, x);
  check(result("Softmax<axis=1>(x)", "float[2,3,4] x", {t}), {2, 3, 4}, softmax);
  check(result("LpNormalization<axis=-2>(x)", "float[2,3,4] x", {t}), {2, 3, 4}, norm);
}

TEST_CASE("row operators have the meaning of their formulas: groups of channels") {
  const std::vector<float> x = drawn(60, 2), scale = drawn(6, 3), bias = drawn(6, 4);
  std::vector<double> want(60);
  for (size_t group = 0; group < 3; ++group) {  // two channels of ten elements
    double mean = 0, variance = 0;
    for (size_t k = 0; k < 20; ++k) mean += x[group * 20 + k] / 20.0;
    for (size_t k = 0; k < 20; ++k) variance += std::pow(x[group * 20 + k] - mean, 2) / 20;
    for (size_t k = 0; k < 20; ++k) {
      const size_t at = group * 20 + k, channel = at / 10;
      want[at] = (x[at] - mean) / std::sqrt(variance + 1e-5) * scale[channel] + bias[channel];
    }
  }
  check(result(
            "GroupNormalization<num_groups=3>(x, s, b)", "float[1,6,10] x, float[6] s, float[6] b",
            {Tensor::of_f32({1, 6, 10}, x), Tensor::of_f32({6}, scale), Tensor::of_f32({6}, bias)}),
        {1, 6, 10}, want);
}

TEST_CASE("row operators have the meaning of their formulas: one value a row") {
  const std::vector<float> x = drawn(24, 5);
  std::vector<double> mean(3), total(3);
  for (size_t at = 0; at < 24; ++at) {
    mean[at / 4 % 3] += x[at] / 8.0;
    total[at / 4 % 3] += std::exp(double{x[at]});
  }
  for (double& v : total) v = std::log(v);
  const Tensor t = Tensor::of_f32({2, 3, 4}, x);
  check(result("ReduceMean<keepdims=0>(x, ends)", "float[2,3,4] x", {t}), {3}, mean);
  check(result("ReduceLogSumExp(x, ends)", "float[2,3,4] x", {t}), {1, 3, 1}, total);
  check(result("ReduceSumSquare<noop_with_empty_axes=1>(x)", "float[2] x",
               {Tensor::of_f32({2}, {3, -2})}),
        {2}, {9, 4});
  check(result("ReduceProd<keepdims=0>(x)", "float[0] x", {Tensor::of_f32({0}, {})}), {}, {1});
}

TEST_CASE("row operators of integers: 64 bits that wrap, truncated quotients and roots") {
  const Tensor x = Tensor::of_i64({2, 3}, {0, 2, 4, -3, -4, INT64_MIN});
  auto rows = [&](const std::string& op) {
    return result(op + "<keepdims=0>(x)", "int64[2,3] x", {x}).to_i64()[0];
  };
  CHECK(rows("ReduceSum") == INT64_MAX);
  CHECK(rows("ReduceMax") == 4);
  CHECK(rows("ReduceMin") == INT64_MIN);
  const Tensor small = Tensor::of<int32_t>(DType::i32, {3}, std::vector<int32_t>{1, -2, 4});
  auto all = [&](const std::string& op) {
    return result(op + "(x)", "int32[3] x", {small}).to_i64()[0];
  };
  CHECK(all("ReduceMean") == 1);
  CHECK(all("ReduceL1") == 7);
  CHECK(all("ReduceL2") == 4);
  CHECK(all("ReduceProd") == -8);
  const Tensor no = Tensor::of_i64({0}, {});
  CHECK(result("ReduceMean(x)", "int64[0] x", {no}).to_i64()[0] == 0);
  CHECK(result("ReduceMax(x)", "int64[0] x", {no}).to_i64()[0] == INT64_MIN);
}

TEST_CASE("operands of a row operator of a user's that do not fit are refused") {
  ImportOptions import;
  import.ops = &copies();
  CHECK_FALSE(
      import_text("g (float[2,3] x) => (float[] y) { y = copy.Softmax<axis=2>(x) }", import));
  const Graph g = std::move(
      must(import_text(
               "g (float[2,3] x, float[4] s) => (float[] y) { y = copy.RMSNormalization(x, s) }",
               import))
          .graph);
  InterpreterOptions options;
  options.ops = &copies(), options.limits = &limits();
  const auto r = interpret(
      g, std::vector{Tensor::of_f32({2, 3}, {1, 2, 3, 4, 5, 6}), Tensor::of_f32({4}, {1, 2, 3, 4})},
      options);
  REQUIRE_FALSE(r);
  CHECK(r.error().code == Code::bad_shape);
}
