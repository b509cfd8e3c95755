// Tails, regions, names, and the order in which anchors take what both could have.
#include <chrono>

#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

const char* kActivation = R"Y(kind: absorb
phase: anchors
numerics: exact
match: |
  [conv] t = {Conv|group.conv}<...>(x, rest...)
contract: conv
anchor: conv
tail:
  of: "@pointwise"
  max_ops: 16
  max_inputs: 4
  where:
    - {id: constant_operands, kernel: "all(r in operands: const(r))", why: "{node} also reads {operands}"}
name: "{conv} + {tail}"
)Y";
const char* kResidual = R"Y(kind: absorb
phase: anchors
before: [act]
numerics: exact
match: |
  [conv] t = {Conv|group.conv}<...>(x, rest...)
contract: conv
anchor: conv
tail:
  of: "{Add|Sum|Min|Max}"
  max_ops: 1
  max_inputs: 1
  where:
    - {id: operand_shape, kernel: "all(r in operands: const(r) or same_shape(r, t))", why: "{operands} would be broadcast"}
name: "{conv} + {tail}"
)Y";
const char* kPointwise = R"Y(kind: region
phase: pointwise
numerics: exact
contract: pointwise
region:
  of: "@pointwise"
  min_ops: 2
  max_ops: 64
  max_inputs: 16
name: "fusedPointwiseNode({region})"
)Y";
std::string row_rule(std::string_view keeps) {
  return fmt::format(R"Y(kind: region
phase: rows
numerics: exact
contract: row_reduce
region: {{of: "@pointwise", around: "@row", min_ops: 2{}}}
name: "{{region}}"
)Y",
                     keeps);
}

RuleSet tail_rules() {
  return set_of({rule("res", kResidual), rule("act", kActivation), rule("pw", kPointwise)});
}
std::string fused(const std::string& text, const RuleSet& rules) {
  Graph g = graph(text), before = graph(text);
  must(pass(g, rules));
  // The fused graph computes the same.
  std::vector<Tensor> in;
  for (ValueId v : before.inputs()) {
    auto dims = constant_shape(*before.value(v).type.shape);
    REQUIRE(dims);
    std::vector<float> x;
    int64_t n = 1;
    for (int64_t d : *dims) n *= d;
    for (int64_t i = 0; i < n; ++i)
      x.push_back(static_cast<float>((i * 7 + static_cast<int64_t>(v.index) * 3) % 11) - 5);
    in.push_back(Tensor::of_f32(*dims, x));
  }
  auto a = run(before, in), b = run(g, in);
  REQUIRE(a.size() == b.size());
  for (size_t k = 0; k < a.size(); ++k) {
    CHECK(a[k].identical(b[k]));
    CHECK(before.value(before.outputs()[k]).name == g.value(g.outputs()[k]).name);
  }
  return ops_of(g);
}
const std::string kW = "<float[2,2,1,1] w = {1.0, -2.0, 3.0, 0.5}, float k = {0.5}>";

}  // namespace

TEST_CASE("a convolution takes its activation; names and log as TensorRT words them") {
  Graph g =
      graph("g (float[1,2,3,3] i) => (float[1,2,3,3] o) " + kW + " { t = Conv(i, w) o = Relu(t) }");
  std::string conv = g.node(maker(g, "t")).name, relu = g.node(maker(g, "o")).name;
  Passed p = must(pass(g, tail_rules()));
  REQUIRE(ops_of(g) == "group.conv(Conv Relu)");
  const Node& n = g.node(g.order()[0]);
  CHECK(n.name == conv + " + " + relu);
  CHECK(n.rule == "act");
  CHECK(n.domain == "ferrule");
  CHECK(n.inputs.size() == 2);
  CHECK(n.body->constant(n.body->inputs()[1]));
  CHECK(p.journal.steps.at(0).text == "Fusing " + conv + " with " + relu);
  CHECK(g.value(g.outputs()[0]).name == "o");
}

TEST_CASE("a residual, its activation and factors in one group, by two rules in turn") {
  CHECK(fused("g (float[1,2,3,3] i, float[1,2,3,3] r) => (float[1,2,3,3] o) " + kW +
                  " { t = Conv(i, w) u = Relu(t) a = Add(u, r) b = Mul(a, k) o = Tanh(b) }",
              tail_rules()) == "group.conv(Conv Relu Add Mul Tanh)");
}

TEST_CASE("of two convolutions the later one takes the Add") {
  CHECK(fused("g (float[1,2,3,3] i, float[1,2,3,3] j) => (float[1,2,3,3] o) " + kW +
                  " { s = Conv(i, w) t = Conv(j, w) a = Add(s, t) o = Relu(a) }",
              tail_rules()) == "Conv group.conv(Conv Add Relu)");
  CHECK(fused("g (float[1,2,3,3] i, float[1,2,3,3] j) => (float[1,2,3,3] o) " + kW +
                  " { s = Conv(i, w) u = Relu(s) t = Conv(j, w) v = Relu(t) a = Add(u, v) o = "
                  "Relu(a) }",
              tail_rules()) == "group.conv(Conv Relu) group.conv(Conv Relu Add Relu)");
}

TEST_CASE("a tail that reads the result twice is taken whole or not at all") {
  CHECK(fused("g (float[1,2,3,3] i) => (float[1,2,3,3] o) " + kW +
                  " { t = Conv(i, w) s = Sigmoid(t) o = Mul(t, s) }",
              tail_rules()) == "group.conv(Conv Sigmoid Mul)");
  CHECK(fused("g (float[1,2,3,3] i) => (float[1,2,3,3] o, float[1,2,3,3] p) " + kW +
                  " { t = Conv(i, w) s = Sigmoid(t) o = Mul(t, s) p = Neg(t) }",
              tail_rules()) == "Conv group.pointwise(Sigmoid Mul) Neg");
}

TEST_CASE("a longer tail is cut back to where one value leaves") {
  CHECK(fused("g (float[1,2,3,3] i) => (float[1,2,3,3] o, float[1,2,3,3] p) " + kW +
                  " { t = Conv(i, w) u = Relu(t) o = Tanh(u) p = Sigmoid(u) }",
              tail_rules()) == "group.conv(Conv Relu) Tanh Sigmoid");
}

TEST_CASE("why a tail was not taken") {
  auto act = rule("act", kActivation);
  auto res = rule("res", kResidual);
  Graph g = graph(
      "g (float[1,2,3,3] i, float[1,2,3,3] r, float[1,1,3,3] c) => (float[1,2,3,3] o, "
      "float[1,2,3,3] p, float[1,2,3,3] q, "
      "float[1,2,3,3] s, float[1,2,3,3] v) " +
      kW +
      " { t = Conv(i, w) o = Relu(t) p = Neg(t) "    // two readers
      "   q = Conv(i, w) q2 = Relu(q) s = Abs(q2) "  // an output
      "   u = Conv(i, w) v = Add(u, c) }");          // broadcast
  CHECK(declined(*act, g, "t") == "D1");
  CHECK(declined(*act, g, "q") == "D2");
  CHECK(declined(*res, g, "u") == "operand_shape");
  CHECK(declined(*act, g, "u") == "constant_operands");
  CHECK(declined(*res, g, "q") == "D2");
  target().contracts["conv"].generated_tail = false;
  target().contracts["conv"].max_epilogue_ops = 0;
  Graph h =
      graph("g (float[1,2,3,3] i) => (float[1,2,3,3] o) " + kW + " { t = Conv(i, w) o = Relu(t) }");
  CHECK(declined(*act, h, "t") == "conv.tail");
  // Who reads the reason gets the first; where nobody does, what asks for kernels waits for the
  // rest.
  std::string both = kActivation;
  both.insert(both.find("name:"), "where:\n  - {id: never, profit: \"false\", why: \"never\"}\n");
  auto never = rule("never", both);
  CHECK(declined(*never, h, "t") == "conv.tail");
  MatchContext silent = context(h);
  silent.explain = false;
  Attempt a = match_any(*never, maker(h, "t"), silent);
  REQUIRE(std::holds_alternative<Rejection>(a));
  CHECK(std::get<Rejection>(a).id == "never");
  target().contracts["conv"].generated_tail = true;
  target().contracts["conv"].max_epilogue_ops = 16;
}

TEST_CASE("a tail whose operand depends on the anchor is not taken") {
  CHECK(fused("g (float[1,2,3,3] i) => (float[1,2,3,3] o) " + kW +
                  " { t = Conv(i, w) m = Conv(t, w) o = Add(t, m) }",
              tail_rules()) == "Conv group.conv(Conv Add)");
}

TEST_CASE("regions are convex, have several outputs, and other shapes stay out") {
  CHECK(fused("g (float[2,3] i, float[2,3] j) => (float[2,3] o, float[2,3] p) { a = Add(i, j) b = "
              "Relu(a) o = Tanh(b) p = Neg(b) }",
              tail_rules()) == "group.pointwise(Add Relu Tanh Neg)");
  // a -> Transpose -> b: one kernel of a and b would wait for itself.
  CHECK(fused("g (float[3,3] i) => (float[3,3] o) { a = Relu(i) t = Transpose<perm=[1,0]>(a) b = "
              "Add(a, t) o = Neg(b) }",
              tail_rules()) == "Relu Transpose group.pointwise(Add Neg)");
  CHECK(fused("g (float[3,1] i, float[3,3] j) => (float[3,3] o) { a = Relu(i) b = Neg(a) c = "
              "Add(b, j) o = Abs(c) }",
              tail_rules()) == "group.pointwise(Relu Neg) group.pointwise(Add Abs)");
}

TEST_CASE("a region sinks to the later region that reads it") {
  CHECK(fused("g (float[3,3] i, float[3,3] j) => (float[3,3] o) { r = Relu(j) t = "
              "Transpose<perm=[1,0]>(i) n = Neg(t) o = Add(r, n) }",
              tail_rules()) == "Transpose group.pointwise(Relu Neg Add)");
}

TEST_CASE("regions keep to their limits, and pieces stay acyclic") {
  std::string text = "g (float[4] i) => (float[4] o) { a0 = Relu(i) b0 = Neg(i)\n";
  for (int k = 1; k < 100; ++k)
    text += fmt::format("a{0} = Add(a{1}, b{1}) b{0} = Sub(a{1}, b{1})\n", k, k - 1);
  Graph g = graph(text + "o = Add(a99, b99) }");
  must(pass(g, tail_rules()));
  size_t nodes = 0;
  for (NodeId n : g.order()) {
    REQUIRE(g.node(n).body);
    CHECK(g.node(n).body->live_nodes() <= 64);
    nodes += g.node(n).body->live_nodes();
  }
  CHECK(nodes == 201);
  CHECK(g.live_nodes() == 4);
}

TEST_CASE("a node that reads more tensors than the rule allows is no region of its own") {
  auto reading = [](int most, const std::string& more) {
    return set_of(
        {rule("few", fmt::format("kind: region\nphase: rows\nnumerics: exact\ncontract: {}\n"
                                 "region: {{of: \"@pointwise\", max_inputs: {}{}}}\n",
                                 more.empty() ? "pointwise" : "row_reduce", most, more))});
  };
  const std::string text =
      "g (float[2,3] i, float[2,3] j) => (float[2,3] o) { t = Add(i, j) u = Relu(t) o = Abs(u) }";
  CHECK(fused(text, reading(1, "")) == "Add group.pointwise(Relu Abs)");
  CHECK(fused(text, reading(2, "")) == "group.pointwise(Add Relu Abs)");
  Graph g = graph(text);
  CHECK(has(rejection(*reading(1, "").rules[0], g, "t").why,
            "(Add) reads 2 tensors; the rule allows 1 (its parameter max_inputs)"));
  // What was left out ends the region before it: the kernel behind it reads its result.
  CHECK(
      fused(
          "g (float[2,3] i, float[2,3] j) => (float[2,3] o) { a = Abs(i) b = Add(a, j) c = Relu(b) "
          "d = Mul(a, c) o = Neg(d) }",
          reading(1, "")) ==
      "group.pointwise(Abs) Add group.pointwise(Relu) Mul group.pointwise(Neg)");
  const std::string rows =
      "g (float[2,3] i, float[3] s, float[3] b) => (float[2,3] o) { t = "
      "LayerNormalization(i, s, b) o = Relu(t) }";
  CHECK(fused(rows, reading(2, ", around: \"@row\"")) == "LayerNormalization Relu");
  CHECK(fused(rows, reading(3, ", around: \"@row\"")) ==
        "group.row_reduce(LayerNormalization Relu)");
}

TEST_CASE("a region around rows keeps what it normalises, where the rule says so") {
  const RuleSet without = set_of({rule("rows", row_rule(""))}),
                adds = set_of({rule("rows", row_rule(", keeps: \"{Add}\""))}),
                all = set_of({rule("rows", row_rule(", keeps: \"@pointwise\""))});
  auto residual = [](const std::string& front, const std::string& behind) {
    return "g (float[4,4] i, float[4,4] j, float[4,4] w) => (float[4,4] o) <int64[2] k = {4, 4}> "
           "{ " +
           front + " n = Softmax<axis=-1>(s) m = MatMul(n, w) " + behind + " }";
  };
  const std::string sum = residual("s = Add(i, j)", "o = Add(s, m)");
  CHECK(fused(sum, without) == "Add Softmax MatMul Add");
  CHECK(fused(sum, adds) == "group.row_reduce(Add Softmax) MatMul Add");
  CHECK(fused(residual("s = Sub(i, j)", "o = Add(s, m)"), adds) == "Sub Softmax MatMul Add");
  // So are several, one behind the other; who else reads them joins behind.
  CHECK(fused(residual("a = Abs(i) s = Add(a, j) r = Relu(s)",
                       "b = Add(a, m) c = Add(r, b) o = Add(c, s)"),
              all) == "group.row_reduce(Abs Add Relu Softmax) MatMul Add Add Add");
  // A path from the sum that comes back; values of other shapes; what a kernel that moves makes on
  // its way, unless the moved value is in memory anyway.
  CHECK(fused("g (float[4,4] i, float[4] j, float[4,4] w) => (float[4,4] o) { s = Add(i, j) m = "
              "MatMul(s, w) a = Add(s, m) o = Softmax<axis=-1>(a) }",
              all) == "Add MatMul group.row_reduce(Add Softmax)");
  const std::string moved = residual("t = Transpose<perm=[1,0]>(i) s = Add(t, j)", "o = Add(s, m)");
  CHECK(fused(moved, all) == "Transpose Add Softmax MatMul Add");
  CHECK(fused(residual("t = Transpose<perm=[1,0]>(i) s = Add(t, j)", "a = Add(s, m) o = Add(a, t)"),
              all) == "Transpose group.row_reduce(Add Softmax) MatMul Add Add");
  CHECK(fused(residual("t = Reshape(i, k) s = Add(t, j)", "o = Add(s, m)"), all) ==
        "Reshape group.row_reduce(Add Softmax) MatMul Add");
  CHECK(fused("g (float[4,4] i, float[1,4] j, float[4,4] w) => (float[4,4] o) { a = Abs(j) s = "
              "Add(i, a) n = Softmax<axis=-1>(s) m = MatMul(n, w) o = Add(s, m) }",
              all) == "Abs Add Softmax MatMul Add");
}

TEST_CASE("a region of rows is none without an operator that goes along them") {
  std::string any = row_rule("");
  any.replace(any.find("@pointwise\", around: \"@row"), 26, "{Add|Relu|ReduceSum}");
  CHECK(fused("g (float[4,4] i, float[4,4] j) => (float[4,4] o) { a = Add(i, j) o = Relu(a) }",
              set_of({rule("rows", any)})) == "Add Relu");
}

TEST_CASE("make_group refuses what is not convex") {
  Graph g =
      graph("g (float[2] i) => (float[2] o) { a = Relu(i) b = Tanh(a) c = Add(a, b) o = Neg(c) }");
  std::vector<NodeId> nodes{maker(g, "a"), maker(g, "c")};
  auto r = make_group(g, nodes, "pointwise", "t", "n");
  REQUIRE_FALSE(r);
  CHECK(r.error().code == Code::rule_broken);
}

TEST_CASE("grouping 100,000 nodes takes time in proportion") {
  std::string head = "g (float[4] i) => (float[4] o) { ";
  auto build = [&](int n) {
    Graph g;
    ValueId v = g.add_input("i", {DType::f32, Shape{4}});
    ValueId other = v;
    for (int k = 0; k < n; ++k) {
      Node node;
      node.op = k % 2 ? "Relu" : "Add";
      node.inputs = k % 2 ? std::vector<ValueId>{v} : std::vector<ValueId>{v, other};
      other = v;
      v = g.add_value("v" + std::to_string(k), {DType::f32, Shape{4}});
      node.outputs = {v};
      g.add_node(std::move(node));
    }
    g.add_output(v);
    return g;
  };
  auto seconds = [&](int n) {
    Graph g = build(n);
    auto t0 = std::chrono::steady_clock::now();
    must(pass(g, tail_rules()));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
  };
  seconds(1000);
  double small = seconds(10000), large = seconds(100000);
  CHECK(large < 30 * small + 0.5);
  INFO(large);
  CHECK(large < 10);
}

namespace {

const char* kConvPool = R"Y(kind: window
phase: anchors
after: [act]
numerics: exact
match: |
  [conv] t = {Conv|group.conv}<...>(x, rest...)
  [pool] y = {MaxPool|AveragePool}<...>(t)
contract: conv_pool
where:
  - {id: square, kernel: "kernel_size(conv) == [1, 1] and attr(conv, 'group') == 1 and out_channels(conv) == 2", why: "{kernel_size(conv)}"}
name: "{conv} + {pool}"
)Y";

RuleSet windows() { return set_of({rule("act", kActivation), rule("pool", kConvPool)}); }
const std::string kPool = "MaxPool<kernel_shape=[2,2]>";

}  // namespace

TEST_CASE("a window joins groups: their nodes become one body") {
  const std::string text = "g (float[1,2,3,3] i) => (float[1,2,2,2] o) " + kW +
                           " { t = Conv(i, w) r = Relu(t) o = " + kPool + "(r) }";
  CHECK(fused(text, windows()) == "group.conv_pool(Conv Relu MaxPool)");
  CHECK(fused("g (float[1,2,3,3] i) => (float[1,2,2,2] o) " + kW +
                  " { t = Conv(i, w) o = " + kPool + "(t) }",
              windows()) == "group.conv_pool(Conv MaxPool)");
  Graph g = graph(text);
  const std::string conv = g.node(maker(g, "t")).name, relu = g.node(maker(g, "r")).name,
                    pool = g.node(maker(g, "o")).name;
  Passed p = must(pass(g, windows()));
  CHECK(g.node(g.order()[0]).name == conv + " + " + relu + " + " + pool);
  CHECK(g.node(g.order()[0]).rule == "pool");
  CHECK(p.journal.steps.at(1).kind == "window");
  CHECK(p.journal.steps.at(1).text == "Fusing " + conv + " + " + relu + " with " + pool);
}

TEST_CASE("what stays inside a window is read inside only") {
  CHECK(fused("g (float[1,2,3,3] i) => (float[1,2,2,2] o, float[1,2,3,3] r) " + kW +
                  " { t = Conv(i, w) r = Relu(t) o = " + kPool + "(r) }",
              windows()) == "group.conv(Conv Relu) MaxPool");
  CHECK(fused("g (float[1,2,3,3] i) => (float[1,2,2,2] o, float[1,2,3,3] u) " + kW +
                  " { t = Conv(i, w) r = Relu(t) u = Tanh(r) o = " + kPool + "(r) }",
              windows()) == "group.conv(Conv Relu) Tanh MaxPool");
}

TEST_CASE("a contract of one anchor has no windows") {
  std::string text = kConvPool;
  text.replace(text.find("contract: conv_pool"), 19, "contract: conv");
  CHECK(fused("g (float[1,2,3,3] i) => (float[1,2,2,2] o) " + kW +
                  " { t = Conv(i, w) o = " + kPool + "(t) }",
              set_of({rule("pool", text)})) == "Conv MaxPool");
}
