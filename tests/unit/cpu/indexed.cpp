// Operators driven by indices or by order against the interpreter: every axis and element type,
// negative indices, indices that are out of range, several updates at one place, NaN.
#include "engine/interpreter/interpreter.h"
#include "runtime/parallel.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::i8,  DType::u8,
                            DType::i16, DType::i32, DType::i64, DType::u64};

/// Small whole numbers, many of them equal; `wild`: NaN and infinities among floats.
Tensor drawn(DType t, const Dims& dims, std::mt19937& rng, bool wild = false) {
  auto [out, p] = Tensor::allocate(t, dims);
  const auto bytes = static_cast<size_t>(size_bits(t) / 8);
  for (int64_t k = 0; k < out.numel(); ++k) {
    double v = static_cast<double>(rng() % 7) - (is_unsigned_int(t) ? 0 : 3);
    if (wild && is_float(t) && rng() % 4 == 0)
      v = rng() % 2 ? std::numeric_limits<double>::quiet_NaN()
                    : (rng() % 2 ? 1 : -1) * std::numeric_limits<double>::infinity();
    const Tensor one = Tensor::scalar(t, v, {});
    std::memcpy(static_cast<char*>(p) + static_cast<size_t>(k) * bytes, one.data(), bytes);
  }
  return out;
}

Tensor indices_of(DType t, const Dims& dims, int64_t n, std::mt19937& rng) {
  auto [out, p] = Tensor::allocate(t, dims);
  for (int64_t k = 0; k < out.numel(); ++k) {
    const int64_t i = static_cast<int64_t>(rng() % static_cast<unsigned>(2 * n)) - n;
    if (t == DType::i32)
      static_cast<int32_t*>(p)[k] = static_cast<int32_t>(i);
    else
      static_cast<int64_t*>(p)[k] = i;
  }
  return out;
}

Factory kernel_of(const std::string& op) {
  static const std::map<std::string, const char*> contracts{{"ArgMax", "argmax"},
                                                            {"ArgMin", "argmin"},
                                                            {"GatherElements", "gather_elements"},
                                                            {"OneHot", "one_hot"},
                                                            {"ScatterElements", "scatter_elements"},
                                                            {"ScatterND", "scatter_nd"},
                                                            {"TopK", "topk"}};
  return own_factory(contracts.at(op));
}

struct Node1 {
  std::string op;
  std::vector<Tensor> operands;
  std::vector<bool> constant;  ///< of the operands; missing: not
  std::map<std::string, Attr> attributes;
};

void check_node(const Node1& n) {
  CAPTURE(n.op);
  Harness h(n.op);
  for (const auto& [name, value] : n.attributes) h.node.attrs.set(name, value);
  std::vector<const Tensor*> pointers;
  for (size_t k = 0; k < n.operands.size(); ++k) {
    k < n.constant.size() && n.constant[k] ? h.constant(n.operands[k]) : h.input(n.operands[k]);
    pointers.push_back(&n.operands[k]);
  }
  InterpreterOptions options;
  auto want = interpret_node(h.graph, h.node, pointers, options);
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : want.error().message));
  for (const Tensor& t : *want) h.output(t.dtype(), t.dims());
  auto kernel = h.make(kernel_of(h.node.op.text()));
  REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
  REQUIRE((*kernel)->run().has_value());
  for (size_t k = 0; k < want->size(); ++k) {
    CAPTURE(k);
    const Difference d = compare(h.result(k), (*want)[k], {});
    CHECK_MESSAGE(d.ok, d.text);
  }
}

const std::vector<Dims> kDims{{5}, {4, 6}, {3, 1, 5}, {2, 3, 4, 3}, {1, 300}};

}  // namespace

TEST_CASE("indexed: elements along an axis, gathered and scattered") {
  std::mt19937 rng(1);
  for (DType t : kTypes)
    for (const Dims& dims : kDims)
      for (int64_t axis = -static_cast<int64_t>(dims.size()); axis < std::ssize(dims); ++axis)
        for (DType index : {DType::i32, DType::i64}) {
          const size_t a = static_cast<size_t>(axis < 0 ? axis + std::ssize(dims) : axis);
          Dims which = dims;
          for (size_t k = 0; k < which.size(); ++k)
            which[k] = k == a ? 1 + static_cast<int64_t>(rng() % 7)
                              : 1 + static_cast<int64_t>(rng() % static_cast<unsigned>(dims[k]));
          const Tensor x = drawn(t, dims, rng, true), at = indices_of(index, which, dims[a], rng);
          CAPTURE(static_cast<int>(t));
          CAPTURE(axis);
          check_node({"GatherElements", {x, at}, {}, {{"axis", axis}}});
          for (const std::string how : {"none", "add", "mul", "max", "min"})
            check_node({"ScatterElements",
                        {x, at, drawn(t, which, rng)},
                        {},
                        {{"axis", axis}, {"reduction", how}}});
        }
}

TEST_CASE("indexed: slices scattered by tuples") {
  std::mt19937 rng(2);
  for (DType t : kTypes)
    for (const Dims& dims : kDims)
      for (size_t depth = 1; depth <= dims.size(); ++depth)
        for (const std::string how : {"none", "add", "mul", "max", "min"}) {
          const int64_t least =
              *std::min_element(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(depth));
          Dims updates{2, 3};
          updates.insert(updates.end(), dims.begin() + static_cast<std::ptrdiff_t>(depth),
                         dims.end());
          check_node({"ScatterND",
                      {drawn(t, dims, rng),
                       indices_of(DType::i64, {2, 3, static_cast<int64_t>(depth)}, least, rng),
                       drawn(t, updates, rng)},
                      {},
                      {{"reduction", how}}});
        }
}

TEST_CASE("indexed: one-hot") {
  std::mt19937 rng(3);
  for (DType t : {DType::f32, DType::i64, DType::u8, DType::boolean})
    for (const Dims& dims : std::vector<Dims>{{}, {5}, {2, 3, 4}})
      for (int64_t axis = -1; axis <= std::ssize(dims); ++axis)
        for (DType index : {DType::i32, DType::i64})
          check_node({"OneHot",
                      {indices_of(index, dims, 9, rng), Tensor::of_i64({}, std::vector<int64_t>{6}),
                       drawn(t, {2}, rng)},
                      {false, true, false},
                      {{"axis", axis}}});
}

TEST_CASE("indexed: the largest and smallest of lines") {
  std::mt19937 rng(4);
  for (DType t : kTypes)
    for (const Dims& dims : kDims)
      for (int64_t axis = -1; axis < std::ssize(dims); ++axis)
        for (const bool wild : {false, true})
          for (const int64_t yes : {0, 1}) {
            const Tensor x = drawn(t, dims, rng, wild);
            const size_t a = static_cast<size_t>(axis < 0 ? axis + std::ssize(dims) : axis);
            for (const char* op : {"ArgMax", "ArgMin"})
              check_node(
                  {op, {x}, {}, {{"axis", axis}, {"keepdims", yes}, {"select_last_index", yes}}});
            for (const int64_t k : {int64_t{1}, (dims[a] + 1) / 2, dims[a]})
              check_node({"TopK",
                          {x, Tensor::of_i64({1}, std::vector{k})},
                          {false, true},
                          {{"axis", axis}, {"largest", yes}, {"sorted", int64_t{1}}}});
          }
}

TEST_CASE("indexed: an index that is out of range is the run's error") {
  const Tensor x = random_tensor({3, 4}, 1);
  for (const int64_t bad : {int64_t{3}, int64_t{-4}})
    for (const std::string op : {"GatherElements", "ScatterElements", "ScatterND"}) {
      CAPTURE(op);
      Harness h(op);
      const Dims which = op == "ScatterND" ? Dims{1, 1} : Dims{1, 4};
      h.input(x);
      h.input(Tensor::of_i64(which, std::vector<int64_t>(static_cast<size_t>(numel(which)), bad)));
      if (op != "GatherElements") h.input(random_tensor({1, 4}, 2));
      h.output(DType::f32, op == "GatherElements" ? Dims{1, 4} : Dims{3, 4});
      auto kernel = h.make(kernel_of(h.node.op.text()));
      REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
      const Status status = (*kernel)->run();
      REQUIRE(!status.has_value());
      CHECK(status.error().message == fmt::format("index {} is out of range for 3", bad));
    }
}

TEST_CASE("indexed: an index out of range among many of a row") {
  for (const int64_t bad : {int64_t{40}, int64_t{-41}}) {
    std::vector<int64_t> which(60);
    for (size_t k = 0; k < which.size(); ++k) which[k] = static_cast<int64_t>(k % 80) - 40;
    which[37] = bad;
    Harness h("GatherElements");
    h.node.attrs.set("axis", int64_t{1});
    h.input(random_tensor({2, 40}, 1));
    h.input(Tensor::of_i64({2, 30}, which));
    h.output(DType::f32, {2, 30});
    auto kernel = h.make(kernel_of("GatherElements"));
    REQUIRE(kernel.has_value());
    const Status status = (*kernel)->run();
    REQUIRE(!status.has_value());
    CHECK(status.error().message == fmt::format("index {} is out of range for 40", bad));
  }
}

}  // namespace ferrule::cpu::test
