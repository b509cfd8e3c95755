// Groups of integers read as chains of steps, and their conversions against the interpreter's.
#include "engine/contract/stages.h"

#include <cmath>
#include <cstring>
#include "engine/semantics/block_eval.h"
#include "engine/semantics/nodes_to_programs.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

constexpr const char* kQuantizedHead =
    "g (uint8[1,2,4,4] x) => (uint8[1,2,4,4] y) <float s = {0.3}, uint8 z = {7}, float[2,2,1,1] W "
    "= {1.0, -2.0, 3.0, 0.5}> ";

/// The steps' operators, tails in brackets; or why not.
std::string read(const std::string& text) {
  Graph g = graph(text);
  auto steps = read_stages(g, g.order(), ops());
  if (!steps) return steps.error().reason();
  std::string out;
  for (const GroupStage& s : *steps) {
    out += (out.empty() ? "" : " ") + g.node(s.node).op.text() + (s.conversion ? "*" : "");
    for (NodeId t : s.tail) out += "[" + g.node(t).op.text() + "]";
  }
  return out;
}

}  // namespace

TEST_CASE("a group of integers is a chain of conversions and anchors") {
  CHECK(read(std::string(kQuantizedHead) + "{ a = DequantizeLinear(x, s, z) c = Conv(a, W) r = "
                                           "Relu(c) y = QuantizeLinear(r, s, z) }") ==
        "DequantizeLinear* Conv[Relu] QuantizeLinear*");
  CHECK(read(std::string(kQuantizedHead) +
             "{ a = DequantizeLinear(x, s, z) c = Conv(a, W) q = QuantizeLinear(c, s, z) "
             "y = MaxPool<kernel_shape=[1,1]>(q) }") ==
        "DequantizeLinear* Conv QuantizeLinear* MaxPool");
  Target integers = target();
  integers.contracts["quantized"].types = {DType::u8, DType::i32};
  integers.contracts["quantized"].forms = {"staged"};
  auto refused = [&](const std::string& body, const std::string& why,
                     const std::string& head = kQuantizedHead) {
    Graph g = graph(head + body);
    const Accept a = accepts(g, g.order(), {}, "quantized", integers, ops());
    INFO(a.id, ": ", a.reason);
    CHECK(a.truth == Truth::no);
    CHECK((a.id + ": " + a.reason).find(why) != std::string::npos);
  };
  refused("{ y = QuantizeLinear(x, s, z) }", "quantized.target",
          "g (float[1,2,4,4] x) => (uint8[1,2,4,4] y) <float s = {0.3}, uint8 z = {7}> ");
  refused("{ a = DequantizeLinear(x, s, z) y = QuantizeLinear(a, s, z) }",
          "there is nothing between");
  refused(
      "{ a = DequantizeLinear(x, s, z) b = Transpose<perm=[0,1,3,2]>(a) y = QuantizeLinear(b, s, "
      "z) }",
      "is copy, which is no stage of it");
  refused(
      "{ a = DequantizeLinear(x, s, z) b = DequantizeLinear(x, s, z) c = Conv(a, W) d = Add(c, b) "
      "y = QuantizeLinear(d, s, z) }",
      "does not read what stands before it");
  refused("{ a = DequantizeLinear(x, s) c = Conv(a, W) y = QuantizeLinear(c, s) }",
          "a scale must be a single f32 constant",
          "g (uint8[1,2,4,4] x, float s) => (uint8[1,2,4,4] y) <float[2,2,1,1] W = {1.0, -2.0, "
          "3.0, 0.5}> ");
  refused("{ a = DequantizeLinear(x, s, z) c = Conv(a, W) y = QuantizeLinear(c, s, z) }",
          "a zero point must be a single constant",
          "g (uint8[1,2,4,4] x, uint8 z) => (uint8[1,2,4,4] y) <float s = {0.3}, float[2,2,1,1] W "
          "= {1.0, -2.0, 3.0, 0.5}> ");
  refused(
      "{ a = DequantizeLinear(x, s) c = MaxPool<kernel_shape=[1,1]>(a) y = QuantizeLinear(c, s) }",
      "quantized.types", "g (int32[1,2,4,4] x) => (uint8[1,2,4,4] y) <float s = {0.3}> ");
}

TEST_CASE(
    "conversions compute what the interpreter does, for every integer and around every half") {
  for (const char* type : {"uint8", "int8", "uint16", "int16"}) {
    INFO(type);
    Graph g = graph(fmt::format(
        "g ({0}[x] x, float[y] f) => (float[x] d, {0}[y] q) <float s = {{0.3}}, {0} z = {{7}}> "
        "{{ d = DequantizeLinear(x, s, z) q = QuantizeLinear(f, s, z) }}",
        type));
    const DType narrow = g.value(g.inputs()[0]).type.dtype;
    const bool sign = is_signed_int(narrow);
    const int64_t count = int64_t{1} << size_bits(narrow), low = sign ? -count / 2 : 0;
    auto [x, xs] = Tensor::allocate(narrow, {count});
    std::vector<float> halves;
    for (int64_t k = 0; k < count; ++k) {
      Tensor one = Tensor::scalar(narrow, static_cast<double>(low + k));
      std::memcpy(static_cast<char*>(xs) + k * size_bits(narrow) / 8, one.data(),
                  static_cast<size_t>(size_bits(narrow)) / 8);
      halves.push_back((static_cast<float>(low + k) + 0.5f) * 0.3f);
    }
    for (float f : {-1e30f, 1e30f, -HUGE_VALF, HUGE_VALF, 0.0f, -0.0f}) halves.push_back(f);
    Tensor f = Tensor::of<float>(DType::f32, {static_cast<int64_t>(halves.size())}, halves);
    const std::vector<Tensor> want = run(g, {x, f});
    const std::vector<Tensor> inputs = {x, f};
    std::vector<Scalar> scratch;
    for (size_t k = 0; k < 2; ++k) {
      const LoweredRegion region = lower_conversion(g, g.value(g.outputs()[k]).producer);
      REQUIRE(verify(region.program));
      int wrong = 0;
      for (int64_t i = 0; i < inputs[k].numel(); ++i) {
        Scalar in{inputs[k].at_f64(i), k == 0 ? inputs[k].at_i64(i) : 0}, out;
        evaluate(region.program, &in, &out, scratch);
        wrong += k == 0 ? out.f != want[k].at_f64(i) : out.i != want[k].at_i64(i);
      }
      CHECK(wrong == 0);
    }
  }
}
