// The interpreter on sequences, optionals and maps, and on elements of two bits: what is right, and
// what is refused.
#include <doctest/doctest.h>

#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/semantics/semantics.h"
#include "tests/support/paths.h"

using namespace ferrule;

namespace {

using Dims = std::vector<int64_t>;
using Given = std::optional<Tensor>;
using Ran = Result<std::vector<Tensor>>;

Ran run_op(const std::string& op, const std::vector<Given>& inputs,
           const std::map<std::string, Attr>& attrs = {}, const std::string& domain = "",
           int64_t memory = 0) {
  static const std::string rules = rules_dir();
  static const auto ops = Semantics::load(std::span(&rules, 1));
  REQUIRE(ops);
  Limits limits;
  limits.memory_bytes = memory;
  InterpreterOptions o;
  o.ops = &*ops;
  o.limits = &limits;
  Graph g;
  Node n;
  n.op = op;
  n.domain = domain;
  n.name = "n";
  n.since_opset = 23;
  for (const auto& [k, v] : attrs) n.attrs.set(k, v);
  std::vector<const Tensor*> in;
  for (size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(inputs[i] ? &*inputs[i] : nullptr);
    n.inputs.push_back(inputs[i] ? g.add_input("i" + std::to_string(i), {}) : ValueId{});
  }
  n.outputs.push_back(g.add_value("o"));
  const NodeId id = g.add_node(std::move(n));
  return interpret_node(g, g.node(id), in, o);
}

Tensor only(const Ran& r) {
  if (!r) FAIL(render(r.error()));
  REQUIRE(r->size() == 1);
  return (*r)[0];
}
Code code(const Ran& r) {
  REQUIRE(!r);
  return r.error().code;
}
Tensor f32(Dims d, std::vector<float> v) { return Tensor::of_f32(std::move(d), v); }
Tensor index(int64_t i) { return Tensor::of_i64({}, {i}); }

}  // namespace

TEST_CASE("sequences") {
  const Tensor a = f32({2}, {1, 2}), b = f32({1}, {3}), c = f32({3}, {4, 5, 6});
  const Tensor ab = only(run_op("SequenceConstruct", {a, b}));
  REQUIRE(ab.elements().size() == 2);
  CHECK(only(run_op("SequenceAt", {ab, index(-1)})).identical(b));
  CHECK(only(run_op("SequenceLength", {ab})).at_i64(0) == 2);
  CHECK(only(run_op("SequenceInsert", {ab, c, index(-2)})).identical(Tensor::sequence({c, a, b})));
  CHECK(only(run_op("SequenceInsert", {ab, c, index(2)})).identical(Tensor::sequence({a, b, c})));
  CHECK(only(run_op("SequenceInsert", {ab, c})).identical(Tensor::sequence({a, b, c})));
  CHECK(only(run_op("SequenceErase", {ab, index(0)})).identical(Tensor::sequence({b})));
  CHECK(only(run_op("SequenceErase", {ab})).identical(Tensor::sequence({a})));
  CHECK(only(run_op("Identity", {ab})).identical(ab));
  const Tensor none = only(run_op("SequenceEmpty", {}));
  CHECK(only(run_op("SequenceLength", {none})).at_i64(0) == 0);

  CHECK(only(run_op("ConcatFromSequence", {ab}, {{"axis", int64_t{-1}}}))
            .identical(f32({3}, {1, 2, 3})));
  CHECK(only(run_op("ConcatFromSequence", {Tensor::sequence({a, a})},
                    {{"axis", int64_t{1}}, {"new_axis", int64_t{1}}}))
            .identical(f32({2, 2}, {1, 1, 2, 2})));
  const Tensor x = f32({2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(only(run_op("SplitToSequence", {x, index(2)}, {{"axis", int64_t{1}}}))
            .identical(Tensor::sequence({f32({2, 2}, {1, 2, 4, 5}), f32({2, 1}, {3, 6})})));
  CHECK(only(run_op("SplitToSequence", {x}, {{"keepdims", int64_t{0}}}))
            .identical(Tensor::sequence({f32({3}, {1, 2, 3}), f32({3}, {4, 5, 6})})));
  CHECK(only(run_op("SplitToSequence", {x, Tensor::of_i64({3}, {0, 1, 1})})).elements()[0].dims() ==
        Dims{0, 3});
}

TEST_CASE("sequences: what is refused") {
  const Tensor a = f32({2}, {1, 2}), i = Tensor::of_i64({1}, {1});
  const Tensor aa = Tensor::sequence({a, a}), none = Tensor::sequence({});
  constexpr int64_t kLow = std::numeric_limits<int64_t>::min();
  for (int64_t at : {int64_t{2}, int64_t{-3}, kLow, -(kLow + 1)}) {
    CHECK(code(run_op("SequenceAt", {aa, index(at)})) == Code::bad_shape);
    CHECK(code(run_op("SequenceErase", {aa, index(at)})) == Code::bad_shape);
  }
  CHECK(code(run_op("SequenceInsert", {aa, a, index(3)})) == Code::bad_shape);
  CHECK(code(run_op("SequenceErase", {none})) == Code::bad_shape);
  CHECK(code(run_op("SequenceAt", {aa, a})) == Code::bad_shape);   // no integer
  CHECK(code(run_op("SequenceAt", {aa, aa})) == Code::bad_shape);  // no tensor
  CHECK(code(run_op("SequenceAt", {a, index(0)})) == Code::bad_shape);
  CHECK(code(run_op("SequenceAt", {aa})) == Code::bad_shape);  // an input is missing
  CHECK(code(run_op("SequenceInsert", {aa, i})) == Code::bad_shape);
  CHECK(code(run_op("SequenceConstruct", {a, i})) == Code::bad_shape);
  CHECK(code(run_op("SequenceConstruct", {aa, aa})) == Code::bad_shape);  // nothing nests
  CHECK(code(run_op("SequenceInsert", {aa, aa})) == Code::bad_shape);
  CHECK(code(run_op("ConcatFromSequence", {none}, {{"axis", int64_t{0}}})) == Code::bad_shape);
  CHECK(code(run_op("ConcatFromSequence", {aa}, {{"axis", int64_t{1}}})) == Code::bad_attribute);
  CHECK(code(run_op("ConcatFromSequence", {Tensor::sequence({a, f32({1, 1}, {1})})},
                    {{"axis", int64_t{0}}})) == Code::bad_shape);
  const Tensor x = f32({3}, {1, 2, 3});
  for (const Tensor& split :
       {index(0), index(-1), Tensor::of_i64({2}, {1, 1}), Tensor::of_i64({3}, {3, 1, -1}),
        Tensor::of_i64({2, 2}, {1, 1, 1, 0}), Tensor::of_i64({2}, {-(kLow + 1), -(kLow + 1)})})
    CHECK(code(run_op("SplitToSequence", {x, split})) == Code::bad_shape);
  CHECK(code(run_op("SplitToSequence", {index(1), index(1)})) == Code::bad_attribute);
  // Operators of tensors take no sequence, whatever knows them: a formula, a row, a table.
  for (const char* op : {"Add", "Softmax", "Concat", "Shape", "Range"})
    CHECK(code(run_op(op, {aa, aa, aa})) == Code::unsupported_operator);
  CHECK(code(run_op("If", {aa})) == Code::bad_shape);  // no condition
  // What has no elements may still have more pieces than memory holds.
  const Tensor many = Tensor::allocate(DType::f32, {int64_t{1} << 40, 0}).first;
  CHECK(code(run_op("SplitToSequence", {many})) == Code::limit_exceeded);
  CHECK(code(run_op("SequenceInsert", {aa, a}, {}, "", 256)) == Code::limit_exceeded);
}

TEST_CASE("optionals") {
  const Tensor a = f32({2}, {1, 2}), aa = Tensor::sequence({a, a});
  const Tensor nothing = only(run_op("Optional", {}));
  CHECK(only(run_op("OptionalHasElement", {nothing})).at_i64(0) == 0);
  CHECK(only(run_op("OptionalHasElement", {})).at_i64(0) == 0);
  CHECK(code(run_op("OptionalGetElement", {nothing})) == Code::bad_shape);
  for (const Tensor& t : {a, aa}) {
    const Tensor some = only(run_op("Optional", {t}));
    CHECK(only(run_op("OptionalHasElement", {some})).at_i64(0) == 1);
    CHECK(only(run_op("OptionalGetElement", {some})).identical(t));
  }
  CHECK(code(run_op("Add", {nothing, a})) == Code::unsupported_operator);
}

TEST_CASE("maps") {
  const Tensor x = f32({2, 2}, {0.25, 0.75, 1, 0});
  const Tensor y = only(run_op("ZipMap", {x}, {{"classlabels_int64s", Dims{7, 9}}}, "ai.onnx.ml"));
  const Tensor keys = Tensor::of_i64({2}, {7, 9});
  CHECK(y.identical(Tensor::sequence(
      {Tensor::map(keys, f32({2}, {0.25, 0.75})), Tensor::map(keys, f32({2}, {1, 0}))})));
  const Ran named = run_op(
      "ZipMap", {x}, {{"classlabels_strings", std::vector<std::string>{"a", "b"}}}, "ai.onnx.ml");
  CHECK(only(named).elements()[1].elements()[0].strings()[1] == "b");
  CHECK(code(run_op("ZipMap", {x}, {{"classlabels_int64s", Dims{7}}}, "ai.onnx.ml")) ==
        Code::bad_shape);
  const Tensor rows = Tensor::allocate(DType::f32, {int64_t{1} << 40, 0}).first;
  CHECK(code(run_op("ZipMap", {rows}, {}, "ai.onnx.ml")) == Code::limit_exceeded);
}

TEST_CASE("what is no tensor is compared by its elements") {
  const Tensor a = f32({2}, {1, 2}), b = f32({2}, {1, 2.5});
  const auto compared = [](const Tensor& x, const Tensor& y) {
    return compare(x, y, model_tolerance(DType::f32));
  };
  CHECK(compared(Tensor::sequence({a, a}), Tensor::sequence({a, a})).ok);
  CHECK(compared(Tensor::sequence({a, b}), Tensor::sequence({a, a})).text ==
        "element 1 of the sequence: element 1 is 2.5, want 2");
  CHECK(!compared(Tensor::sequence({a}), Tensor::sequence({a, a})).ok);
  CHECK(!compared(Tensor::absent(), Tensor::sequence({a})).ok);
  CHECK(!compared(a, Tensor::sequence({a})).ok);
  CHECK(compared(Tensor::map(a, a), Tensor::map(a, a)).ok);
  CHECK(!compared(Tensor::map(a, b), Tensor::map(a, a)).ok);
  CHECK(compared(Tensor::absent(), Tensor::absent()).ok);
}

TEST_CASE("powers of two") {
  const float least = 0x1p-127f, most = 0x1p127f, nan = NAN, inf = INFINITY;
  const Tensor x = f32({11}, {0, least, 0.124f, 1, 1.25f, 1.5f, 1.75f, -3, most, 1.5f * most, inf});
  const auto cast = [&](const char* mode, int64_t saturate) {
    return only(run_op("Cast", {x},
                       {{"to", static_cast<int64_t>(DType::f8e8m0)},
                        {"saturate", saturate},
                        {"round_mode", std::string(mode)}}));
  };
  using V = std::vector<double>;
  CHECK(cast("up", 1).dtype() == DType::f8e8m0);
  CHECK(cast("up", 1).bytes() == 11);
  CHECK(cast("up", 1).to_f64() == V{least, least, 0.125, 1, 2, 2, 2, 4, most, most, most});
  CHECK(cast("down", 1).to_f64() == V{least, least, 0.0625, 1, 1, 1, 1, 2, most, most, most});
  CHECK(cast("nearest", 1).to_f64() == V{least, least, 0.125, 1, 1, 2, 2, 4, most, most, most});
  const V wrapped = cast("up", 0).to_f64();
  for (size_t k : {0, 9, 10}) CHECK(std::isnan(wrapped[k]));
  CHECK(wrapped[8] == most);
  CHECK(std::isnan(
      only(run_op("Cast", {f32({1}, {nan})}, {{"to", static_cast<int64_t>(DType::f8e8m0)}}))
          .at_f64(0)));
  // Every code is read as what it stands for, and written back.
  auto [all, p] = Tensor::allocate(DType::f8e8m0, {256});
  for (int k = 0; k < 256; ++k) static_cast<uint8_t*>(p)[k] = static_cast<uint8_t>(k);
  const Tensor wide = only(run_op("Cast", {all}, {{"to", static_cast<int64_t>(DType::f32)}}));
  for (int k = 0; k < 255; ++k) CHECK(wide.at_f64(k) == std::ldexp(1.0, k - 127));
  CHECK(std::isnan(wide.at_f64(255)));
  CHECK(only(run_op("Cast", {wide}, {{"to", static_cast<int64_t>(DType::f8e8m0)}})).identical(all));
  CHECK(only(run_op("CastLike", {x, all}, {{"round_mode", std::string("down")}})).at_f64(4) == 1);
  // The scales of blocks.
  auto [scale, s] = Tensor::allocate(DType::f8e8m0, {2, 1});
  static_cast<uint8_t*>(s)[0] = 126, static_cast<uint8_t*>(s)[1] = 130;
  const Tensor q = Tensor::of_ints(DType::i8, {2, 2}, std::array<int64_t, 4>{1, 2, 3, -4});
  CHECK(only(run_op("DequantizeLinear", {q, scale, std::nullopt},
                    {{"axis", int64_t{1}},
                     {"block_size", int64_t{2}},
                     {"output_dtype", static_cast<int64_t>(DType::f32)}}))
            .to_f64() == V{0.5, 1, 24, -32});
}

TEST_CASE("elements of two bits") {
  auto [u2, p] = Tensor::allocate(DType::u2, {5});
  static_cast<uint8_t*>(p)[0] = 0b11'10'01'00, static_cast<uint8_t*>(p)[1] = 0b01;
  CHECK(u2.bytes() == 2);
  CHECK(u2.to_i64() == Dims{0, 1, 2, 3, 1});
  const auto cast = [](const Tensor& x, DType to) {
    return only(run_op("Cast", {x}, {{"to", static_cast<int64_t>(to)}}));
  };
  CHECK(cast(u2, DType::i8).to_i64() == Dims{0, 1, 2, 3, 1});
  const Tensor i2 = cast(u2, DType::i2);  // the same bits
  CHECK(i2.to_i64() == Dims{0, 1, -2, -1, 1});
  CHECK(cast(f32({5}, {-2, -1, 0, 1, 2}), DType::i2).to_i64() == Dims{-2, -1, 0, 1, -2});
  for (int v : {-3, -2, -1, 0, 1, 2}) {
    CHECK(Tensor::scalar(DType::i2, v).at_i64(0) == std::clamp(v, -2, 1));
    CHECK(Tensor::scalar(DType::u2, v + 2).at_i64(0) == std::clamp(v + 2, 0, 3));
  }
  // They move like all others.
  CHECK(only(run_op("Gather", {i2, Tensor::of_i64({3}, {4, 3, 2})})).to_i64() == Dims{1, -1, -2});
  CHECK(code(run_op("ConcatFromSequence", {Tensor::sequence({u2, u2})}, {{"axis", int64_t{0}}})) ==
        Code::unsupported_type);
  const Tensor scale = f32({}, {0.5}), zero = Tensor::scalar(DType::i2, -1);
  CHECK(only(run_op("QuantizeLinear", {f32({4}, {-9, -0.5, 0, 9}), scale, zero})).to_i64() ==
        Dims{-2, -2, -1, 1});
  CHECK(only(run_op("DequantizeLinear", {i2, scale, zero})).to_f64() ==
        std::vector<double>{0.5, 1, -0.5, 0, 1});
}
