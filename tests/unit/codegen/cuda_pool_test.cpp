// Pooling kernels on the host: windows of every rank, size, stride, dilation, padding and rounding,
// averages that count padding and that do not, NaN and infinities, every element type and layout,
// against the interpreter.
#include "codegen/cuda/pool.h"

#include <cmath>
#include <limits>

#include "tests/unit/codegen/launch_cases.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

using Attributes = std::map<std::string, Attr>;

/// Some elements made what a maximum must not lose.
Tensor with_extremes(DType type, const Dims& dims, std::mt19937& rng) {
  Tensor t = random_of(type, dims, rng);
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor extremes[] = {Tensor::scalar(type, std::nan("")), Tensor::scalar(type, inf),
                             Tensor::scalar(type, -inf)};
  const auto size = static_cast<size_t>(size_bits(type)) / 8;
  for (int64_t k = 0; k < t.numel(); ++k)
    if (rng() % 12 == 0)
      std::memcpy(static_cast<char*>(const_cast<void*>(t.data())) + static_cast<size_t>(k) * size,
                  extremes[rng() % 3].data(), size);
  return t;
}

/// A random pooling; false: its windows do not fit.
bool add_pool(LaunchCases& cases, bool largest, DType type, size_t spatial, bool extremes) {
  std::mt19937& rng = cases.rng;
  Dims dims{1 + static_cast<int64_t>(rng() % 2), pick(rng, {1, 3, 4, 8, 16, 24})}, window, strides,
      dilations, pads(2 * spatial);
  for (size_t k = 0; k < spatial; ++k) {
    dims.push_back(pick(rng, {3, 5, 6, 7, 9}));
    window.push_back(pick(rng, {1, 2, 3, spatial == 1 ? 7 : 4}));
    strides.push_back(1 + static_cast<int64_t>(rng() % 3));
    dilations.push_back(largest || rng() % 2 ? pick(rng, {1, 1, 2}) : 1);
    const int64_t reach = (window[k] - 1) * dilations[k] + 1;
    if (reach > dims.back()) return false;
    for (size_t side : {k, spatial + k})
      pads[side] = static_cast<int64_t>(rng() % static_cast<uint64_t>(std::min<int64_t>(reach, 3)));
  }
  Attributes attrs{{"kernel_shape", window},
                   {"strides", strides},
                   {"dilations", dilations},
                   {"ceil_mode", static_cast<int64_t>(rng() % 2)}};
  const uint64_t automatic = rng() % 6;
  if (automatic == 0)
    attrs["auto_pad"] = std::string(rng() % 2 ? "SAME_UPPER" : "SAME_LOWER"),
    attrs["ceil_mode"] = int64_t{0};
  else if (automatic == 1)
    attrs["auto_pad"] = std::string("VALID");
  else
    attrs["pads"] = pads;
  if (!largest) attrs["count_include_pad"] = static_cast<int64_t>(rng() % 2);
  RowGraph r(type);
  const ValueId x = r.input(extremes ? with_extremes(type, dims, rng) : random_of(type, dims, rng));
  r.graph.add_output(r.node(largest ? "MaxPool" : "AveragePool", {x}, attrs));
  cases.add(std::move(r.graph), std::move(r.tensors), call_of_node).exact = largest && !extremes;
  return true;
}

}  // namespace

TEST_CASE("maxima and averages of windows equal the interpreter") {
  if (HostKernels::missing()) return;
  LaunchCases cases(41);
  int made = 0, packs = 0;
  for (bool largest : {true, false})
    for (DType type : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::u8}) {
      if (!largest && !is_float(type)) continue;
      for (size_t spatial = 1; spatial <= 3; ++spatial)
        for (int round = 0; round < 8; ++round) {
          const bool added =
              add_pool(cases, largest, type, spatial, is_float(type) && round % 3 == 0);
          made += added;
          packs += added && cases.last().planned.source.find("typedef Pack<T, 1> Element") ==
                                std::string::npos;
        }
    }
  CHECK(cases.kinds["pool"] == made);
  CHECK(made > 100);
  CHECK(packs > 5);
  cases.run();
}

TEST_CASE("ceil_mode: windows larger than the padded image count what lies in it") {
  if (HostKernels::missing()) return;
  LaunchCases cases(44);
  for (const char* op : {"MaxPool", "AveragePool"})
    for (bool include : {false, true})
      for (const Dims& dims : {Dims{2, 6, 1, 1}, Dims{1, 8, 3, 5}}) {
        Attributes attrs{{"kernel_shape", Dims{4, 2}},
                         {"strides", Dims{2, 2}},
                         {"ceil_mode", int64_t{1}},
                         {"pads", Dims{2, 0, 0, 0}}};
        if (op == std::string("AveragePool")) attrs["count_include_pad"] = int64_t{include};
        RowGraph r(DType::f32);
        r.graph.add_output(r.node(op, {r.input(random_of(DType::f32, dims, cases.rng))}, attrs));
        cases.add(std::move(r.graph), std::move(r.tensors), call_of_node);
      }
  CHECK(cases.kinds["pool"] == 8);
  cases.run();
}

TEST_CASE("a window that sees nothing of the image, and an image of no size") {
  if (HostKernels::missing()) return;
  LaunchCases cases(42);
  for (const char* op : {"MaxPool", "AveragePool"})
    for (const Dims& dims : {Dims{1, 2, 3, 3}, Dims{0, 2, 3, 3}}) {
      RowGraph r(DType::f32);
      const ValueId x = r.input(random_of(DType::f32, dims, cases.rng));
      r.graph.add_output(r.node(op, {x},
                                {{"kernel_shape", Dims{2, 2}},
                                 {"strides", Dims{2, 1}},
                                 {"pads", Dims{2, 1, 3, 0}},
                                 {"count_include_pad", int64_t{0}}}));
      cases.add(std::move(r.graph), std::move(r.tensors), call_of_node);
      CHECK((cases.last().planned.blocks == 0) == (dims[0] == 0));
    }
  cases.run();
}

TEST_CASE("what has no pooling kernel is refused") {
  Node n;
  n.op = "AveragePool";
  n.attrs.set("kernel_shape", Attr(Dims{2, 2}));
  const RowLayout x{{1, 2, 4, 4}, {32, 16, 4, 1}}, y{{1, 2, 3, 3}, {18, 9, 3, 1}};
  CHECK(plan_cuda_pool(n, DType::f32, x, y, true).has_value());
  CHECK_FALSE(plan_cuda_pool(n, DType::i8, x, y, true).has_value());
  CHECK_FALSE(plan_cuda_pool(n, DType::f8e5m2, x, y, true).has_value());
  CHECK_FALSE(plan_cuda_pool(n, DType::f32, {{1, 2, 4}, {8, 4, 1}}, {{1, 2, 3}, {6, 3, 1}}, true)
                  .has_value());
}

TEST_CASE("pooling kernels compile without a spill") {
  LaunchCases cases(43);
  for (DType type : {DType::f32, DType::bf16, DType::u8})
    for (const Dims& window : {Dims{3, 3}, Dims{2, 2}, Dims{13, 13}, Dims{3, 3, 3}}) {
      RowGraph r(type);
      Dims dims{1, 64};
      for (int64_t w : window) dims.push_back(w + 3);
      const ValueId x = r.input(random_of(type, dims, cases.rng));
      r.graph.add_output(
          r.node(type == DType::bf16 ? "AveragePool" : "MaxPool", {x}, {{"kernel_shape", window}}));
      cases.add(std::move(r.graph), std::move(r.tensors), call_of_node);
    }
  check_compiles(cases);
}
