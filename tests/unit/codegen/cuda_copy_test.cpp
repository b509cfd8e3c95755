// Kernels that move elements, as CUDA C++ on the host: every element size, permutation and index
// width against a loop.
#include "codegen/cuda/copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "tests/unit/codegen/host_kernels.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

using Dims = std::vector<int64_t>;

Dims dense(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t k = dims.size(); k-- > 1;) strides[k - 1] = strides[k] * dims[k];
  return strides;
}

int64_t count(const Dims& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

/// 16-byte aligned, filled with what no test writes.
struct Memory {
  explicit Memory(size_t size) : words(size / 8 + 4, 0x7e7e7e7e7e7e7e7e) {}
  char* data() {
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(words.data()) + 15) / 16 * 16);
  }
  std::vector<uint64_t> words;
};

struct Transpose {
  Dims dims, source, result;  ///< dims in the order of the result
  int bytes;
  CudaTransposePlan plan;
  size_t id;
};

}  // namespace

TEST_CASE("copies turned in shared memory put every element where it belongs") {
  if (HostKernels::missing()) return;
  std::mt19937 rng(3);
  HostKernels kernels;
  std::set<std::string> tiles;
  std::vector<Transpose> all;
  for (int bytes : {1, 2, 4, 8})
    for (int round = 0; round < 24; ++round) {
      Dims own(2 + rng() % 4);
      for (int64_t& d : own)
        d = own.size() == 2 ? 1 + static_cast<int64_t>(rng() % 100)
                            : 1 + static_cast<int64_t>(rng() % 12);
      if (round % 3 == 0) own.back() = 33 + static_cast<int64_t>(rng() % 40);
      std::vector<size_t> order(own.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::ranges::shuffle(order, rng);
      const Dims strides = dense(own);
      Transpose t{{}, {}, {}, bytes, {}, 0};
      for (size_t axis : order) t.dims.push_back(own[axis]), t.source.push_back(strides[axis]);
      t.result = dense(t.dims);
      auto plan = plan_cuda_transpose(t.dims, t.source, t.result, bytes);
      if (!plan) continue;
      const auto shapes = plan->shapes.all;
      plan = plan_cuda_transpose(t.dims, t.source, t.result, bytes,
                                 shapes[static_cast<size_t>(round) % shapes.size()].text());
      tiles.insert(plan->shapes.taken.text());
      t.plan = std::move(*plan);
      t.plan.kernel.wide_index = round % 4 == 0;
      t.id = kernels.add(cuda_transpose_source(t.plan.kernel, "kernel", ""), "kernel");
      all.push_back(std::move(t));
    }
  CHECK(all.size() > 40);
  CHECK(tiles.size() >= 4);
  const std::string problem = kernels.compile();
  REQUIRE_MESSAGE(problem.empty(), problem);
  for (const Transpose& t : all) {
    const int64_t n = count(t.dims);
    Memory from(static_cast<size_t>(n * t.bytes)), to(static_cast<size_t>(n * t.bytes) + 8);
    for (int64_t k = 0; k < n * t.bytes; ++k) from.data()[k] = static_cast<char>(rng());
    const std::string wrong = kernels.launch(
        t.id, cuda_transpose_arguments(t.plan.kernel, t.plan.geometry, from.data(), to.data()),
        {static_cast<unsigned>(t.plan.geometry.blocks(t.plan.kernel)), 1, 1},
        {CudaTransposeKernel::kWarp, static_cast<unsigned>(t.plan.kernel.rows), 1});
    REQUIRE_MESSAGE(wrong.empty(), wrong);
    int64_t different = 0;
    for (int64_t k = 0; k < n; ++k) {
      int64_t rest = k, at = 0;
      for (size_t a = t.dims.size(); a-- > 0; rest /= t.dims[a])
        at += rest % t.dims[a] * t.source[a];
      different += std::memcmp(to.data() + k * t.bytes, from.data() + at * t.bytes,
                               static_cast<size_t>(t.bytes)) != 0;
    }
    CHECK(different == 0);
    CHECK(to.data()[n * t.bytes] == 0x7e);
  }
}

TEST_CASE("gathers take what the indices say, from the end too, and tell of one outside") {
  if (HostKernels::missing()) return;
  std::mt19937 rng(4);
  HostKernels kernels;
  struct Gather {
    int64_t outer, axis, count, inner;
    bool across, outside;  ///< across: the data's last two axes lie the other way round in memory
    CudaGatherPlan plan;
    size_t id;
  };
  std::vector<Gather> all;
  for (int bytes : {1, 2, 4, 8})
    for (int index : {4, 8})
      for (int64_t inner : {1, 3, 8, 64}) {
        Gather g{1 + static_cast<int64_t>(rng() % 3),
                 1 + static_cast<int64_t>(rng() % 50),
                 1 + static_cast<int64_t>(rng() % 40),
                 inner,
                 rng() % 3 == 0,
                 rng() % 4 == 0,
                 {},
                 0};
        const Dims data = g.across ? Dims{g.axis * inner, 0, g.axis} : Dims{g.axis * inner, 0, 1};
        g.plan = plan_cuda_gather(Dims{g.outer, g.count, inner}, data, {0, 1, 0},
                                  dense({g.outer, g.count, inner}), g.axis, g.across ? 1 : inner,
                                  bytes, index, rng() % 2);
        g.plan.kernel.wide_index = rng() % 2;
        g.id = kernels.add(cuda_gather_source(g.plan.kernel, "kernel", ""), "kernel");
        all.push_back(std::move(g));
      }
  CHECK(std::ranges::count_if(all, [](const Gather& g) { return g.plan.kernel.vector > 1; }) > 4);
  const std::string problem = kernels.compile();
  REQUIRE_MESSAGE(problem.empty(), problem);
  for (const Gather& g : all) {
    const auto bytes = static_cast<size_t>(g.plan.kernel.element_bytes);
    const auto of_data = static_cast<size_t>(g.outer * g.axis * g.inner),
               of_result = static_cast<size_t>(g.outer * g.count * g.inner);
    Memory data(of_data * bytes), result(of_result * bytes),
        index(static_cast<size_t>(g.count) * 8);
    for (size_t k = 0; k < of_data * bytes; ++k) data.data()[k] = static_cast<char>(rng());
    std::vector<int64_t> at(static_cast<size_t>(g.count));
    for (int64_t& i : at)
      i = static_cast<int64_t>(rng() % static_cast<uint64_t>(2 * g.axis)) - g.axis;
    if (g.outside) at[0] = g.axis;
    for (size_t k = 0; k < at.size(); ++k) {
      const auto narrow = static_cast<int32_t>(at[k]);
      if (g.plan.kernel.index_bytes == 4)
        std::memcpy(index.data() + k * 4, &narrow, 4);
      else
        std::memcpy(index.data() + k * 8, &at[k], 8);
    }
    CudaGatherFault fault;
    const auto blocks = static_cast<unsigned>((g.plan.geometry.packs(g.plan.kernel) + 255) / 256);
    const std::string wrong =
        kernels.launch(g.id,
                       cuda_gather_arguments(g.plan.kernel, g.plan.geometry, data.data(),
                                             index.data(), result.data(), &fault),
                       {blocks, 1, 1}, {256, 1, 1});
    REQUIRE_MESSAGE(wrong.empty(), wrong);
    CHECK(fault.set == g.outside);
    if (g.outside) CHECK(fault.index == g.axis);
    int64_t different = 0;
    for (int64_t k = 0; k < static_cast<int64_t>(of_result); ++k) {
      const int64_t i = at[static_cast<size_t>(k / g.inner % g.count)], row = i >= g.axis ? 0
                                                                              : i < 0 ? i + g.axis
                                                                                      : i;
      const int64_t o = k / g.inner / g.count, s = k % g.inner;
      const int64_t from = o * g.axis * g.inner + (g.across ? s * g.axis + row : row * g.inner + s);
      different += std::memcmp(result.data() + static_cast<size_t>(k) * bytes,
                               data.data() + static_cast<size_t>(from) * bytes, bytes) != 0;
    }
    CHECK(different == 0);
  }
}
