// Operators through evaluate_node and lowering: special values, optional inputs, broadcasting,
// narrow types exhaustively, and regions against their nodes one by one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/base/tolerance.h"
#include "engine/semantics/block_eval.h"
#include "engine/semantics/evaluate.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/infer_formula.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/semantics.h"
#include "tests/support/paths.h"

using namespace ferrule;

namespace {

const float kFloatInf = std::numeric_limits<float>::infinity();
const float kFloatNan = std::nanf("");

const Semantics& table() {
  static const Semantics ops = [] {
    std::vector<std::string> dirs{rules_dir()};
    return *Semantics::load(dirs);
  }();
  return ops;
}

Node node(std::string op, std::vector<std::pair<std::string, Attr>> attrs = {}) {
  Node n;
  n.op = std::move(op);
  for (auto& [k, v] : attrs) n.attrs.set(k, v);
  return n;
}

Result<Tensor> eval(const Node& n, std::vector<const Tensor*> in, bool f64 = false) {
  return evaluate_node(table(), n, in, f64);
}
Tensor vec(std::vector<float> v) { return Tensor::of_f32({static_cast<int64_t>(v.size())}, v); }

void check(const Node& n, std::vector<Tensor> in, std::vector<float> want) {
  std::vector<const Tensor*> p;
  for (const Tensor& t : in) p.push_back(&t);
  auto got = eval(n, p);
  if (!got) FAIL(render(got.error()));
  REQUIRE(got->numel() == static_cast<int64_t>(want.size()));
  for (int64_t i = 0; i < got->numel(); ++i) {
    CAPTURE(n.op.text());
    CAPTURE(i);
    double g = got->at_f64(i), w = want[static_cast<size_t>(i)];
    CAPTURE(g);
    CAPTURE(w);
    CHECK(((std::isnan(g) && std::isnan(w)) || (g == w && std::signbit(g) == std::signbit(w))));
  }
}

}  // namespace

TEST_CASE("special values of activations and friends") {
  Tensor x = vec({kFloatNan, kFloatInf, -kFloatInf, -0.0f, 2, -2});
  check(node("Relu"), {x}, {kFloatNan, kFloatInf, 0, 0, 2, 0});
  check(node("LeakyRelu", {{"alpha", 0.5}}), {x}, {kFloatNan, kFloatInf, -kFloatInf, -0.0f, 2, -1});
  check(node("ThresholdedRelu"), {x}, {0, kFloatInf, 0, 0, 2, 0});
  check(node("Elu"), {x},
        {kFloatNan, kFloatInf, -1, -0.0f, 2, static_cast<float>(std::expm1(-2.0))});
  check(node("HardSigmoid"), {x}, {kFloatNan, 1, 0, 0.5f, 0.2f * 2 + 0.5f, 0.2f * -2 + 0.5f});
  check(node("Softplus"), {vec({kFloatNan, kFloatInf, -kFloatInf, 1000, -1000})},
        {kFloatNan, kFloatInf, 0, 1000, 0});
  check(node("Softsign"), {vec({kFloatNan, 1, -3})}, {kFloatNan, 0.5f, -0.75f});
  check(node("Sigmoid"), {vec({kFloatNan, kFloatInf, -kFloatInf, 0})}, {kFloatNan, 1, 0, 0.5f});
  check(node("Sign"), {x}, {kFloatNan, 1, -1, 0, 1, -1});
  check(node("Round"), {vec({0.5f, 1.5f, -0.5f, 2.5f})}, {0, 2, -0.0f, 2});
  check(node("Reciprocal"), {vec({0.0f, -0.0f, kFloatInf})}, {kFloatInf, -kFloatInf, 0});
  check(node("Clip"), {x, vec({-1}), vec({1})}, {kFloatNan, 1, -1, -0.0f, 1, -1});
  check(node("Max"), {x, vec({1})}, {kFloatNan, kFloatInf, 1, 1, 2, 1});
  check(node("Mean"), {vec({1, 2}), vec({3, 4}), vec({5, 7.5f})}, {3, 4.5f});
}

TEST_CASE("the first operand is not spread over slopes and bounds") {
  const Tensor x = vec({-2, 3}), one = vec({-2}), number = Tensor::of_f32({}, {-2});
  check(node("PRelu"), {x, one}, {-2 * -2, 3});
  check(node("Clip"), {number, one.reshaped({1, 1}), one}, {-2});
  CHECK(eval(node("Clip"), {&number, &one})->dims().empty());
  CHECK_FALSE(eval(node("PRelu"), {&one, &x}));
  CHECK_FALSE(eval(node("PRelu"), {&number, &one}));
  CHECK_FALSE(eval(node("Clip"), {&x, &x}));
}

TEST_CASE("optional inputs and attributes decide while lowering") {
  Tensor x = vec({-5, 0.5f, 5}), one = vec({1});
  auto only_max = eval(node("Clip"), {&x, nullptr, &one});
  REQUIRE(only_max);
  CHECK(only_max->to_f64() == std::vector<double>{-5, 0.5, 1});
  auto neither = eval(node("Clip"), {&x});
  REQUIRE(neither);
  CHECK(neither->identical(x));
  Tensor wide = vec({3});
  auto tanh = eval(node("Gelu", {{"approximate", std::string("tanh")}}), {&wide});
  auto erf = eval(node("Gelu"), {&wide});
  REQUIRE(tanh);
  REQUIRE(erf);
  CHECK(tanh->at_f64(0) == doctest::Approx(2.99636));
  CHECK(erf->at_f64(0) == doctest::Approx(2.99595));
  Tensor inf = vec({kFloatInf, -kFloatInf, 1});
  auto negative = eval(node("IsInf", {{"detect_positive", int64_t{0}}}), {&inf});
  REQUIRE(negative);
  CHECK(negative->dtype() == DType::boolean);
  CHECK(negative->to_i64() == std::vector<int64_t>{0, 1, 0});
}

TEST_CASE("integer operators") {
  auto i32 = [](std::vector<int32_t> v) {
    return Tensor::of<int32_t>(DType::i32, {static_cast<int64_t>(v.size())}, v);
  };
  Tensor a = i32({7, -7, 7, 0}), b = i32({-3, 3, 0, 5}), e = i32({2, 3, -1, 0});
  auto ints = [&](const Node& n, const Tensor& y) { return eval(n, {&a, &y})->to_i64(); };
  CHECK(ints(node("Div"), b) == std::vector<int64_t>{-2, -2, 0, 0});
  CHECK(ints(node("Mod"), b) == std::vector<int64_t>{-2, 2, 0, 0});
  CHECK(ints(node("Mod", {{"fmod", int64_t{1}}}), b) == std::vector<int64_t>{1, -1, 0, 0});
  CHECK(ints(node("Pow"), e) == std::vector<int64_t>{49, -343, 0, 1});
  Tensor half = vec({0.5f, 2, 1, 1});
  auto mixed = eval(node("Pow"), {&a, &half});
  REQUIRE(mixed);
  CHECK(mixed->dtype() == DType::i32);
  CHECK(mixed->to_i64() == std::vector<int64_t>{2, 49, 7, 0});
}

TEST_CASE("what cannot be is an error that names the node") {
  Tensor x = vec({1, 2}), y = vec({1, 2, 3});
  auto shapes = eval(node("Add"), {&x, &y});
  REQUIRE_FALSE(shapes);
  CHECK(shapes.error().code == Code::bad_shape);
  auto missing = eval(node("Add"), {&x, nullptr});
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message == "input b is missing");
  Tensor i = Tensor::of_i64({2}, {1, 2});
  auto types = eval(node("Add"), {&x, &i});
  REQUIRE_FALSE(types);
  CHECK(types.error().message == "formula of Add: f32 meets i64");
  CHECK(types.error().excerpt == "a + b\n  ^");
  auto text = eval(node("Cast"), {&x});
  CHECK_FALSE(text);
  auto foreign = eval(node("Conv"), {&x});
  REQUIRE_FALSE(foreign);
  CHECK(foreign.error().code == Code::unsupported_operator);
  Tensor s({1}, std::vector<std::string>{"a"});
  auto strings = eval(node("Identity"), {&s});
  REQUIRE_FALSE(strings);
  CHECK(strings.error().code == Code::unsupported_type);
}

TEST_CASE("broadcasting equals indexing, for every pattern of three operands of rank 4") {
  std::vector<int64_t> full{2, 3, 5, 7};
  std::mt19937 random(1);
  for (int pattern = 0; pattern < 256; ++pattern) {
    std::vector<int64_t> da = full, db = full;
    for (int d = 0; d < 4; ++d) {
      if (pattern >> d & 1) da[static_cast<size_t>(d)] = 1;
      if (pattern >> (4 + d) & 1) db[static_cast<size_t>(d)] = 1;
    }
    while (!db.empty() && db[0] == 1 && random() % 2) db.erase(db.begin());  // lower rank
    auto make = [&](std::vector<int64_t> dims) {
      int64_t n = 1;
      for (int64_t d : dims) n *= d;
      std::vector<float> v(static_cast<size_t>(n));
      for (float& f : v) f = static_cast<float>(random() % 1000);
      return Tensor::of_f32(dims, v);
    };
    Tensor a = make(da), b = make(db), c = make({7});
    auto got = eval(node("Sum"), {&a, &b, &c});
    REQUIRE(got);
    std::vector<int64_t> want = full;
    for (size_t d = 0; d < 3; ++d)
      if (da[d] == 1 && (d + db.size() < 4 || db[d + db.size() - 4] == 1)) want[d] = 1;
    REQUIRE(got->dims() == want);
    auto at = [&](const Tensor& t, std::vector<int64_t> index) {
      int64_t o = 0;
      for (size_t d = 0; d < t.dims().size(); ++d) {
        int64_t n = t.dims()[d];
        o = o * n + (n == 1 ? 0 : index[index.size() - t.dims().size() + d]);
      }
      return t.at_f64(o);
    };
    int wrong = 0;
    for (int64_t k = 0; k < got->numel(); ++k) {
      std::vector<int64_t> index(4);
      int64_t rest = k;
      for (size_t d = 4; d-- > 0;) index[d] = rest % want[d], rest /= want[d];
      wrong += got->at_f64(k) != at(a, index) + at(b, index) + at(c, index);
    }
    CAPTURE(pattern);
    CHECK(wrong == 0);
  }
}

TEST_CASE("empty and scalar tensors") {
  Tensor none = Tensor::of_f32({0, 3}, {}), one = Tensor::of_f32({}, {2});
  auto empty = eval(node("Add"), {&none, &one});
  REQUIRE(empty);
  CHECK(empty->dims() == std::vector<int64_t>{0, 3});
  auto scalar = eval(node("Mul"), {&one, &one});
  REQUIRE(scalar);
  CHECK(scalar->dims().empty());
  CHECK(scalar->at_f64(0) == 4);
}

TEST_CASE("unary operators on all f16 and bf16 values: one rounding from double") {
  for (DType t : {DType::f16, DType::bf16}) {
    std::vector<uint16_t> bits(65536);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
    Tensor x = Tensor::of<uint16_t>(t, {65536}, bits);
    for (const auto& [key, f] : table().all()) {
      bool unary = f.pointwise() && f.inputs.size() == 1 && f.out_type.empty() &&
                   f.domain.empty() && f.required.empty() &&
                   std::find(f.types.begin(), f.types.end(), DType::f32) != f.types.end();
      if (!unary) continue;
      Node n = node(f.op);
      auto got = eval(n, {&x}), exact = eval(n, {&x}, true);
      REQUIRE(got);
      REQUIRE(exact);
      REQUIRE(got->dtype() == t);
      REQUIRE(exact->dtype() == DType::f64);
      int wrong = 0;
      for (int64_t i = 0; i < 65536; ++i) {
        double e = exact->at_f64(i);
        double want = convert(t, DType::f64, {e, 0}, false).f, g = got->at_f64(i);
        if (std::isnan(want) ? std::isnan(g) : g == want) continue;
        if (f.op == "Gelu" && std::fabs(g - want) <= kCancelled * std::fabs(x.at_f64(i))) continue;
        // Rounded in f32 first: at most the neighbour.
        auto code = [&](double v) {
          return t == DType::f16 ? float_to_f16(static_cast<float>(v))
                                 : float_to_bf16(static_cast<float>(v));
        };
        wrong += std::abs(code(g) - code(want)) > 1;
      }
      CAPTURE(f.op);
      CAPTURE(name(t));
      CHECK(wrong == 0);
    }
  }
}

namespace {

/// x -> Mul -> Add -> Sigmoid -> Mul(x) …, returning the graph and its nodes.
struct Chain {
  Graph g;
  std::vector<NodeId> nodes;
  ValueId x, y, out;
};

ValueId add(Chain& c, std::string op, std::vector<ValueId> in, DType t) {
  Node n = node(op);
  n.inputs = std::move(in);
  ValueId v = c.g.add_value(c.g.fresh_name("v"), {t, Shape{Dim(1000)}});
  n.outputs = {v};
  c.nodes.push_back(c.g.add_node(std::move(n)));
  return v;
}

Chain chain(DType t) {
  Chain c;
  c.x = c.g.add_input("x", {t, Shape{Dim(1000)}});
  c.y = c.g.add_input("y", {t, Shape{Dim(1000)}});
  ValueId half = c.g.add_constant("half", Tensor::scalar(t, 0.5));
  ValueId a = add(c, "Mul", {c.x, half}, t);
  ValueId b = add(c, "Add", {a, c.y}, t);
  ValueId s = add(c, "Sigmoid", {b}, t);
  ValueId p = add(c, "Mul", {b, s}, t);
  ValueId q = add(c, "Clip", {p, ValueId{}, half}, t);
  c.out = add(c, "Sub", {q, a}, t);
  c.g.add_output(c.out);
  return c;
}

}  // namespace

TEST_CASE("a region computes what its nodes do, bit for bit in f32") {
  Chain c = chain(DType::f32);
  ValueId outs[] = {c.out};
  auto region = lower_region(table(), c.g, c.nodes, outs);
  if (!region) FAIL(region.error().reason());
  REQUIRE(verify(region->program));
  CHECK(region->inputs == std::vector<ValueId>{c.x, c.y});  // 0.5 is an immediate
  std::mt19937 random(7);
  std::vector<float> vx(1000), vy(1000);
  for (size_t i = 0; i < 1000; ++i) {
    vx[i] = static_cast<float>(std::normal_distribution<double>(0, 3)(random));
    vy[i] = i % 50 == 0   ? kFloatNan
            : i % 50 == 1 ? kFloatInf
            : i % 50 == 2 ? -0.0f
                          : static_cast<float>(random() % 7) - 3;
  }
  std::map<ValueId, Tensor> values{{c.x, vec(vx)}, {c.y, vec(vy)}};
  for (NodeId id : c.nodes) {
    const Node& n = c.g.node(id);
    std::vector<const Tensor*> in;
    for (ValueId v : n.inputs)
      in.push_back(!v ? nullptr : c.g.constant(v) ? c.g.constant(v) : &values[v]);
    auto r = evaluate_node(table(), n, in, false);
    REQUIRE(r);
    values[n.outputs[0]] = *r;
  }
  std::vector<Scalar> scratch;
  int wrong = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    Scalar in[2] = {{values[c.x].at_f64(i), 0}, {values[c.y].at_f64(i), 0}}, out;
    evaluate(region->program, in, &out, scratch);
    double want = values[c.out].at_f64(i);
    wrong += !(out.f == want || (std::isnan(out.f) && std::isnan(want)));
  }
  CHECK(wrong == 0);
}

TEST_CASE(
    "a region that was lowered before is found again, for its own values; another one is not") {
  struct Variant {
    const char* op;
    DType type;
    double constant;
    bool swapped, second_output;
    std::vector<std::pair<std::string, Attr>> attrs;
  };
  /// z = op(x * constant, y), as text behind what it reads and writes.
  auto lowered = [](const Variant& v, const char* first) {
    Chain c;
    c.g.add_input(first, {});
    c.x = c.g.add_input("x", {v.type, Shape{Dim(4)}});
    c.y = c.g.add_input("y", {v.type, Shape{Dim(4)}});
    const ValueId k = c.g.add_constant("k", Tensor::scalar(v.type, v.constant));
    const ValueId a = add(c, "Mul", {c.x, k}, v.type);
    Node n = node(v.op, v.attrs);
    n.inputs = v.swapped ? std::vector{c.y, a} : std::vector{a, c.y};
    if (!v.attrs.empty()) n.inputs = {a};
    const ValueId z = c.g.add_value("z", {v.type, Shape{Dim(4)}});
    n.outputs = {z};
    c.nodes.push_back(c.g.add_node(std::move(n)));
    std::vector<ValueId> outs = v.second_output ? std::vector{z, a} : std::vector{z};
    auto region = lower_region(table(), c.g, c.nodes, outs);
    REQUIRE(region);
    CHECK(region->outputs == outs);
    std::string text;
    for (ValueId in : region->inputs) text += c.g.value(in).name + " ";
    return text + to_text(region->program);
  };
  const std::vector<Variant> all = {
      {"Sub", DType::f32, 0.5, false, false, {}},
      {"Sub", DType::f32, 0.25, false, false, {}},
      {"Sub", DType::f32, 0.5, true, false, {}},
      {"Sub", DType::f32, 0.5, false, true, {}},
      {"Sub", DType::f16, 0.5, false, false, {}},
      {"Div", DType::f32, 0.5, false, false, {}},
      {"Elu", DType::f32, 0.5, false, false, {{"alpha", 0.5}}},
      {"Elu", DType::f32, 0.5, false, false, {{"alpha", 0.25}}},
      {"Sub", DType::f32, 0.0, false, false, {}},
      {"Sub", DType::f32, -0.0, false, false, {}},
  };
  std::vector<std::string> texts;
  for (const Variant& v : all) texts.push_back(lowered(v, "i"));
  for (size_t k = 0; k < all.size(); ++k) {
    CAPTURE(k);
    CHECK(lowered(all[k], "j") == texts[k]);
    CHECK(std::count(texts.begin(), texts.end(), texts[k]) == 1);
  }
}

TEST_CASE("a region of f16 rounds once, at its end; an explicit cast rounds where it stands") {
  Chain c = chain(DType::f16);
  ValueId outs[] = {c.out};
  auto region = lower_region(table(), c.g, c.nodes, outs);
  REQUIRE(region);
  REQUIRE(verify(region->program));
  int narrow = 0;
  for (const Inst& in : region->program.insts)
    narrow += in.op == Prim::cast && in.type == DType::f16;
  CHECK(narrow == 1);

  Chain d;
  d.x = d.g.add_input("x", {DType::f32, Shape{Dim(4)}});
  Node cast = node("Cast", {{"to", int64_t{10}}});
  cast.inputs = {d.x};
  ValueId h = d.g.add_value("h", {DType::f16, Shape{Dim(4)}});
  cast.outputs = {h};
  d.nodes.push_back(d.g.add_node(std::move(cast)));
  ValueId r = add(d, "Neg", {h}, DType::f16);
  Node back = node("Cast", {{"to", int64_t{1}}});
  back.inputs = {r};
  d.out = d.g.add_value("o", {DType::f32, Shape{Dim(4)}});
  back.outputs = {d.out};
  d.nodes.push_back(d.g.add_node(std::move(back)));
  ValueId two[] = {d.out};
  auto rounded = lower_region(table(), d.g, d.nodes, two);
  REQUIRE(rounded);
  std::vector<Scalar> scratch;
  Scalar in{0.1f, 0}, out;
  evaluate(rounded->program, &in, &out, scratch);
  CHECK(out.f == -f16_to_float(float_to_f16(0.1f)));
}

TEST_CASE("lower_node names the inputs it reads and takes constants as immediates") {
  Chain c;
  c.x = c.g.add_input("x", {DType::f32, Shape{Dim(4)}});
  ValueId to = c.g.add_input("to", {DType::f16, Shape{Dim(9), Dim(9)}});
  ValueId k = c.g.add_constant("k", Tensor::scalar(DType::f32, 3));
  add(c, "CastLike", {c.x, to}, DType::f16);
  add(c, "Mul", {k, c.x}, DType::f32);
  auto like = lower_node(table(), c.g, c.g.node(c.nodes[0]), true);
  REQUIRE(like);
  CHECK(like->input_slots == std::vector<size_t>{0});
  auto mul = lower_node(table(), c.g, c.g.node(c.nodes[1]), true);
  REQUIRE(mul);
  CHECK(mul->input_slots == std::vector<size_t>{1});
  CHECK(mul->program.input_names == std::vector<std::string>{"b"});
  auto plain = lower_node(table(), c.g, c.g.node(c.nodes[1]), false);
  REQUIRE(plain);
  CHECK(plain->input_slots == std::vector<size_t>{0, 1});

  auto type = infer_pointwise(table(), c.g, c.g.node(c.nodes[0]));
  REQUIRE(type);
  CHECK(str(*type) == "f16[4]");  // the shape of the second input does not matter
}

TEST_CASE("ops: large constants, computed in parts, are rounded once from f64") {
  // Not a multiple of a block, a factor for each row as in folded weights, and products that f32
  // rounds.
  const int64_t rows = 300, columns = 1001;
  auto [x, px] = Tensor::allocate(DType::f32, {rows, columns});
  auto [s, ps] = Tensor::allocate(DType::f32, {rows, 1});
  for (int64_t i = 0; i < rows * columns; ++i)
    static_cast<float*>(px)[i] = 1.0f / static_cast<float>(i + 1);
  for (int64_t i = 0; i < rows; ++i) static_cast<float*>(ps)[i] = 0.1f * static_cast<float>(i + 1);
  auto got =
      evaluate_rounded(table(), node("Mul"), std::vector<const Tensor*>{&x, &s}, {DType::f32});
  if (!got) FAIL(render(got.error()));
  REQUIRE(got->dims() == std::vector<int64_t>{rows, columns});
  int64_t wrong = 0;
  for (int64_t i = 0; i < rows * columns; ++i)
    wrong += got->as<float>()[static_cast<size_t>(i)] !=
             static_cast<float>(x.at_f64(i) * s.at_f64(i / columns));
  CHECK(wrong == 0);
}
