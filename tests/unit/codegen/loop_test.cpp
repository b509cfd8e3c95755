#include "codegen/cpu/loop_nest.h"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>

#include "codegen/cpu/jit.h"
#include "engine/semantics/program_builder.h"
#include "tests/unit/codegen/helpers.h"

using namespace ferrule;

namespace {

using Strides = std::vector<std::vector<int64_t>>;

std::vector<int64_t> row_major(const std::vector<int64_t>& dims) {
  std::vector<int64_t> out(dims.size(), 1);
  for (size_t k = dims.size(); k-- > 1;) out[k - 1] = out[k] * dims[k];
  return out;
}

LoopNest nest_of(const std::vector<int64_t>& dims, const Strides& strides) {
  std::vector<int> bytes(strides.size(), 4);
  auto nest = LoopNest::make(dims, strides, bytes, 1);
  REQUIRE(nest.has_value());
  return *nest;
}

/// out = a - b over the nest, in `parts` ranges, against plain indexing.
void check(const std::vector<int64_t>& dims, const Strides& strides, int parts) {
  LoopNest nest = nest_of(dims, strides);
  ProgramBuilder builder;
  uint32_t x = builder.input(DType::f32), y = builder.input(DType::f32);
  builder.output(builder.op(Prim::sub, DType::f32, {x, y}));
  auto kernel =
      CpuJit::instance().compile({builder.take(), nest.inner(), test::widest_target(), false});
  REQUIRE(kernel.has_value());
  size_t room = 1;
  for (const auto& s : strides) {
    size_t most = 1;
    for (size_t d = 0; d < dims.size(); ++d)
      most += static_cast<size_t>(std::max<int64_t>(dims[d] - 1, 0) * s[d]);
    room = std::max(room, most);
  }
  std::vector<float> a(room), b(room), got(room, -1), want(room, -1);
  for (size_t k = 0; k < room; ++k)
    a[k] = static_cast<float>(3 * k), b[k] = static_cast<float>(k % 101);
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  for (int64_t k = 0; k < count; ++k) {
    int64_t rest = k, at[3] = {};
    for (size_t d = dims.size(); d-- > 0; rest /= dims[d])
      for (size_t o = 0; o < 3; ++o) at[o] += rest % dims[d] * strides[o][d];
    want[static_cast<size_t>(at[2])] =
        a[static_cast<size_t>(at[0])] - b[static_cast<size_t>(at[1])];
  }
  void* ptrs[3] = {a.data(), b.data(), got.data()};
  int64_t size = nest.size();
  CHECK(nest.elements() == count);
  for (int part = 0; part < parts; ++part)
    nest.run((*kernel)->fn, ptrs, size * part / parts, size * (part + 1) / parts);
  CHECK(got == want);
}

}  // namespace

TEST_CASE("contiguous operands are one loop, split in aligned pieces") {
  auto s = row_major({8, 3, 50, 40});
  LoopNest nest = nest_of({8, 3, 50, 40}, {s, s, s});
  CHECK(nest.inner() == std::vector(3, InnerStride::contiguous));
  CHECK(nest.size() == 12);
  CHECK(nest.unit() % 16 == 0);
  for (int parts : {1, 2, 5, 30}) check({8, 3, 50, 40}, {s, s, s}, parts);
}

TEST_CASE("broadcast, transposed, channels-last and gapped operands") {
  std::vector<int64_t> dims{2, 3, 5, 7};
  auto s = row_major(dims);
  std::vector<int64_t> last{105, 1, 21, 3};
  for (int parts : {1, 3, 7}) {
    check(dims, {s, {0, 1, 0, 0}, s}, parts);
    check(dims, {last, {0, 1, 0, 0}, last}, parts);
    check(dims, {s, last, last}, parts);
    check(dims, {s, {0, 0, 0, 0}, last}, parts);
    check(dims, {s, {15, 5, 1, 0}, {210, 70, 14, 2}}, parts);
  }
  CHECK(nest_of(dims, {last, {0, 1, 0, 0}, last}).inner() ==
        std::vector(3, InnerStride::contiguous));
  CHECK(nest_of(dims, {s, {0, 1, 0, 0}, s}).inner()[1] == InnerStride::broadcast);
  CHECK(nest_of(dims, {s, {0, 1, 0, 0}, last}).inner()[0] == InnerStride::strided);
}

TEST_CASE("rank 0, sizes 0 and 1") {
  check({}, {{}, {}, {}}, 1);
  check({1, 1}, {{1, 1}, {0, 0}, {1, 1}}, 1);
  check({0, 5}, {{5, 1}, {0, 1}, {5, 1}}, 2);
  check({5, 0}, {{0, 1}, {0, 1}, {0, 1}}, 2);
  check({1, 5, 1}, {{5, 1, 1}, {0, 1, 0}, {5, 1, 1}}, 2);
  CHECK(nest_of({0}, {{1}, {1}, {1}}).size() == 0);
}

TEST_CASE("a broadcast output is refused") {
  std::vector<int> bytes(2, 4);
  Strides strides{{1}, {0}};
  std::vector<int64_t> dims{4};
  CHECK_FALSE(LoopNest::make(dims, strides, bytes, 1).has_value());
}
