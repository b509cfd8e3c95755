// What plans leave behind when they are gone: mappings of memory, of which Linux allows a process
// 65,530. Generated kernels, oneDNN's, and tensors take them.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/unit/cpu/plans.h"

namespace ferrule::cpu::test {
namespace {

int64_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}

/// Kernels that no other of these has: convolutions, a product, chains with a constant.
void run_one(int k) {
  Model m;
  const int64_t c = 3 + k % 40, size = 6 + k / 40;
  const ValueId x = m.input({1, c, size, size});
  const ValueId y = m.convolution(x, {1, c, size, size});
  const ValueId z = m.node("Mul", {y, m.constant(Tensor::scalar(DType::f32, 1 + k / 1024.0))});
  m.graph.add_output(m.node("Softmax", {z}, {{"axis", int64_t{-1}}}, {1, c, size, size}));
  const ValueId w = m.constant(random_tensor({size, c}, 2));
  m.graph.add_output(m.node("MatMul", {z, w}, {}, {1, c, size, c}));
  check(m.graph);
}

}  // namespace

TEST_CASE("the mappings of a process do not grow with the plans that it has run") {
  const int capacity = dnnl::get_primitive_cache_capacity();
  dnnl::set_primitive_cache_capacity(8);
  CpuJit::instance().keep_at_most(8);
  for (int k = 0; k < 30; ++k) run_one(k);
  const int64_t before = mappings();
  for (int k = 30; k < 230; ++k) run_one(k);
  const int64_t after = mappings();
  CHECK(after < before + 150);  // two or more each, if they stayed
  CpuJit::instance().keep_at_most(1024);
  dnnl::set_primitive_cache_capacity(capacity);
  for (int k = 230; k < 260; ++k) run_one(k);
  CHECK(mappings() > after + 50);  // these are kept for the next plan
}

}  // namespace ferrule::cpu::test
