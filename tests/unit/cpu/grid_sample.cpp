// GridSample against the interpreter: modes, paddings, one to three axes, points outside of the
// image or that are no numbers, pixels that are infinite, several threads.
#include <limits>

#include "engine/interpreter/interpreter.h"
#include "runtime/scoped_threads.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

Tensor grid_operand(const Dims& dims, std::mt19937& rng, double reach, double wild, bool halves) {
  auto [out, p] = Tensor::allocate(DType::f32, dims);
  std::uniform_real_distribution<double> number(-reach, reach), chance(0, 1);
  for (int64_t k = 0; k < out.numel(); ++k) {
    const double v = halves ? std::round(number(rng) * 4) / 4 : number(rng);
    static_cast<float*>(p)[k] = chance(rng) >= wild  ? static_cast<float>(v)
                                : chance(rng) >= 0.5 ? std::numeric_limits<float>::infinity()
                                                     : std::numeric_limits<float>::quiet_NaN();
  }
  return out;
}

void check_grid(const Tensor& x, const Tensor& grid, bool constant, const std::string& mode,
                const std::string& padding, int64_t corners) {
  CAPTURE(mode);
  CAPTURE(padding);
  CAPTURE(corners);
  Harness h("GridSample");
  h.node.attrs.set("mode", mode);
  h.node.attrs.set("padding_mode", padding);
  h.node.attrs.set("align_corners", corners);
  h.input(x);
  constant ? h.constant(grid) : h.input(grid);
  const std::vector<const Tensor*> operands{&x, &grid};
  auto want = interpret_node(h.graph, h.node, operands, InterpreterOptions());
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : want.error().message));
  h.output(DType::f32, (*want)[0].dims());
  auto kernel = h.make(own_factory("grid_sample"));
  REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
  REQUIRE((*kernel)->run().has_value());
  const Difference d = compare(h.result(0), (*want)[0], model_tolerance(DType::f32));
  CHECK_MESSAGE(d.ok, d.text);
}

}  // namespace

TEST_CASE("grid_sample: every mode, padding and number of axes") {
  std::mt19937 rng(1);
  struct Sizes {
    Dims x, grid;
  };
  const std::vector<Sizes> sizes{{{2, 3, 5}, {2, 7, 1}},       {{2, 3, 4, 5}, {2, 9, 11, 2}},
                                 {{1, 2, 1, 6}, {1, 3, 3, 2}}, {{1, 2, 3, 4, 5}, {1, 2, 5, 8, 3}},
                                 {{2, 0, 3, 3}, {2, 2, 2, 2}}, {{2, 3, 3, 3}, {2, 0, 2, 2}}};
  for (const Sizes& s : sizes)
    for (const char* mode : {"linear", "nearest", "cubic"})
      for (const char* padding : {"zeros", "border", "reflection"})
        for (const int64_t corners : {0, 1})
          for (const bool halves : {false, true}) {
            const Tensor grid = grid_operand(s.grid, rng, 1.6, halves ? 0.1 : 0, halves);
            check_grid(grid_operand(s.x, rng, 2, 0, false), grid, halves, mode, padding, corners);
          }
}

TEST_CASE("grid_sample: infinite pixels that have no weight take no part") {
  std::mt19937 rng(2);
  for (const char* mode : {"linear", "nearest"})
    for (const int64_t corners : {0, 1})
      check_grid(grid_operand({1, 2, 5, 5}, rng, 2, 0.3, false),
                 grid_operand({1, 6, 6, 2}, rng, 1, 0, true), false, mode, "zeros", corners);
}

TEST_CASE("grid_sample: several threads") {
  std::mt19937 rng(3);
  const ScopedThreads four(4);
  check_grid(grid_operand({3, 4, 12, 10}, rng, 2, 0, false),
             grid_operand({3, 20, 15, 2}, rng, 1.2, 0, false), false, "linear", "border", 1);
}

}  // namespace ferrule::cpu::test
