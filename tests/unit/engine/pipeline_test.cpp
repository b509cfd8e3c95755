// All shipped rules together: phases and log, plans of several sizes, and time in proportion to
// size.

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>

#include "engine/semantics/infer.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/shipped.h"

using namespace kit;

namespace {

Fused fused(Graph g, bool fold = true) {
  EngineOptions o;
  o.fold = fold;
  return must(fuse(std::move(g), knowledge(), o));
}

}  // namespace

TEST_CASE("phases are logged, nothing is broken, names of outputs stay") {
  Fused f = fused(graph(
      "g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}, "
      "float[2] g = {1.5, 2.0}, "
      "float[2] b = {0.5, 0.0}, float[2] m = {0.1, 0.2}, float[2] v = {1.0, 0.25}> "
      "{ t = Conv(x, W) n = BatchNormalization(t, g, b, m, v) i = Identity(n) y = Relu(i) }"));
  CHECK(ops_of(f.graph) == "group.conv(Conv Relu)");
  CHECK(f.graph.value(f.graph.outputs()[0]).name == "y");
  CHECK(f.graph.node(f.graph.order()[0]).origins.size() == 3);  // the Identity is gone for good
  CHECK(f.notes.empty());
  REQUIRE(f.journal.phases.size() == knowledge().rules.phases.size());
  bool said = false;
  for (const std::string& p : f.journal.phases) said |= p == "After vertical fusions: 1 layer";
  CHECK(said);
}

TEST_CASE("plans of several sizes start from one canonical graph and share its folded weights") {
  const std::string text =
      "g (float[1,2,H,W] x) => (float[1,2,P,Q] y) <float[2,2,1,1] W0 = {1.0, -2.0, 3.0, 0.5}, "
      "float[2] g = {1.5, 2.0}, "
      "float[2] b = {0.5, 0.0}, float[2] m = {0.1, 0.2}, float[2] v = {1.0, 0.25}> "
      "{ t = Conv(x, W0) n = BatchNormalization(t, g, b, m, v) i = Identity(n) y = Relu(i) }";
  Fused canonical = must(canonicalize(graph(text), knowledge(), {}));
  CHECK(ops_of(canonical.graph) == "Conv Relu");  // rewritten for every size
  std::set<const void*> weights;
  for (int64_t size : {4, 7}) {
    EngineOptions o;
    o.shapes["x"] = {1, 2, size, 2 * size};
    Fused f = must(fuse_shape(canonical, knowledge(), o));
    CHECK(ops_of(f.graph) == "group.conv(Conv Relu)");
    CHECK(str(f.graph.value(f.graph.outputs()[0]).type) ==
          "f32[1,2," + std::to_string(size) + "," + std::to_string(2 * size) + "]");
    CHECK(f.journal.phases.size() == knowledge().rules.phases.size());
    const Node& group = f.graph.node(f.graph.order()[0]);
    weights.insert(f.graph.constant(group.inputs[1])->data());
    Fused direct = must(fuse(graph(text), knowledge(), o));
    CHECK(direct.journal.phases == f.journal.phases);
    CHECK(direct.journal.steps.size() == f.journal.steps.size());
    CHECK(to_text(direct.graph) == to_text(f.graph));
  }
  CHECK(weights.size() == 1);
}

TEST_CASE("a plan of another size joins no weights again and asks none back") {
  constexpr int64_t kSize = 128;
  const std::string ones = fmt::format("{}", fmt::join(std::vector<int>(kSize * kSize, 1), ", "));
  std::string weights;
  for (const char* name : {"A", "B"})
    weights += fmt::format("{}float[128,128] {} = {{{}}}", weights.empty() ? "" : ", ", name, ones);
  Graph g = graph("g (float[N,128] x) => (float[P,Q] y) <" + weights +
                  "> { q = MatMul(x, A) k = MatMul(x, B) y = Mul(q, k) }");
  std::vector<Tensor> own;
  for (const char* name : {"A", "B"}) {
    auto [t, bytes] = Tensor::allocate(DType::f32, {kSize, kSize});
    std::fill_n(static_cast<float*>(bytes), kSize * kSize, static_cast<float>(1 + own.size()));
    g.set_constant(g.find_value(name), t);
    own.push_back(t);
  }
  const Fused canonical = must(canonicalize(std::move(g), knowledge(), {}));
  std::vector<Fused> plans;
  std::set<const void*> joined;
  std::atomic<int> asked = 0;
  for (int64_t size : {3, 5, 8}) {
    EngineOptions o;
    o.shapes["x"] = {size, kSize};
    plans.push_back(must(fuse_shape(canonical, knowledge(), o)));
    const Graph& plan = plans.back().graph;
    for (ValueId v : plan.constants())
      if (plan.constant(v)->numel() == 2 * kSize * kSize)
        joined.insert(plan.constant(v)->address());
    if (size != 3) continue;
    for (size_t k = 0; k < own.size(); ++k)
      REQUIRE(own[k].residence()->give_back([&asked, k](void* to) {
        ++asked;
        std::fill_n(static_cast<float*>(to), kSize * kSize, static_cast<float>(1 + k));
      }));
  }
  CHECK(joined.size() == 1);
  CHECK(asked == 0);
}

TEST_CASE("what a plan of one size leaves out, because it failed for every size, changes nothing") {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> models = {
      // Folding the shape makes the Reshape one that does nothing, then Relu meets Relu.
      {"g (float[N,4] x) => (float[N,4] y) { a = Relu(x) s = Shape(a) r = Reshape(a, s) b = "
       "Relu(r) y = Neg(b) }",
       {3, 4}},
      // Only where M is 1 does the Expand do nothing; behind it the two Clips meet.
      {"g (float[1,M] x) => (float[P,Q] y) <int64[2] s = {1, 1}, float lo = {0.0}, float hi = "
       "{6.0}, float top = {4.0}> "
       "{ a = Clip(x, lo, hi) e = Expand(a, s) b = Clip(e, lo, top) y = Neg(b) }",
       {1, 1}},
      {"g (float[1,M] x) => (float[P,Q] y) <int64[2] s = {1, 1}, float lo = {0.0}, float hi = "
       "{6.0}, float top = {4.0}> "
       "{ a = Clip(x, lo, hi) e = Expand(a, s) b = Clip(e, lo, top) y = Neg(b) }",
       {1, 5}},
      // Nothing changes but sizes.
      {"g (float[1,2,H,W] x) => (float[1,2,P,Q] y) <float[2,2,1,1] w = {1.0, -2.0, 3.0, 0.5}, "
       "float three = {3.0}, float six = {6.0}, float zero = {0.0}> "
       "{ t = Conv(x, w) a = Add(t, three) c = Clip(a, zero, six) m = Mul(t, c) d = Div(m, six) y "
       "= Transpose<perm=[0,1,3,2]>(d) }",
       {1, 2, 5, 6}},
  };
  for (const auto& [text, dims] : models) {
    Fused canonical = must(canonicalize(graph(text), knowledge(), {}));
    REQUIRE(canonical.known_failures);
    EngineOptions o;
    o.shapes["x"] = dims;
    Fused with = must(fuse_shape(canonical, knowledge(), o));
    canonical.known_failures.reset();
    Fused without = must(fuse_shape(canonical, knowledge(), o)),
          direct = must(fuse(graph(text), knowledge(), o));
    INFO(text << "\n" << to_text(with.graph));
    CHECK(to_text(with.graph) == to_text(without.graph));
    CHECK(to_text(with.graph) == to_text(direct.graph));
    CHECK(with.journal.phases == without.journal.phases);
    REQUIRE(with.journal.steps.size() == without.journal.steps.size());
    for (size_t k = 0; k < with.journal.steps.size(); ++k)
      CHECK(with.journal.steps[k].text == without.journal.steps[k].text);
  }
}

TEST_CASE("a size that contradicts the graph is an error of its plan") {
  Fused canonical = must(canonicalize(
      graph("g (float[N] x) => (float[4] y) <float[4] c = {1.0, 2.0, 3.0, 4.0}> { y = Add(x, c) }"),
      knowledge(), {}));
  EngineOptions o;
  o.shapes["x"] = {3};
  auto f = fuse_shape(canonical, knowledge(), o);
  REQUIRE_FALSE(f.has_value());
  CHECK(f.error().code == Code::bad_shape);
  o.shapes["x"] = {4};
  CHECK(fuse_shape(canonical, knowledge(), o).has_value());
}

TEST_CASE("a folded layer of another domain that makes an output leaves an Identity of ONNX") {
  Fused f = fused(
      graph("g () => (float[2] y) <float[2] c = {1.0, 2.0}> { y = com.microsoft.QuickGelu(c) }"));
  CHECK(ops_of(f.graph) == "Identity");
  CHECK(f.graph.node(f.graph.order()[0]).domain.empty());
  CHECK(f.graph.value(f.graph.outputs()[0]).name == "y");
}

TEST_CASE("with every rule off and no folding, the graph stays") {
  EngineOptions o;
  o.rule_dirs = {rules_dir()};
  o.target = "cpu-avx2";
  o.selection.disable = {"*"};
  o.fold = false;
  auto k = must(load_knowledge(o));
  Fused f = must(fuse(graph("g (float[2] x) => (float[2] y) <float a = {1.0}> { b = Add(a, a) c = "
                            "Relu(x) d = Relu(c) y = Mul(d, b) }"),
                      *k, o));
  CHECK(ops_of(f.graph) == "Add Relu Relu Mul");
  CHECK(f.journal.steps.empty());
}

TEST_CASE("all rules on 100,000 nodes") {
  (void)knowledge();
  auto build = [](int n, int kind) {
    Graph g;
    Type t{DType::f32, Shape{4}};
    ValueId x = g.add_input("x", t), v = x, w = x;
    auto add = [&](const char* op, std::vector<ValueId> in) {
      Node node;
      node.op = op;
      node.inputs = std::move(in);
      ValueId out = g.add_value("v" + std::to_string(g.value_slots()), t);
      node.outputs = {out};
      g.add_node(std::move(node));
      return out;
    };
    std::vector<ValueId> read;
    while (static_cast<int>(g.live_nodes()) < n) {
      if (kind == 0) v = add("Relu", {add("Neg", {v})});
      if (kind == 1) {  // a ladder
        ValueId a = add("Add", {v, w}), b = add("Mul", {v, w});
        v = a, w = b;
      }
      if (kind == 2) v = add("Max", {v, add("Neg", {x})});  // one value with very many readers
      if (kind == 3) v = add("Add", {add("Sin", {v}), add("Cos", {v})});
      if (kind == 4) g.add_output(v = add("Exp", {add("Tanh", {x})}));  // very many outputs
      if (kind == 5) read.push_back(add("Tanh", {x}));
    }
    if (kind == 5) v = add("Sum", read);  // one node with very many operands
    if (kind != 4) g.add_output(v);
    if (kind == 1) g.add_output(w);
    return g;
  };
  for (int kind = 0; kind < 6; ++kind) {
    auto t0 = std::chrono::steady_clock::now();
    Fused f = fused(build(100000, kind));
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
    INFO("kind " << kind << ": " << seconds << " s, " << f.graph.live_nodes() << " layers");
    CHECK(f.graph.live_nodes() < (kind < 4 ? 12000 : kind == 4 ? 50001 : 100002));
    CHECK(seconds < 15);
    if (std::getenv("FERRULE_TEST_TIMES"))
      MESSAGE(kind << ": " << seconds << " s, " << f.graph.live_nodes());
  }
}

TEST_CASE("a product without columns beside one that has some") {
  const Fused f = fused(graph(R"(g (float[4,4] x, float[0,4] b) => (float[4,4] y, float[4,4] z)
      <float[4,4] W = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[4,0] A = {}> {
    m = MatMul(x, W)
    n = MatMul(x, A)
    y = Exp(m)
    z = MatMul(n, b)
  })"));
  CHECK(verify(f.graph));  // that it comes here: sizes of 0 were divided by
}

TEST_CASE("a size that a folded operand decides is known to what follows") {
  EngineOptions o;
  o.shapes["x"] = {25};
  const Fused f =
      must(fuse(graph("g (float[N] x) => (float[M] y) <float[1] eight = {8.0}> { s = Shape(x) "
                      "c = Cast<to=1>(s) d = Div(eight, c) r = Resize<mode=\"linear\">(x, , d) "
                      "y = Exp(r) }"),
                knowledge(), o));
  CHECK(str(f.graph.value(f.graph.outputs()[0]).type) == "f32[8]");
}

TEST_CASE("weights that are stored with scales become floats once for the plans of all sizes") {
  Graph g = graph(
      "g (float[M,4] x) => (float[M,3] y) <uint8[4,3] q = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, "
      "float[2,3] s = {0.5, -0.25, 1.0, 2.0, 0.125, 0.75}> { w = DequantizeLinear<axis=0, "
      "block_size=2>(q, s) y = MatMul(x, w) }");
  constexpr int64_t kColumns = 1 << 15;  // small ones may be made again
  const auto wide = [&](const char* name, DType type, int64_t rows) {
    g.set_constant(g.find_value(name), Tensor::allocate(type, {rows, kColumns}).first);
    g.set_type(g.find_value(name), {type, Shape{rows, kColumns}});
  };
  wide("q", DType::u8, 4), wide("s", DType::f32, 2);
  for (const char* name : {"w", "y"}) g.set_type(g.find_value(name), {DType::f32, std::nullopt});
  REQUIRE(infer_all(ops(), g));
  const Fused canonical = must(canonicalize(std::move(g), knowledge(), {}));
  const auto planned = [&](int64_t rows) {
    EngineOptions o;
    o.shapes["x"] = {rows, 4};
    return must(fuse_shape(canonical, knowledge(), o));
  };
  const auto weights = [](const Fused& f) {
    const Node& n = f.graph.node(f.graph.order()[0]);
    const Tensor* t = f.graph.constant(n.inputs[1]);
    return t && t->dtype() == DType::f32 ? t->address() : nullptr;
  };
  const Fused one = planned(40), other = planned(41);
  CHECK(weights(one) != nullptr);
  CHECK(weights(one) == weights(other));
  CHECK(ops_of(planned(1).graph).starts_with("group.block_product"));  // reads them as they are
}
