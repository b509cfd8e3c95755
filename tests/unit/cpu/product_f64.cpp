// MatMul and Gemm in f64 against the interpreter: random sizes, batches that broadcast, vectors,
// transposed factors, addends of every shape, constant and computed factors, several threads.
#include "engine/interpreter/interpreter.h"
#include "runtime/scoped_threads.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

Tensor doubles(const Dims& dims, std::mt19937& rng) {
  std::vector<double> v(static_cast<size_t>(numel(dims)));
  for (double& x : v) x = std::uniform_real_distribution<double>(-1, 1)(rng);
  return Tensor::of<double>(DType::f64, dims, v);
}

void check_f64(Harness& h, const std::vector<Tensor>& operands, bool constant, Factory factory) {
  std::vector<const Tensor*> in;
  for (size_t k = 0; k < operands.size(); ++k) {
    in.push_back(&operands[k]);
    k == 1 && constant ? h.constant(operands[k]) : h.input(operands[k]);
  }
  const auto want = interpret_node(h.graph, h.node, in, InterpreterOptions());
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : want.error().message));
  h.output(DType::f64, (*want)[0].dims());
  for (const Target& target : targets()) {
    h.target = &target;
    auto kernel = h.make(factory);
    REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
    REQUIRE((*kernel)->run().has_value());
    const Difference d = compare(h.result(0), (*want)[0], model_tolerance(DType::f64));
    CHECK_MESSAGE(d.ok, d.text);
  }
}

}  // namespace

TEST_CASE("product_f64: batches and vectors") {
  std::mt19937 rng(1);
  const std::vector<std::pair<Dims, Dims>> sizes{{{5, 7}, {7, 9}},
                                                 {{1, 300}, {300, 17}},
                                                 {{70, 600}, {600, 33}},
                                                 {{7}, {7, 9}},
                                                 {{5, 7}, {7}},
                                                 {{7}, {7}},
                                                 {{2, 3, 5, 7}, {7, 4}},
                                                 {{2, 3, 5, 7}, {2, 3, 7, 4}},
                                                 {{3, 5, 7}, {2, 1, 7, 4}},
                                                 {{2, 1, 5, 7}, {3, 7, 4}},
                                                 {{7}, {2, 3, 7, 4}},
                                                 {{2, 3, 5, 7}, {7}},
                                                 {{1, 1}, {1, 1}}};
  for (const auto& [a, b] : sizes)
    for (const bool constant : {false, true})
      for (const int team : {1, 3}) {
        const ScopedThreads threads(team);
        Harness h("MatMul");
        check_f64(h, {doubles(a, rng), doubles(b, rng)}, constant, make_matmul);
      }
}

TEST_CASE("product_f64: Gemm's factors and addends") {
  std::mt19937 rng(2);
  const std::vector<Dims> addends{{}, {1}, {19}, {1, 19}, {21, 1}, {21, 19}, {1, 1}};
  for (const int64_t turned_a : {0, 1})
    for (const int64_t turned_b : {0, 1})
      for (const Dims& addend : addends) {
        Harness h("Gemm");
        h.node.attrs.set("transA", turned_a);
        h.node.attrs.set("transB", turned_b);
        h.node.attrs.set("alpha", addend.size() == 1 ? 0.5 : 1.0);
        h.node.attrs.set("beta", addend.size() == 2 ? -2.0 : 1.0);
        check_f64(h,
                  {doubles(turned_a ? Dims{13, 21} : Dims{21, 13}, rng),
                   doubles(turned_b ? Dims{19, 13} : Dims{13, 19}, rng), doubles(addend, rng)},
                  turned_a == turned_b, make_gemm);
      }
  Harness h("Gemm");
  check_f64(h, {doubles({21, 13}, rng), doubles({13, 19}, rng)}, true, make_gemm);
}

}  // namespace ferrule::cpu::test
