// Library kernels over f16 and bf16 against the interpreter, on random shapes: the library's own
// where it has them, else the f32 kernel over widened operands. Either way it is one launch with
// the same results.
#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/semantics/infer.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

Tensor rounded(const Tensor& t, DType to) {
  auto [out, bytes] = Tensor::allocate(to, t.dims());
  for (int64_t k = 0; k < t.numel(); ++k) {
    const Tensor one = Tensor::scalar(to, t.at_f64(k));
    std::memcpy(static_cast<uint16_t*>(bytes) + k, one.data(), 2);
  }
  return out;
}

Applicable<KernelPtr> any_library_kernel(Context& context, const KernelCall& call) {
  return make_library_kernel(context, call, library_factory(call.work));
}

/// One node over random data: `constants` behind the first input, then what the tail reads. The
/// same goes into a harness and into a graph for the interpreter.
struct NarrowCase {
  std::string op;
  std::map<std::string, Attr> attrs;
  Dims x;
  std::vector<Dims> constants;
  Layout layout = Layout::channels_last;
  bool tail = false;            ///< + residual, Relu; the residual in the result's memory
  std::vector<float> scales{};  ///< of a Resize
  bool nan = false;  ///< in the first channel of every second pixel, or the first column of every
                     ///< second row
};

void put_nan(Tensor& x, const NarrowCase& c) {
  auto* bits = const_cast<uint16_t*>(x.as<uint16_t>().data());
  const bool rows = c.layout == Layout::plain;
  const int64_t last = c.x.back(), inner = rows ? last : x.numel() / (c.x[0] * c.x[1]),
                image = rows ? 2 * last : c.x[1] * inner;
  for (int64_t k = 0; k < x.numel(); ++k)
    if (rows ? k % image == last : k % image < inner && k % last % 2 == 1) bits[k] = 0x7fff;
}

std::string check_narrow(const NarrowCase& c, DType t, unsigned seed) {
  CAPTURE(c.op);
  CAPTURE(name(t));
  CAPTURE(str(Type{t, Shape(c.x.begin(), c.x.end())}));
  Graph g;
  std::vector<Tensor> inputs{rounded(random_tensor(c.x, seed), t)};
  if (c.nan) put_nan(inputs[0], c);
  Node n;
  n.op = c.op;
  for (const auto& [k, v] : c.attrs) n.attrs.set(k, v);
  n.inputs = {g.add_input("x", {t, Shape(c.x.begin(), c.x.end())})};
  std::vector<Tensor> constants;
  for (const Dims& d : c.constants) {
    constants.push_back(rounded(random_tensor(d, ++seed), t));
    n.inputs.push_back(g.add_constant("c" + std::to_string(constants.size()), constants.back()));
  }
  const Tensor scales = Tensor::of_f32({static_cast<int64_t>(c.scales.size())}, c.scales);
  if (!c.scales.empty())
    n.inputs.insert(n.inputs.end(), {ValueId{}, g.add_constant("scales", scales)});
  auto add = [&](Node node, const char* result) {
    node.outputs = {g.add_value(result)};
    NodeId id = g.add_node(std::move(node));
    Status s = infer(operators(), g, id);
    REQUIRE_MESSAGE(s.has_value(), (s ? "" : render(s.error())));
    return g.output(id);
  };
  ValueId y = add(std::move(n), "y");
  const Dims out = *constant_shape(*g.value(y).type.shape);
  if (c.tail) {
    inputs.push_back(rounded(random_tensor(out, ++seed), t));
    Node sum, relu;
    sum.op = "Add";
    sum.inputs = {y, g.add_input("r", {t, Shape(out.begin(), out.end())})};
    relu.op = "Relu";
    relu.inputs = {add(std::move(sum), "s")};
    y = add(std::move(relu), "z");
  }
  g.add_output(y);
  InterpreterOptions options;
  options.ops = &operators();
  auto want = interpret(g, inputs, options);
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : render(want.error())));

  Harness h(c.op);
  h.target = &host();
  for (const auto& [k, v] : c.attrs) h.node.attrs.set(k, v);
  h.input(inputs[0], c.layout);
  for (const Tensor& k : constants) h.constant(k);
  if (!c.scales.empty()) h.absent(), h.constant(scales);
  int residual = -1;
  if (c.tail) {
    residual = h.operand(inputs[1], c.layout);
    h.binary("add", residual);
    h.eltwise("relu");
  }
  h.output(t, out, c.layout, residual);
  const Difference d = compare(h.run(any_library_kernel), (*want)[0], model_tolerance(t));
  CHECK_MESSAGE(d.ok, d.text);
  return h.text;
}

class Shapes {
 public:
  explicit Shapes(unsigned seed) : random_(seed) {}
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

 private:
  std::mt19937 random_;
};

constexpr DType kNarrow[] = {DType::f16, DType::bf16};

}  // namespace

TEST_CASE("convolutions and deconvolutions of narrow types") {
  Shapes s(1);
  for (int round = 0; round < 12; ++round)
    for (DType t : kNarrow) {
      const int64_t groups = s.pick(1, 3), in = groups * s.pick(1, 6), out = groups * s.pick(1, 9),
                    k = s.pick(1, 3);
      const std::map<std::string, Attr> attrs{
          {"strides", Dims(2, s.pick(1, 2))}, {"pads", Dims(4, k / 2)}, {"group", groups}};
      const Dims x{s.pick(1, 2), in, s.pick(4, 12), s.pick(4, 12)};
      const bool tail = round % 2 == 1;
      check_narrow(
          {"Conv", attrs, x, {{out, in / groups, k, k}, {out}}, Layout::channels_last, tail}, t,
          10u * static_cast<unsigned>(round));
      check_narrow({"ConvTranspose",
                    attrs,
                    x,
                    {{in, out / groups, k, k}, {out}},
                    Layout::channels_last,
                    tail},
                   t, 10u * static_cast<unsigned>(round) + 5);
    }
}

TEST_CASE("products of narrow types") {
  Shapes s(2);
  for (int round = 0; round < 8; ++round)
    for (DType t : kNarrow) {
      const int64_t m = s.pick(1, 9), k = s.pick(1, 40), n = s.pick(1, 33);
      const auto seed = 20u * static_cast<unsigned>(round);
      check_narrow({"MatMul", {}, {2, m, k}, {{k, n}}, Layout::plain, round % 2 == 1}, t, seed);
      check_narrow(
          {"Gemm", {{"transB", int64_t{1}}}, {m, k}, {{n, k}, {n}}, Layout::plain, round % 2 == 1},
          t, seed + 5);
      check_narrow(
          {"Gemm", {{"alpha", 0.5}, {"beta", 2.0}}, {m, k}, {{k, n}, {1, n}}, Layout::plain}, t,
          seed + 9);
    }
}

TEST_CASE("a sum takes nothing of what lies behind its pixel or row, not even times 0") {
  for (DType t : kNarrow)
    for (int64_t k : {1, 3, 9, 15, 17, 31, 33, 65}) {
      const auto seed = static_cast<unsigned>(k);
      const Dims image{2, k, 5, 8}, grouped{1, 2 * k, 4, 6};
      check_narrow({"Conv", {}, image, {{6, k, 1, 1}}, Layout::channels_last, false, {}, true}, t,
                   seed);
      check_narrow(
          {"Conv", {}, image, {{40, k, 1, 1}, {40}}, Layout::channels_last, false, {}, true}, t,
          seed + 1);
      check_narrow({"Conv",
                    {{"strides", Dims{1, 2}}},
                    image,
                    {{24, k, 2, 1}},
                    Layout::channels_last,
                    false,
                    {},
                    true},
                   t, seed + 2);
      check_narrow({"Conv",
                    {{"group", int64_t{2}}},
                    grouped,
                    {{32, k, 1, 1}},
                    Layout::channels_last,
                    false,
                    {},
                    true},
                   t, seed + 3);
      check_narrow(
          {"Conv", {{"group", k}}, image, {{k, 1, 3, 3}}, Layout::channels_last, false, {}, true},
          t, seed + 9);
      check_narrow({"ConvTranspose",
                    {{"strides", Dims{2, 2}}},
                    image,
                    {{k, 9, 2, 2}},
                    Layout::channels_last,
                    false,
                    {},
                    true},
                   t, seed + 4);
      check_narrow(
          {"ConvTranspose", {}, image, {{k, 16, 1, 1}}, Layout::channels_last, false, {}, true}, t,
          seed + 5);
      check_narrow({"MatMul", {}, {3, 7, k}, {{k, 20}}, Layout::plain, false, {}, true}, t,
                   seed + 6);
      check_narrow({"MatMul", {}, {3, 6, k}, {{3, k, 20}}, Layout::plain, false, {}, true}, t,
                   seed + 7);
      check_narrow({"Gemm",
                    {{"transB", int64_t{1}}},
                    {64, k},
                    {{33, k}, {33}},
                    Layout::plain,
                    false,
                    {},
                    true},
                   t, seed + 8);
    }
}

TEST_CASE("poolings, resizing and normalisation of narrow types") {
  Shapes s(3);
  for (int round = 0; round < 6; ++round)
    for (DType t : kNarrow) {
      const Dims x{s.pick(1, 2), s.pick(1, 20), s.pick(4, 11), s.pick(4, 11)};
      const std::map<std::string, Attr> window{{"kernel_shape", Dims{2, 3}},
                                               {"strides", Dims{2, 1}}};
      const auto seed = 30u * static_cast<unsigned>(round);
      for (const char* op : {"MaxPool", "AveragePool"}) check_narrow({op, window, x, {}}, t, seed);
      for (const char* mode : {"nearest", "linear"})
        check_narrow({"Resize",
                      {{"mode", std::string(mode)}},
                      x,
                      {},
                      Layout::channels_last,
                      false,
                      {1, 1, 2, 1.5}},
                     t, seed + 2);
      const Dims channels{x[1]};
      NarrowCase norm{
          "BatchNormalization", {{"epsilon", 2.0}}, x, {channels, channels, channels, channels}};
      check_narrow(norm, t, seed + 3);
      for (const char* op : {"GlobalAveragePool", "GlobalMaxPool"})
        check_narrow({op, {}, x, {}}, t, seed + 1);
    }
}

TEST_CASE("values that narrow types hold badly come through as they are") {
  const double special[] = {INFINITY, -INFINITY, NAN, 6e-8, -6e-8, 65504, 1.0009765625, 0, -0.0};
  for (DType t : kNarrow) {
    auto [x, bytes] = Tensor::allocate(t, {1, 9, 1, 1});
    for (int64_t k = 0; k < 9; ++k)
      std::memcpy(static_cast<uint16_t*>(bytes) + k, Tensor::scalar(t, special[k]).data(), 2);
    Harness h("GlobalMaxPool");
    h.input(x, Layout::channels_last);
    h.output(t, {1, 9, 1, 1}, Layout::channels_last);
    const Tensor y = h.run(any_library_kernel);
    CHECK(h.text == std::string(name(t)) + "_staged:global_pool");
    for (int64_t k = 0; k < 9; ++k)
      CHECK((std::isnan(special[k]) ? std::isnan(y.at_f64(k)) : y.at_f64(k) == x.at_f64(k)));
  }
}

TEST_CASE("f16 is widened in the launch; bf16 only where the library does not compute in it") {
  const NarrowCase c{"Conv", {}, {1, 16, 8, 8}, {{32, 16, 3, 3}, {32}}};
  CHECK(check_narrow(c, DType::f16, 1).starts_with("f16_staged:"));
  CHECK(check_narrow(c, DType::bf16, 1).starts_with("bf16_staged:") == !computes(DType::bf16));
}

}  // namespace ferrule::cpu::test
