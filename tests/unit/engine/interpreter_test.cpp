// The interpreter on single operators with small known results, on graphs, and on hostile
// attributes. Whole operator families are covered by tests/conformance.
#include "engine/interpreter/interpreter.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <numeric>

#include "engine/semantics/semantics.h"
#include "tests/support/paths.h"

using namespace ferrule;

namespace {

using Dims = std::vector<int64_t>;
using Given = std::optional<Tensor>;

const Semantics& table() {
  static const std::string rules = rules_dir();
  static const auto ops = Semantics::load(std::span(&rules, 1));
  REQUIRE(ops);
  return *ops;
}
InterpreterOptions options() {
  static const Limits limits;
  InterpreterOptions o;
  o.ops = &table();
  o.limits = &limits;
  return o;
}

struct Op {
  std::string op;
  std::map<std::string, Attr> attrs = {};
  size_t outputs = 1;
  std::string domain = {};
};

Result<std::vector<Tensor>> run_op(const Op& op, const std::vector<Given>& inputs,
                                   InterpreterOptions o = options()) {
  Graph g;
  Node n;
  n.op = op.op;
  n.domain = op.domain;
  n.name = "n";
  n.since_opset = 23;
  for (const auto& [k, v] : op.attrs) n.attrs.set(k, v);
  std::vector<const Tensor*> in;
  for (size_t i = 0; i < inputs.size(); ++i) {
    in.push_back(inputs[i] ? &*inputs[i] : nullptr);
    n.inputs.push_back(
        inputs[i] ? g.add_input("i" + std::to_string(i), {inputs[i]->dtype(), std::nullopt})
                  : ValueId{});
  }
  for (size_t k = 0; k < op.outputs; ++k) n.outputs.push_back(g.add_value("o" + std::to_string(k)));
  const NodeId id = g.add_node(std::move(n));
  return interpret_node(g, g.node(id), in, o);
}

std::vector<double> values(const Result<std::vector<Tensor>>& r, size_t k = 0) {
  if (!r) FAIL(render(r.error()));
  return (*r)[k].to_f64();
}
using Values = std::vector<double>;

Tensor f32(Dims d, std::vector<float> v) { return Tensor::of_f32(std::move(d), v); }
Tensor i64(std::vector<int64_t> v) { return Tensor::of_i64({static_cast<int64_t>(v.size())}, v); }
Tensor iota(Dims d, double from = 0) {
  int64_t n = 1;
  for (int64_t x : d) n *= x;
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(from + static_cast<double>(i));
  return f32(std::move(d), v);
}

}  // namespace

TEST_CASE("convolutions") {
  // 1-D, stride 2, dilation 2, pads: taps at -1+2k and 1+2k.
  CHECK(
      values(run_op({"Conv", {{"pads", Dims{1, 1}}, {"strides", Dims{2}}, {"dilations", Dims{2}}}},
                    {f32({1, 1, 5}, {1, 2, 3, 4, 5}), f32({1, 1, 2}, {10, 1}), f32({1}, {100})})) ==
      Values{102, 124, 140});
  // Two groups see their own channels only.
  CHECK(values(run_op({"Conv", {{"group", int64_t{2}}}},
                      {f32({1, 2, 1, 2}, {1, 2, 3, 4}), f32({2, 1, 1, 1}, {10, 100})})) ==
        Values{10, 20, 300, 400});
  CHECK(values(run_op({"Conv", {{"auto_pad", std::string("SAME_LOWER")}}},
                      {f32({1, 1, 3}, {1, 2, 3}), f32({1, 1, 2}, {1, 10})})) == Values{10, 21, 32});
  CHECK(values(run_op({"ConvTranspose", {{"strides", Dims{2}}, {"output_padding", Dims{1}}}},
                      {f32({1, 1, 2}, {1, 2}), f32({1, 1, 2}, {1, 10})})) ==
        Values{1, 10, 2, 20, 0});
  // A dense one with more channels than the fast path's block, against its definition.
  const Tensor x = iota({1, 5, 4, 4}, -20), w = iota({19, 5, 3, 3}, -400);
  const auto y =
      values(run_op({"Conv", {{"pads", Dims{1, 0, 1, 2}}, {"strides", Dims{2, 1}}}}, {x, w}));
  REQUIRE(y.size() == 19 * 2 * 4);
  for (int64_t m = 0; m < 19; ++m) {
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        double sum = 0;
        for (int64_t c = 0; c < 5; ++c) {
          for (int64_t k = 0; k < 9; ++k) {
            const int64_t r = i * 2 + k / 3 - 1, q = j + k % 3;
            if (r >= 0 && r < 4 && q < 4)
              sum += x.at_f64((c * 4 + r) * 4 + q) * w.at_f64((m * 5 + c) * 9 + k);
          }
        }
        CHECK(y[static_cast<size_t>((m * 2 + i) * 4 + j)] == sum);
      }
    }
  }
}

TEST_CASE("pooling") {
  const auto r = run_op(
      {"MaxPool", {{"kernel_shape", Dims{2}}, {"strides", Dims{2}}, {"ceil_mode", int64_t{1}}}, 2},
      {f32({1, 1, 5}, {1, 9, 3, 4, 5})});
  CHECK(values(r) == Values{9, 4, 5});
  CHECK(values(r, 1) == Values{1, 3, 4});
  const Tensor x = f32({1, 1, 3}, {3, 6, 9});
  CHECK(values(run_op({"AveragePool", {{"kernel_shape", Dims{3}}, {"pads", Dims{1, 1}}}}, {x})) ==
        Values{4.5, 6, 7.5});
  CHECK(values(run_op(
            {"AveragePool",
             {{"kernel_shape", Dims{3}}, {"pads", Dims{1, 1}}, {"count_include_pad", int64_t{1}}}},
            {x})) == Values{3, 6, 5});
  CHECK(values(run_op({"GlobalAveragePool"}, {f32({1, 2, 1, 2}, {1, 3, 5, 9})})) == Values{2, 7});
  // Windows of nothing but pads give the least number of the type.
  const auto padded = run_op({"MaxPool", {{"kernel_shape", Dims{1}}, {"pads", Dims{1, 1}}}},
                             {Tensor::of_ints(DType::i8, {1, 1, 1}, std::array<int64_t, 1>{5})});
  CHECK(values(padded) == Values{-128, 5, -128});
  // Rows 0 to 2 and columns 1 to 2 in two by one cells; a region outside has no pixels.
  CHECK(values(run_op({"MaxRoiPool", {{"pooled_shape", Dims{2, 1}}}},
                      {iota({1, 1, 3, 4}), f32({2, 5}, {0, 1, 0, 2, 2, 0, 9, 9, 9, 9})})) ==
        Values{6, 10, 0, 0});
}

TEST_CASE("windows over an image without pixels") {
  const Tensor none = f32({1, 1, 0}, {}), weights = f32({2, 1, 3}, {1, 2, 3, 4, 5, 6});
  const auto windows = [](const char* op, int64_t kernel, int64_t pad, int64_t stride = 1) {
    return Op{op,
              {{"kernel_shape", Dims{kernel}},
               {"pads", Dims{pad, pad}},
               {"strides", Dims{stride}},
               {"ceil_mode", int64_t{stride > 1}}}};
  };
  const auto dims = [](const Op& op, const std::vector<Given>& inputs) {
    const auto r = run_op(op, inputs);
    return r ? r->at(0).dims() : Dims{static_cast<int64_t>(r.error().code)};
  };
  const Dims empty{1, 1, 0}, refused{static_cast<int64_t>(Code::bad_shape)};
  CHECK(dims(windows("Conv", 3, 1), {none, weights}) == Dims{1, 2, 0});
  CHECK(values(run_op(windows("Conv", 3, 2), {none, weights, f32({2}, {7, 8})})) ==
        Values{7, 7, 8, 8});
  CHECK(dims(windows("Conv", 3, 0), {none, weights}) == refused);
  for (const char* op : {"MaxPool", "AveragePool", "LpPool"}) {
    CAPTURE(op);
    CHECK(dims(windows(op, 1, 0), {none}) == empty);
    CHECK(dims(windows(op, 2, 0, 2), {none}) == empty);
    CHECK(dims(windows(op, 2, 0), {none}) == refused);
    CHECK(dims(windows(op, 3, 0), {f32({1, 1, 2}, {1, 2})}) == refused);
  }
}

TEST_CASE("ceil_mode: a window larger than the padded image, of which only image and pads count") {
  const auto pool = [](const char* op, Dims kernel, Dims strides, Dims pads, bool include = false) {
    return Op{op,
              {{"kernel_shape", kernel},
               {"strides", strides},
               {"pads", pads},
               {"ceil_mode", int64_t{1}},
               {"count_include_pad", int64_t{include}}}};
  };
  const Tensor one = f32({1, 1, 1, 1}, {6}), three = f32({1, 1, 3}, {3, 6, 9});
  CHECK(values(run_op(pool("AveragePool", {2, 2}, {2, 2}, {1, 0, 1, 0}, true), {one})) ==
        Values{3});
  CHECK(values(run_op(pool("AveragePool", {2, 2}, {2, 2}, {1, 0, 1, 0}), {one})) == Values{6});
  CHECK(values(run_op(pool("AveragePool", {4}, {2}, {0, 0}, true), {three})) == Values{6});
  CHECK(values(run_op(pool("AveragePool", {4}, {3}, {2, 0}, true), {three})) == Values{2.25, 7.5});
  CHECK(values(run_op(pool("MaxPool", {4}, {2}, {0, 0}), {three})) == Values{9});
  CHECK(values(run_op(pool("LpPool", {4}, {2}, {0, 0}), {f32({1, 1, 3}, {0, 3, 4})})) == Values{5});
  // A second window would begin behind the image.
  CHECK(values(run_op(pool("AveragePool", {1}, {1}, {0, 1}), {f32({1, 1, 1}, {6})})) == Values{6});
}

TEST_CASE("integers at their limits: products wrap, real results are the nearest integer") {
  const auto low = Tensor::of_i64({1, 1}, {INT64_MIN}), one = Tensor::of_i64({1, 1}, {1});
  CHECK(values(run_op({"Gemm", {{"alpha", -1.0}}}, {low, one})) == Values{-0x1p63});
  CHECK(values(run_op({"Gemm", {{"alpha", 1e30}}}, {one, one})) == Values{0x1p63});
  CHECK(values(run_op({"ReduceLogSumExp"}, {i64({INT64_MAX})})) == Values{0x1p63});
  // The squares' sum wraps to a number without a root: not a number, as an integer 0.
  CHECK(values(run_op({"ReduceL2"}, {i64({int64_t{1} << 31, int64_t{1} << 31})})) == Values{0});
  const auto none = run_op({"Range"}, {f32({}, {0}), f32({}, {-3e38F}), f32({}, {1e-30F})});
  CHECK((*none)[0].dims() == Dims{0});
}

TEST_CASE("products") {
  CHECK(values(run_op({"MatMul"}, {f32({2, 2}, {1, 2, 3, 4}), f32({2}, {10, 1})})) ==
        Values{12, 34});
  CHECK((*run_op({"MatMul"}, {iota({5, 1, 2, 3}), iota({4, 3, 2})}))[0].dims() == Dims{5, 4, 2, 2});
  CHECK(values(run_op({"Gemm", {{"transA", int64_t{1}}, {"alpha", 2.0}, {"beta", 10.0}}},
                      {f32({2, 1}, {1, 2}), f32({2, 2}, {1, 2, 3, 4}), f32({1}, {1})})) ==
        Values{24, 30});
  CHECK(values(run_op({"Einsum", {{"equation", std::string("ij,jk->ki")}}},
                      {f32({2, 2}, {1, 2, 3, 4}), f32({2, 1}, {1, 1})})) == Values{3, 7});
  CHECK(values(run_op({"MatMulInteger"},
                      {Tensor::of<uint8_t>(DType::u8, {1, 2}, std::vector<uint8_t>{3, 4}),
                       Tensor::of<uint8_t>(DType::u8, {2, 1}, std::vector<uint8_t>{5, 6}),
                       Tensor::scalar(DType::u8, 2)})) == Values{17});
}

TEST_CASE("movement") {
  const Tensor x = iota({2, 3});
  CHECK(values(run_op({"Transpose"}, {x})) == Values{0, 3, 1, 4, 2, 5});
  CHECK(values(run_op({"Slice"}, {x, i64({-1, 5}), i64({-100, 0}), i64({1, 0}), i64({-2, -1})})) ==
        Values{5, 3});
  CHECK(values(run_op({"Gather", {{"axis", int64_t{1}}}}, {x, i64({-1, 0})})) ==
        Values{2, 0, 5, 3});
  CHECK(values(run_op({"Concat", {{"axis", int64_t{-1}}}}, {x, f32({2, 1}, {8, 9})})) ==
        Values{0, 1, 2, 8, 3, 4, 5, 9});
  const auto parts = run_op({"Split", {{"axis", int64_t{1}}, {"num_outputs", int64_t{2}}}, 2}, {x});
  CHECK(values(parts) == Values{0, 1, 3, 4});
  CHECK(values(parts, 1) == Values{2, 5});
  CHECK(values(run_op({"Pad", {{"mode", std::string("reflect")}}},
                      {f32({3}, {1, 2, 3}), i64({2, 1})})) == Values{3, 2, 1, 2, 3, 2});
  CHECK(values(run_op({"Expand"}, {f32({2, 1}, {1, 2}), i64({2, 1, 2})})) ==
        Values{1, 1, 2, 2, 1, 1, 2, 2});
  CHECK((*run_op({"Reshape"}, {x, i64({0, -1, 1})}))[0].dims() == Dims{2, 3, 1});
  CHECK(values(run_op({"ScatterND", {{"reduction", std::string("add")}}},
                      {f32({3}, {1, 1, 1}), Tensor::of_i64({2, 1}, {2, 2}), f32({2}, {5, 6})})) ==
        Values{1, 1, 12});
  // Of rows that are put at one place the last one stays; sums and extremes take all.
  const Tensor rows = Tensor::of_i64({3, 1}, {1, 0, 1});
  const Tensor put = f32({3, 2}, {5, 6, 7, 8, 3, 9});
  CHECK(values(run_op({"ScatterND"}, {f32({3, 2}, {1, 1, 2, 2, 3, 3}), rows, put})) ==
        Values{7, 8, 3, 9, 3, 3});
  CHECK(values(run_op({"ScatterND", {{"reduction", std::string("add")}}},
                      {f32({3, 2}, {1, 1, 2, 2, 3, 3}), rows, put})) == Values{8, 9, 10, 17, 3, 3});
  CHECK(values(run_op({"ScatterND", {{"reduction", std::string("min")}}},
                      {f32({3, 2}, {1, 1, 2, 9, 3, 3}), rows, put})) == Values{1, 1, 2, 6, 3, 3});
  // Strings and 4-bit elements move like all others.
  const Tensor s({2}, std::vector<std::string>{"a", "b"});
  CHECK((*run_op({"Tile"}, {s, i64({2})}))[0].strings() ==
        std::vector<std::string>{"a", "b", "a", "b"});
  CHECK((*run_op({"ScatterND"}, {Tensor({2, 2}, std::vector<std::string>{"a", "b", "c", "d"}),
                                 Tensor::of_i64({1, 1}, {1}),
                                 Tensor({1, 2}, std::vector<std::string>{"e", "f"})}))[0]
            .strings() == std::vector<std::string>{"a", "b", "e", "f"});
  auto [nibbles, p] = Tensor::allocate(DType::u4, {3});
  static_cast<uint8_t*>(p)[0] = 0x21, static_cast<uint8_t*>(p)[1] = 0x03;
  CHECK(values(run_op({"Gather"}, {nibbles, i64({2, 1, 0})})) == Values{3, 2, 1});
  CHECK(values(run_op({"GatherND"}, {nibbles, Tensor::of_i64({2, 1}, {-1, 0})})) == Values{3, 1});
  const Tensor pairs({2, 2}, std::vector<std::string>{"a", "b", "c", "d"});
  CHECK((*run_op({"ReverseSequence"}, {pairs, i64({2, 1})}))[0].strings() ==
        std::vector<std::string>{"c", "b", "a", "d"});
  CHECK((*run_op({"Trilu"}, {pairs}))[0].strings() == std::vector<std::string>{"a", "b", "", "d"});
  CHECK((*run_op({"GatherND", {{"batch_dims", int64_t{1}}}},
                 {pairs, Tensor::of_i64({2, 1}, {1, 0})}))[0]
            .strings() == std::vector<std::string>{"b", "c"});
}

TEST_CASE("movement in runs: whole rows, parts of rows, none") {
  const Tensor x = iota({2, 2, 3});
  auto [yes, p] = Tensor::allocate(DType::boolean, {2});
  static_cast<bool*>(p)[1] = true;
  CHECK(values(run_op({"Compress", {{"axis", int64_t{1}}}}, {x, yes})) ==
        Values{3, 4, 5, 9, 10, 11});
  CHECK(values(run_op({"Compress"}, {x, yes})) == Values{1});
  CHECK(values(run_op({"ReverseSequence", {{"batch_axis", int64_t{0}}, {"time_axis", int64_t{1}}}},
                      {x, i64({1, 2})})) == Values{0, 1, 2, 3, 4, 5, 9, 10, 11, 6, 7, 8});
  CHECK(values(run_op({"Trilu", {{"upper", int64_t{0}}}}, {x, i64({-1})})) ==
        Values{0, 0, 0, 3, 0, 0, 0, 0, 0, 9, 0, 0});
  CHECK(values(run_op({"Trilu"}, {x, i64({2})})) == Values{0, 0, 2, 0, 0, 0, 0, 0, 8, 0, 0, 0});
  for (const int64_t far : {int64_t{-100}, std::numeric_limits<int64_t>::min()})
    CHECK(values(run_op({"Trilu"}, {x, i64({far})})) == values(run_op({"Identity"}, {x})));
  CHECK(values(run_op({"GatherND"}, {x, Tensor::of_i64({2, 2}, {-1, 0, 0, 1})})) ==
        Values{6, 7, 8, 3, 4, 5});
  CHECK(values(run_op({"GatherND", {{"batch_dims", int64_t{1}}}},
                      {x, Tensor::of_i64({2, 1}, {1, 0})})) == Values{3, 4, 5, 6, 7, 8});
  CHECK((*run_op({"GatherND"}, {iota({2, 0}), Tensor::of_i64({3, 1}, {1, 0, 1})}))[0].dims() ==
        Dims{3, 0});
  // Signs of zeros do not count, in any type.
  CHECK(values(run_op({"NonZero"}, {f32({2, 2}, {-0.0F, 1, NAN, 0})})) == Values{0, 1, 1, 0});
  for (const DType t : {DType::f16, DType::f64, DType::f8e4m3fn, DType::i8, DType::u4}) {
    CAPTURE(static_cast<int>(t));
    auto [numbers, bytes] = Tensor::allocate(t, {3});
    Tensor::put(t, bytes, 0, -0.0), Tensor::put(t, bytes, 2, 2.0);
    CHECK(values(run_op({"NonZero"}, {numbers})) == Values{2});
  }
}

TEST_CASE("results lie where there is room for them") {
  Graph g;
  const Tensor x = iota({2, 3}), axis = i64({0});
  const Tensor* in[] = {&x, &axis};
  Node n;
  n.op = "CumSum", n.outputs = {g.add_value("y")};
  const NodeId id = g.add_node(std::move(n));
  auto run = [&](const Room& room) {
    return interpret_node(g, g.node(id), in, options(), std::span(&room, 1));
  };
  auto [room, bytes] = Tensor::allocate(DType::f32, {2, 3});
  std::memset(bytes, -1, 24);  // of any content
  CHECK(values(run({room, bytes})) == Values{0, 1, 2, 3, 5, 7});
  CHECK(run({room, bytes})->front().data() == bytes);
  // Of another type or size it is none.
  CHECK(run({room.reshaped({3, 2}), bytes})->front().data() != bytes);
  CHECK(run({Tensor(DType::i32, {2, 3}, nullptr, bytes), bytes})->front().data() != bytes);
  CHECK(values(run({Tensor(), nullptr})) == Values{0, 1, 2, 3, 5, 7});
}

TEST_CASE("a forest is read once for the runs of a node") {
  using Texts = std::vector<std::string>;
  using Reals = std::vector<double>;
  Graph g;
  auto tree = [&](double low, double high) {
    Node n;
    n.op = "TreeEnsembleRegressor", n.domain = "ai.onnx.ml", n.since_opset = 3;
    const std::pair<const char*, std::vector<int64_t>> lists[] = {
        {"nodes_treeids", {0, 0, 0}},      {"nodes_nodeids", {0, 1, 2}},
        {"nodes_featureids", {1, 0, 0}},   {"nodes_truenodeids", {1, 0, 0}},
        {"nodes_falsenodeids", {2, 0, 0}}, {"target_treeids", {0, 0}},
        {"target_nodeids", {1, 2}},        {"target_ids", {0, 0}}};
    for (const auto& [name, list] : lists) n.attrs.set(name, list);
    n.attrs.set("nodes_modes", Texts{"BRANCH_LEQ", "LEAF", "LEAF"});
    n.attrs.set("nodes_values", Reals{0.5, 0, 0});
    n.attrs.set("target_weights", Reals{low, high});
    n.outputs = {g.add_value("y" + std::to_string(low))};
    return g.add_node(std::move(n));
  };
  const NodeId first = tree(1, 2), second = tree(3, 4);
  Prepared kept;
  InterpreterOptions o = options();
  o.prepared = &kept;
  auto run = [&](NodeId id, const Tensor& x) {
    const Tensor* in[] = {&x};
    return interpret_node(g, g.node(id), in, o);
  };
  CHECK(values(run(first, f32({2, 2}, {0, 0, 0, 1}))) == Values{1, 2});
  const void* what = kept.what.get();
  CHECK(what);
  CHECK(values(run(first, f32({1, 3}, {0, 1, 0}))) == Values{2});
  CHECK(kept.what.get() == what);
  CHECK(!run(first, f32({1, 1}, {0})));  // without the feature
  CHECK(values(run(second, f32({1, 2}, {0, 0}))) == Values{3});
  CHECK(values(run(first, f32({1, 2}, {0, 0}))) == Values{1});
}

TEST_CASE("texts, transforms and complex numbers: what is right, and what is refused") {
  const auto code = [](const Result<std::vector<Tensor>>& r) {
    REQUIRE(!r);
    return r.error().code;
  };
  const Tensor s({2}, std::vector<std::string>{"a b", "c"});
  CHECK((*run_op({"StringConcat"}, {s, s}))[0].strings()[1] == "cc");
  CHECK((*run_op({"StringSplit", {}, 2}, {s}))[0].dims() == Dims{2, 2});
  CHECK(code(run_op({"StringConcat"}, {s, f32({2}, {1, 2})})) == Code::unsupported_type);
  CHECK(values(run_op({"Equal"}, {s, s})) == Values{1, 1});
  // 6 = 2 * 3 elements: both kinds of factors.
  const Tensor x = f32({6, 1}, {1, 2, 3, 4, 5, 6});
  const auto there = run_op({"DFT", {{"axis", int64_t{0}}}}, {x});
  CHECK(values(there)[0] == doctest::Approx(21));
  const auto back = run_op({"DFT", {{"axis", int64_t{0}}, {"inverse", int64_t{1}}}}, {(*there)[0]});
  for (size_t i = 0; i < 6; ++i)
    CHECK(values(back)[2 * i] == doctest::Approx(static_cast<double>(i) + 1));
  CHECK(code(run_op({"DFT", {{"axis", int64_t{1}}}}, {x})) == Code::bad_attribute);
  CHECK(code(run_op({"STFT"}, {f32({1, 6, 1}, {1, 2, 3, 4, 5, 6}), i64({0})})) == Code::bad_shape);
  const auto bits = run_op({"BitCast", {{"to", int64_t{6}}}}, {f32({1}, {1})});
  CHECK(values(bits) == Values{0x3f800000});
  CHECK(code(run_op({"BitCast", {{"to", int64_t{7}}}}, {f32({1}, {1})})) == Code::bad_shape);
  const Tensor complex = Tensor::allocate(DType::complex128, {2}).first;
  CHECK(code(run_op({"Unique"}, {complex})) == Code::unsupported_type);
}

TEST_CASE("reductions, order and normalisation") {
  CHECK(values(run_op({"ReduceSum", {{"keepdims", int64_t{0}}}}, {iota({2, 3}), i64({-1})})) ==
        Values{3, 12});
  CHECK(values(run_op({"ReduceMax"},
                      {Tensor::of<int32_t>(DType::i32, {0}, std::vector<int32_t>{})}))[0] ==
        -2147483648.0);
  // Of an axis without elements there is nothing to read, however many results there are.
  CHECK(values(
            run_op({"ReduceMin", {{"keepdims", int64_t{0}}}}, {f32({0, 1 << 22}, {}), i64({0})})) ==
        Values(1 << 22, std::numeric_limits<double>::infinity()));
  CHECK(values(run_op({"ReduceSum", {{"noop_with_empty_axes", int64_t{1}}}}, {iota({2})})) ==
        Values{0, 1});
  const auto top = run_op({"TopK", {}, 2}, {f32({4}, {1, 7, 7, 3}), i64({3})});
  CHECK(values(top) == Values{7, 7, 3});
  CHECK(values(top, 1) == Values{1, 2, 3});
  CHECK(values(run_op({"CumSum", {{"exclusive", int64_t{1}}, {"reverse", int64_t{1}}}},
                      {f32({3}, {1, 2, 3}), i64({0})})) == Values{5, 3, 0});
  CHECK(values(run_op({"Softmax"}, {f32({2}, {1000, 1000})})) == Values{0.5, 0.5});
  CHECK(values(run_op({"LayerNormalization", {{"epsilon", 0.0}}, 3},
                      {f32({2}, {1, 3}), f32({2}, {1, 10}), f32({2}, {5, 5})})) == Values{4, 15});
  // The mean of squares with an infinity is one, so what is finite becomes 0.
  CHECK(values(run_op({"RMSNormalization"},
                      {f32({3}, {1, -INFINITY, 2}), f32({3}, {1, 1, 1})}))[0] == 0);
  CHECK(values(run_op({"BatchNormalization", {{"epsilon", 0.0}}},
                      {f32({1, 2}, {3, 3}), f32({2}, {1, 2}), f32({2}, {0, 1}), f32({2}, {1, 1}),
                       f32({2}, {4, 1})})) == Values{1, 5});
  CHECK(values(run_op({"QuantizeLinear"}, {f32({4}, {0.5, 1.5, -300, NAN}), f32({}, {1}),
                                           Tensor::scalar(DType::i8, 0)})) ==
        Values{0, 2, -128, 0});
  // Without saturation what is too large is infinite, and NaN is still NaN.
  const auto bytes = values(
      run_op({"QuantizeLinear",
              {{"saturate", int64_t{0}}, {"output_dtype", static_cast<int64_t>(DType::f8e5m2)}}},
             {f32({3}, {NAN, -1e30f, 2}), f32({}, {1})}));
  CHECK(std::isnan(bytes[0]));
  CHECK(bytes[1] == -INFINITY);
  CHECK(bytes[2] == 2);
}

TEST_CASE("the statistics of a LayerNormalization have the type of its stash") {
  const std::vector<double> numbers{1, 3}, ones{1, 1};
  const Tensor x = Tensor::of<double>(DType::f64, {1, 2}, std::span(numbers));
  const Tensor one = Tensor::of<double>(DType::f64, {2}, std::span(ones));
  for (const auto& [stash, type] : {std::pair{int64_t{1}, DType::f32}, {16, DType::bf16}}) {
    auto r = run_op({"LayerNormalization", {{"stash_type", stash}}, 3}, {x, one});
    REQUIRE(r);
    CHECK((*r)[0].dtype() == DType::f64);
    CHECK((*r)[1].dtype() == type);
    CHECK((*r)[2].dtype() == type);
    CHECK(values(r, 1) == std::vector<double>{2});
  }
}

TEST_CASE("resize") {
  const Tensor x = f32({1, 1, 1, 2}, {0, 4});
  auto resized = [&](std::map<std::string, Attr> attrs) {
    return values(run_op({"Resize", std::move(attrs)}, {x, std::nullopt, f32({4}, {1, 1, 1, 2})}));
  };
  CHECK(resized({{"mode", std::string("linear")}}) == Values{0, 1, 3, 4});
  CHECK(resized({{"mode", std::string("nearest")},
                 {"coordinate_transformation_mode", std::string("asymmetric")},
                 {"nearest_mode", std::string("floor")}}) == Values{0, 0, 4, 4});
  for (const double d :
       values(run_op({"Resize", {{"mode", std::string("nearest")}}},
                     {f32({1, 1, 1, 2}, {-0.0f, -0.0f}), std::nullopt, f32({4}, {1, 1, 1, 2})})))
    CHECK(std::signbit(d));
  CHECK(resized({{"mode", std::string("linear")},
                 {"coordinate_transformation_mode", std::string("align_corners")}})[1] ==
        doctest::Approx(4.0 / 3));
  // Of a region that is no region all positions lie outside.
  for (const char* mode : {"nearest", "linear", "cubic"})
    CHECK(values(run_op({"Resize",
                         {{"mode", std::string(mode)},
                          {"extrapolation_value", 7.0},
                          {"coordinate_transformation_mode", std::string("tf_crop_and_resize")}}},
                        {x, f32({8}, {0, 0, 0, NAN, 1, 1, 1, 1}), f32({4}, {1, 1, 1, 1})})) ==
          Values{7, 7});
  // Beside a size of 0 nothing goes over another, however large it is.
  const auto none =
      run_op({"Resize"}, {f32({2, 2}, {1, 2, 3, 4}), std::nullopt, f32({2}, {0.1f, 1e8f})});
  REQUIRE(none);
  CHECK((*none)[0].dims() == std::vector<int64_t>{0, 200000000});
  // Corners stay on corners, whatever the quotient of the sizes is rounded to.
  std::vector<float> counted(25);
  std::iota(counted.begin(), counted.end(), 0.0f);
  const auto corners =
      values(run_op({"Resize",
                     {{"coordinate_transformation_mode", std::string("align_corners")},
                      {"nearest_mode", std::string("floor")}}},
                    {f32({25}, counted), std::nullopt, std::nullopt, Tensor::of_i64({1}, {14})}));
  CHECK(corners.back() == 24);
  const auto empty = run_op(
      {"Resize"}, {f32({2, 0}, {}), std::nullopt, std::nullopt, Tensor::of_i64({2}, {4, 0})});
  REQUIRE(empty);
  CHECK((*empty)[0].dims() == std::vector<int64_t>{4, 0});
  // A size is a product of f32, as inference has it.
  const auto sized =
      run_op({"Resize"}, {f32({25}, std::vector<float>(25)), std::nullopt, f32({1}, {8.0f / 25})});
  REQUIRE(sized);
  CHECK((*sized)[0].dims() == std::vector<int64_t>{8});
}

TEST_CASE(
    "resize reads no pixel whose weight is 0, on either side: an infinity there is no part of the "
    "mean") {
  const double inf = INFINITY;
  const Tensor x = f32({1, 1, 1, 3}, {INFINITY, 4, INFINITY});
  for (const char* mode : {"linear", "cubic"}) {
    const auto y = values(run_op({"Resize",
                                  {{"mode", std::string(mode)},
                                   {"coordinate_transformation_mode", std::string("asymmetric")}}},
                                 {x, std::nullopt, f32({4}, {1, 1, 1, 2})}));
    CHECK(y[0] == inf);
    CHECK(y[2] == 4);
    CHECK(y[4] == inf);
  }
}

TEST_CASE(
    "global pools of planes without pixels: a mean of nothing is NaN, a maximum -infinity, a sum "
    "0") {
  const Tensor x = f32({1, 2, 0, 3}, {});
  CHECK(std::isnan(values(run_op({"GlobalAveragePool"}, {x}))[1]));
  CHECK(values(run_op({"GlobalMaxPool"}, {x})) == Values{-INFINITY, -INFINITY});
  CHECK(values(run_op({"GlobalLpPool"}, {x})) == Values{0, 0});
}

TEST_CASE("attention: masked keys have no weight, a query without keys gives zero") {
  const Tensor q = f32({1, 1, 2, 1}, {0, 0}), v = f32({1, 1, 2, 1}, {2, 6});
  CHECK(values(run_op({"Attention"}, {q, q, v})) == Values{4, 4});
  CHECK(values(run_op({"Attention", {{"is_causal", int64_t{1}}}}, {q, q, v})) == Values{2, 4});
  const Tensor mask = Tensor::of<uint8_t>(DType::boolean, {2, 2}, std::vector<uint8_t>{0, 0, 0, 1});
  CHECK(values(run_op({"Attention"}, {q, q, v, mask})) == Values{0, 6});
}

TEST_CASE("half precision is rounded once, and f64 keeps double") {
  // 1 + 2^-11 + 2^-12 is no f16 number; in f32 the sum is exact, then rounded once, up.
  auto h = [](double v) { return Tensor::scalar(DType::f16, v, {1, 1}); };
  const auto y = run_op({"Gemm"}, {h(1), h(1), h(0x1p-11 + 0x1p-12)});
  CHECK((*y)[0].dtype() == DType::f16);
  CHECK(values(y)[0] == 1 + 0x1p-10);
  InterpreterOptions o = options();
  o.f64 = true;
  const auto z = run_op({"Add"}, {f32({1}, {1}), f32({1}, {0x1p-30f})}, o);
  CHECK((*z)[0].dtype() == DType::f64);
  CHECK(values(z)[0] == 1 + 0x1p-30);
  CHECK(values(run_op({"ReduceSum"}, {f32({2}, {1, 0x1p-30f})}, o))[0] == 1 + 0x1p-30);
}

TEST_CASE("graphs: nested graphs capture, groups run their body") {
  // Loop 3 times: v = v + captured; scan output v.
  Graph g;
  const ValueId start = g.add_input("v0", {DType::f32, Shape{}}),
                step = g.add_input("step", {DType::f32, Shape{}});
  auto body = std::make_unique<Graph>();
  body->add_input("i", {DType::i64, Shape{}});
  const ValueId going = body->add_input("going", {DType::boolean, Shape{}}),
                v = body->add_input("v", {DType::f32, Shape{}});
  const ValueId captured = body->add_capture("step", {DType::f32, Shape{}}, step),
                sum = body->add_value("sum", {DType::f32, Shape{}});
  Node add;
  add.op = "Add", add.inputs = {v, captured}, add.outputs = {sum};
  body->add_node(std::move(add));
  body->add_output(going);
  body->add_output(sum);
  const ValueId copy = body->add_value("copy", {DType::f32, Shape{}});
  Node same;
  same.op = "Identity", same.inputs = {sum}, same.outputs = {copy};
  body->add_node(std::move(same));
  body->add_output(copy);
  Node loop;
  loop.op = "Loop";
  loop.inputs = {g.add_constant("m", Tensor::of_i64({}, {3})), ValueId{}, start};
  loop.outputs = {g.add_value("last"), g.add_value("all")};
  const auto outputs = loop.outputs;
  loop.subgraphs.emplace_back("body", std::move(body));
  g.add_node(std::move(loop));
  for (ValueId o : outputs) g.add_output(o);
  REQUIRE(g.sort());
  const std::vector<Tensor> in{f32({}, {10}), f32({}, {2})};
  const auto y = interpret(g, in, options());
  CHECK(values(y) == Values{16});
  CHECK(values(y, 1) == Values{12, 14, 16});

  Graph group_body;
  const ValueId a = group_body.add_input("a", {DType::f32, Shape{2}}),
                t = group_body.add_value("t"), r = group_body.add_value("r");
  Node neg, relu;
  neg.op = "Neg", neg.inputs = {a}, neg.outputs = {t};
  relu.op = "Relu", relu.inputs = {t}, relu.outputs = {r};
  group_body.add_node(std::move(neg));
  group_body.add_node(std::move(relu));
  group_body.add_output(r);
  Graph h;
  Node group;
  group.op = "group.pointwise", group.domain = "ferrule";
  group.inputs = {h.add_input("x", {DType::f32, Shape{2}})};
  group.outputs = {h.add_value("y")};
  h.add_output(group.outputs[0]);
  group.body = std::make_shared<Graph>(std::move(group_body));
  h.add_node(std::move(group));
  const std::vector<Tensor> x{f32({2}, {-3, 4})};
  int seen = 0;
  InterpreterOptions o = options();
  o.on_node = [&](const Graph&, NodeId, const std::vector<Tensor>&) { ++seen; };
  CHECK(values(interpret(h, x, o)) == Values{3, 0});
  CHECK(seen == 3);  // two inside, and the group itself
}

TEST_CASE("hostile attributes and sizes are errors") {
  const Tensor img = iota({1, 2, 4, 4}), k3 = iota({2, 2, 3, 3}), x = iota({2, 3});
  const int64_t huge = int64_t{1} << 60, most = std::numeric_limits<int64_t>::max();
  struct Case {
    Op op;
    std::vector<Given> in;
    Code code;
  };
  const std::vector<Case> cases = {
      {{"NoSuchOp"}, {x}, Code::unsupported_operator},
      // Sums that wrap to a number that fits.
      {{"FeatureVectorizer", {{"inputdimensions", Dims{most, most, 3}}}, 1, "ai.onnx.ml"},
       {x, x, x},
       Code::bad_attribute},
      {{"SVMClassifier",
        {{"classlabels_ints", Dims{0, 1, 2}},
         {"vectors_per_class", Dims{most, most, 3}},
         {"support_vectors", std::vector<double>{1, 2, 3}},
         {"coefficients", std::vector<double>{1, 2}},
         {"rho", std::vector<double>{1, 2, 3}}},
        2,
        "ai.onnx.ml"},
       {x},
       Code::bad_attribute},
      {{"Conv", {{"strides", Dims{0, 1}}}}, {img, k3}, Code::bad_attribute},
      {{"Conv", {{"strides", Dims{1}}}}, {img, k3}, Code::bad_attribute},
      {{"Conv", {{"group", int64_t{0}}}}, {img, k3}, Code::bad_attribute},
      {{"Conv", {{"group", int64_t{3}}}}, {img, k3}, Code::bad_attribute},
      {{"Conv", {{"pads", Dims{huge, 0, huge, 0}}}}, {img, k3}, Code::bad_attribute},
      {{"Conv", {{"dilations", Dims{3, 3}}}}, {img, k3}, Code::bad_shape},
      {{"Conv", {{"pads", Dims{1 << 30, 1 << 30, 1 << 30, 1 << 30}}}},
       {img, k3},
       Code::limit_exceeded},
      {{"Conv", {{"auto_pad", std::string("BOTH")}}}, {img, k3}, Code::bad_attribute},
      {{"Conv"}, {img, std::nullopt}, Code::bad_shape},
      {{"Conv"}, {img, k3, f32({3}, {1, 2, 3})}, Code::bad_shape},
      {{"Conv"}, {x, x}, Code::bad_shape},
      {{"ConvTranspose", {{"output_shape", Dims{huge, 1}}}}, {img, k3}, Code::bad_attribute},
      {{"MaxPool", {{"kernel_shape", Dims{0, 0}}}}, {img}, Code::bad_attribute},
      {{"MaxPool", {{"kernel_shape", Dims{9, 9}}}}, {img}, Code::bad_shape},
      {{"AveragePool"}, {img}, Code::bad_attribute},
      {{"LpPool", {{"kernel_shape", Dims{1, 1}}, {"p", int64_t{0}}}}, {img}, Code::bad_attribute},
      {{"MatMul"}, {x, x}, Code::bad_shape},
      {{"MatMul"}, {x, f32({}, {1})}, Code::bad_shape},
      {{"Gemm"}, {x, iota({3, 2}), iota({3})}, Code::bad_shape},
      {{"Einsum", {{"equation", std::string("ij->ik")}}}, {x}, Code::bad_attribute},
      {{"Einsum", {{"equation", std::string("i...j...->i")}}}, {x}, Code::bad_attribute},
      {{"Reshape"}, {x, i64({-1, -1})}, Code::bad_shape},
      {{"Reshape"}, {x, i64({huge, huge})}, Code::bad_shape},
      {{"Reshape"}, {x, i64({4})}, Code::bad_shape},
      {{"Reshape"}, {x, i64({0, 0, 0})}, Code::bad_shape},
      {{"Squeeze"}, {x, i64({0})}, Code::bad_shape},
      {{"Unsqueeze"}, {x, i64({7})}, Code::bad_shape},
      {{"Unsqueeze"}, {x, i64({1, 1})}, Code::bad_shape},
      {{"Transpose", {{"perm", Dims{0, 0}}}}, {x}, Code::bad_shape},
      {{"Transpose", {{"perm", Dims{5, -7}}}}, {x}, Code::bad_shape},
      {{"Concat", {{"axis", int64_t{2}}}}, {x, x}, Code::bad_shape},
      {{"Concat", {{"axis", int64_t{0}}}}, {x, img}, Code::bad_shape},
      {{"Split"}, {x, i64({5, -3})}, Code::bad_shape},
      {{"Split"}, {x, i64({1, 2})}, Code::bad_shape},
      {{"Slice"}, {x, i64({0}), i64({1}), i64({0}), i64({0})}, Code::bad_shape},
      {{"Slice"}, {x, i64({0}), i64({1}), i64({9})}, Code::bad_shape},
      {{"Slice"}, {x, i64({0, 0, 0}), i64({1, 1, 1})}, Code::bad_shape},
      {{"Gather"}, {x, i64({huge})}, Code::bad_shape},
      {{"Gather"}, {x, i64({-3})}, Code::bad_shape},
      {{"GatherElements"}, {x, Tensor::of_i64({1, 1}, {2})}, Code::bad_shape},
      {{"GatherND"}, {x, Tensor::of_i64({1, 3}, {0, 0, 0})}, Code::bad_shape},
      {{"ScatterND"}, {x, Tensor::of_i64({1, 2}, {0, -9}), f32({1}, {1})}, Code::bad_shape},
      {{"Pad"}, {x, i64({0, 0, huge, 0})}, Code::limit_exceeded},
      {{"Pad"}, {x, i64({0, -2, 0, -2})}, Code::bad_shape},
      {{"Pad"}, {x, i64({1 << 30, 1 << 30, 0, 0})}, Code::limit_exceeded},
      {{"Expand"}, {x, i64({huge, 1, 1})}, Code::limit_exceeded},
      {{"Tile"}, {x, i64({huge * 7, 1})}, Code::bad_shape},
      {{"Tile"}, {x, i64({1 << 30, 1 << 30})}, Code::limit_exceeded},
      {{"ConstantOfShape"}, {i64({int64_t{1} << 40})}, Code::limit_exceeded},
      {{"ConstantOfShape"}, {i64({-1})}, Code::bad_shape},
      {{"Range"}, {f32({}, {0}), f32({}, {1}), f32({}, {0})}, Code::bad_shape},
      {{"Range"}, {f32({}, {0}), f32({}, {1e30f}), f32({}, {1})}, Code::bad_shape},
      {{"OneHot"}, {i64({1}), i64({huge}), f32({2}, {0, 1})}, Code::limit_exceeded},
      {{"TopK"}, {x, i64({4})}, Code::bad_shape},
      {{"ArgMax", {{"axis", int64_t{2}}}}, {x}, Code::bad_attribute},
      {{"ReduceSum"}, {x, i64({2})}, Code::bad_shape},
      {{"Softmax", {{"axis", int64_t{-3}}}}, {x}, Code::bad_shape},
      {{"GroupNormalization", {{"num_groups", int64_t{0}}}},
       {img, f32({2}, {1, 1}), f32({2}, {1, 1})},
       Code::bad_attribute},
      {{"Resize"}, {x, std::nullopt, f32({2}, {0, 1})}, Code::bad_shape},
      {{"Resize"}, {x, std::nullopt, f32({2}, {1e9f, 1e9f})}, Code::limit_exceeded},
      {{"Resize"}, {x, std::nullopt, std::nullopt, i64({-4, 1})}, Code::bad_shape},
      {{"Resize", {{"keep_aspect_ratio_policy", std::string("not_smaller")}}},
       {iota({1, 30000}), std::nullopt, std::nullopt, i64({900000000000000, 1})},
       Code::bad_shape},
      {{"DepthToSpace", {{"blocksize", int64_t{0}}}}, {img}, Code::bad_attribute},
      {{"Softmax"}, {i64({1})}, Code::unsupported_type},
      {{"Attention"}, {img, img, img, iota({3, 3})}, Code::bad_shape},
      {{"Attention", {{"q_num_heads", int64_t{0}}}},
       {iota({1, 2, 2}), iota({1, 2, 2}), iota({1, 2, 2})},
       Code::bad_attribute},
      {{"Attention"}, {img, img, img, std::nullopt, x, x}, Code::bad_shape},
      {{"RotaryEmbedding"},
       {img, iota({5, 2}), iota({5, 2}), Tensor::of_i64({1, 4}, {0, 1, 2, 5})},
       Code::bad_shape},
      {{"Dropout"},
       {x, f32({}, {0.5}), Tensor::scalar(DType::boolean, 1)},
       Code::unsupported_operator},
  };
  for (const Case& c : cases) {
    const auto r = run_op(c.op, c.in);
    REQUIRE_MESSAGE(!r, c.op.op);
    CHECK_MESSAGE(r.error().code == c.code, c.op.op << ": " << render(r.error()));
    CHECK(r.error().place.find("\"n\" (" + c.op.op + ", opset 23)") != std::string::npos);
  }
}

TEST_CASE("a run stops when it is told to") {
  Cancel cancel;
  cancel.stop();
  InterpreterOptions o = options();
  o.cancel = &cancel;
  CHECK(run_op({"Identity"}, {iota({1})}, o).error().code == Code::cancelled);
}
