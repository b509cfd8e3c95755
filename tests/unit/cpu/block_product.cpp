// Products with weights that are scaled block by block: random sizes, blocks, types and numbers of
// rows, weights in either order, against the interpreter; several threads; infinite operands.
#include "engine/interpreter/interpreter.h"
#include "engine/match/facts.h"
#include "engine/semantics/block_eval.h"
#include "runtime/scoped_threads.h"
#include "tests/unit/codegen/rule_groups.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

Type typed(DType type, const Dims& dims) { return {type, Shape(dims.begin(), dims.end())}; }

struct Product {
  int64_t rows, k, n, block;
  DType weights, type;
  int levels;  ///< of the weights
  bool zero, bias, turned;
};

Tensor integers(DType type, const Dims& dims, int levels, std::mt19937& rng) {
  const int low = type == DType::i8 ? -levels / 2 : 0;
  std::vector<int64_t> v(static_cast<size_t>(numel(dims)));
  for (int64_t& x : v) x = std::uniform_int_distribution<int64_t>(low, low + levels - 1)(rng);
  if (type != DType::u4) return Tensor::of_ints(type, dims, v);
  auto [out, to] = Tensor::allocate(type, dims);
  for (size_t i = 0; i < v.size(); ++i) {
    auto& byte = static_cast<uint8_t*>(to)[i / 2];
    byte = static_cast<uint8_t>(i % 2 ? byte | v[i] << 4 : v[i]);
  }
  return out;
}

Tensor floats(DType type, const Dims& dims, double low, double high, std::mt19937& rng) {
  std::vector<double> v(static_cast<size_t>(numel(dims)));
  for (double& x : v) x = std::uniform_real_distribution<double>(low, high)(rng);
  auto [out, to] = Tensor::allocate(type, dims);
  pack(type, DType::f64, v.data(), static_cast<int>(v.size()), to, 0);
  return out;
}

/// x: what it is multiplied by.
void check_product(const Product& p, Tensor x, const Target& target, std::mt19937& rng) {
  CAPTURE(p.rows);
  CAPTURE(p.k);
  CAPTURE(p.n);
  CAPTURE(p.block);
  CAPTURE(p.turned);
  CAPTURE(name(p.weights));
  CAPTURE(name(p.type));
  CAPTURE(target.name);
  const int64_t blocks = (p.k + p.block - 1) / p.block;
  auto dims = [&](int64_t along) { return p.turned ? Dims{p.n, along} : Dims{along, p.n}; };
  const Tensor q = integers(p.weights, dims(p.k), p.levels, rng),
               scale = floats(p.type, dims(blocks), 0.01, 0.1, rng),
               zero = integers(p.weights, dims(blocks), p.levels, rng),
               bias = floats(p.type, {p.n}, -1, 1, rng);
  Graph g;
  std::vector<const Tensor*> operands{&x};
  auto constant = [&](const char* name, const Tensor& t) {
    operands.push_back(&t);
    return g.add_constant(name, t);
  };
  const ValueId in = g.add_input("x", typed(p.type, x.dims()));
  Node dequantize;
  dequantize.op = "DequantizeLinear";
  dequantize.attrs.set("axis", int64_t{p.turned ? 1 : 0});
  dequantize.attrs.set("block_size", p.block);
  dequantize.inputs = {constant("q", q), constant("s", scale)};
  if (p.zero) dequantize.inputs.push_back(constant("z", zero));
  fill_defaults(dequantize, operators());
  dequantize.outputs = {g.add_value("w", typed(p.type, dims(p.k)))};
  const ValueId w = g.output(g.add_node(std::move(dequantize)));
  Node product;
  product.op = p.turned || p.bias ? "Gemm" : "MatMul";
  product.inputs = {in, w};
  if (p.turned) product.attrs.set("transB", int64_t{1});
  if (p.bias) product.inputs.push_back(constant("b", bias));
  fill_defaults(product, operators());
  Dims out = x.dims();
  out.back() = p.n;
  product.outputs = {g.add_value("y", typed(p.type, out))};
  g.add_output(g.output(g.add_node(std::move(product))));
  const std::vector<Tensor> inputs{x};
  const auto want = interpret(g, inputs, InterpreterOptions());
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : want.error().message));

  const Node& group = ferrule::test::group_by("block_product", g, "cpu-avx2");
  Harness h("MatMul");
  h.ops = &operators();
  h.target = &target;
  for (ValueId v : group.inputs)
    if (const Tensor* t = g.constant(v))
      h.constant(*t);
    else
      h.input(x);
  h.call.roles = group.roles.get();
  h.output(p.type, out);
  auto kernel = h.make(own_factory("block_product"));
  REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
  REQUIRE((*kernel)->run().has_value());
  const Difference d = compare(h.result(0), (*want)[0], model_tolerance(p.type));
  CHECK_MESSAGE(d.ok, d.text);
}

Product random_product(std::mt19937& rng) {
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  const DType integers[] = {DType::u8, DType::i8, DType::u4};
  const DType floats[] = {DType::f32, DType::f32, DType::f16, DType::bf16};
  Product p{pick(1, 8),           pick(1, 150),   pick(1, 50),           pick(1, 40),
            integers[pick(0, 2)], DType::f32,     pick(0, 1) ? 16 : 256, pick(0, 1) == 1,
            pick(0, 1) == 1,      pick(0, 1) == 1};
  p.type = floats[pick(0, 3)];
  if (pick(0, 1)) p.block = int64_t{16} << pick(0, 2);
  if (p.weights == DType::u4) p.levels = 16;
  return p;
}

}  // namespace

TEST_CASE("block_product: random sizes, types and blocks") {
  std::mt19937 rng(5);
  for (int round = 0; round < 60; ++round) {
    const Product p = random_product(rng);
    for (const Target& target : targets())
      check_product(p, floats(p.type, {p.rows, p.k}, -1, 1, rng), target, rng);
  }
}

TEST_CASE("block_product: a batch of rows, several threads") {
  std::mt19937 rng(6);
  const ScopedThreads three(3);
  for (const Target& target : targets())
    check_product({6, 512, 6000, 32, DType::u8, DType::f32, 16, true, false, false},
                  floats(DType::f32, {2, 3, 512}, -1, 1, rng), target, rng);
}

TEST_CASE("block_product: infinite and undefined operands stay such") {
  std::mt19937 rng(7);
  for (const Target& target : targets())
    for (const DType weights : {DType::u8, DType::i8})
      for (const int levels : {16, 256}) {
        Tensor x = floats(DType::f32, {3, 40}, -1, 1, rng);
        std::vector<float> v(x.as<float>().begin(), x.as<float>().end());
        v[7] = kInf, v[50] = -kInf, v[100] = kNan;
        check_product({3, 40, 20, 8, weights, DType::f32, levels, true, true, false},
                      Tensor::of_f32({3, 40}, v), target, rng);
      }
}

}  // namespace ferrule::cpu::test
