// Nested graphs as old or lax exporters write them: Scan of opset 8, and loops whose body declares
// its number of turns as [1].
#include <doctest/doctest.h>

#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

using Values = std::vector<double>;

std::vector<Values> values(const std::string& text, int64_t opset, const std::vector<Tensor>& in) {
  ImportOptions options;
  options.ops = &ops();
  options.text_opset = opset;
  const Graph g = std::move(must(import_text(text, options)).graph);
  must(verify(g));
  InterpreterOptions o;
  o.ops = &ops();
  std::vector<Values> out;
  for (const Tensor& t : must(interpret(g, in, o))) out.push_back(t.to_f64());
  return out;
}

/// Sums of each of two sequences; `inputs` and `attributes` of the Scan.
std::vector<Values> sums(const std::string& attributes, const std::string& lengths,
                         const std::vector<Tensor>& in) {
  return values(
      "g (int64[2] n, float[2,1] i, float[2,3,1] x) => (float[2,1] last, float[2,3,1] all) {\n"
      " ten = Constant<value = float[1] {10.0}>()\n"
      " last, all = Scan<num_scan_inputs = 1, " +
          attributes +
          "body = s (float[1] a, float[1] b) => (float[1] c, float[1] d)\n"
          " { c = Add(a, b) d = Mul(c, ten) }>(" +
          lengths + ", i, x)\n}",
      8, in);
}

}  // namespace

TEST_CASE("Scan of opset 8") {
  const std::vector<Tensor> in{Tensor::of_i64({2}, {2, 3}), Tensor::of_f32({2, 1}, {0, 100}),
                               Tensor::of_f32({2, 3, 1}, {1, 2, 3, 4, 5, 6})};
  CHECK(sums("", "\"\"", in) == std::vector<Values>{{6, 115}, {10, 30, 60, 1040, 1090, 1150}});
  CHECK(sums("directions = [1], ", "\"\"", in) ==
        std::vector<Values>{{6, 115}, {30, 50, 60, 1060, 1110, 1150}});
  CHECK(sums("", "n", in) == std::vector<Values>{{3, 115}, {10, 30, 0, 1040, 1090, 1150}});
  CHECK(sums("directions = [1], ", "n", in) ==
        std::vector<Values>{{3, 115}, {20, 30, 0, 1060, 1110, 1150}});
}

TEST_CASE("a loop gives its number of turns the rank that the body declares") {
  const Tensor x = Tensor::of_f32({3}, {5, 6, 7});
  CHECK(values("g (float[3] x) => (float[3,1] y) {\n n = Constant<value_int = 3>()\n"
               " y = Loop<body = b (int64[1] i, bool[1] c) => (bool[1] d, float[1] r)\n"
               " { d = Identity(c) r = Gather(x, i) }>(n, \"\")\n}",
               13, {x}) == std::vector<Values>{{5, 6, 7}});
  CHECK(values("g (float[3] x) => (float[3] y) {\n n = Constant<value_int = 3>()\n"
               " y = Loop<body = b (int64 i, bool c) => (bool d, float r)\n"
               " { d = Identity(c) r = Gather(x, i) }>(n, \"\")\n}",
               13, {x}) == std::vector<Values>{{5, 6, 7}});
}
