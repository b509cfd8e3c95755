// The matcher: structure, operand orders, options, numbers, shapes, and the guarantees D1 to D8.
#include "engine/match/index.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {
std::shared_ptr<const Rule> pattern(const std::string& match, const std::string& rest = "") {
  std::string text = "kind: rewrite\nphase: fold\nnumerics: exact\nmatch: |\n";
  for (size_t i = 0; i < match.size();) {
    size_t end = std::min(match.find('\n', i), match.size());
    text += "  " + match.substr(i, end - i) + "\n";
    i = end + 1;
  }
  std::string rewrite = rest.find("rewrite:") == std::string::npos ? "rewrite: |\n  y = x\n" : "";
  return rule("t", text + rest + rewrite);
}
}  // namespace

TEST_CASE("a chain matches and binds names, labels and constants") {
  auto r = pattern("[c] t = {Conv|ConvTranspose}<...>(x, W!, B?)\n[a] y = Relu(t)");
  Graph g = graph(
      "g (float[1,1,4,4] i) => (float[1,1,4,4] o) <float[1,1,1,1] w = {2.0}> { c = Conv(i, w) o = "
      "Relu(c) }");
  Attempt a = attempt(*r, g, "o");
  REQUIRE(std::holds_alternative<Match>(a));
  const Match& m = std::get<Match>(a);
  CHECK(m.nodes.size() == 2);
  CHECK(m.bindings.values.at("x") == g.find_value("i"));
  CHECK(m.bindings.values.at("W") == g.find_value("w"));
  CHECK_FALSE(m.bindings.values.at("B"));
  CHECK(m.bindings.nodes.at("c") == maker(g, "c"));
  CHECK(declined(*r, g, "c") == "structure");
}

TEST_CASE("structure failures say what stood where") {
  auto r = pattern("t = Conv<...>(x, W!)\ny = Relu(t)");
  Graph g = graph("g (float[2,2] i) => (float[2,2] o) { s = Sigmoid(i) o = Relu(s) }");
  Rejection x = rejection(*r, g, "o");
  CHECK(x.stage == Rejection::Stage::structure);
  CHECK(x.why.find("(Sigmoid) where the rule needs Conv") != std::string::npos);
  CHECK(x.matched_nodes == 1);
}

TEST_CASE("commutative operands match in any order, others do not") {
  auto add = pattern("y = Add(Sigmoid(x), c!)");
  auto sub = pattern("y = Sub(Sigmoid(x), c!)");
  const char* text =
      "g (float[2,2] i) => (float[2,2] a, float[2,2] b, float[2,2] d) <float k = {2.0}> "
      "{ s = Sigmoid(i) a = Add(k, s) u = Sigmoid(i) b = Sub(k, u) v = Sigmoid(i) d = Sub(v, k) }";
  Graph g = graph(text);
  CHECK(declined(*add, g, "a") == "");
  CHECK(declined(*sub, g, "b") == "structure");
  CHECK(declined(*sub, g, "d") == "");
}

TEST_CASE("variadic commutative operands: one is found anywhere, the rest is a list") {
  auto r = pattern("y = Sum(Relu(x), rest...)");
  Graph g = graph(
      "g (float[2] i, float[2] j, float[2] k) => (float[2] o) { r = Relu(k) o = Sum(i, j, r) }");
  Attempt a = attempt(*r, g, "o");
  REQUIRE(std::holds_alternative<Match>(a));
  CHECK(std::get<Match>(a).bindings.value_lists.at("rest") ==
        std::vector<ValueId>{g.find_value("i"), g.find_value("j")});
}

TEST_CASE("a name used twice is the same value or an identical constant") {
  auto r = pattern("y = Mul(x, Sigmoid(x))");
  Graph g = graph(
      "g (float[2] i, float[2] j) => (float[2] a, float[2] b) "
      "{ s = Sigmoid(i) a = Mul(s, i) t = Sigmoid(i) b = Mul(j, t) }");
  CHECK(declined(*r, g, "a") == "");
  CHECK(declined(*r, g, "b") == "structure");
}

TEST_CASE("numbers are compared in their own type and never raise the rank") {
  auto exact = pattern("y = Mul(x, 1)");
  auto near = pattern("y = Mul(x, ~0.70710678)");
  Graph g = graph(
      "g (float[3] i) => (float[3] a, float[1,3] b, float[3] c, float[3] d) "
      "<float one = {1.0}, float[1,1] high = {1.0}, float[1] root = {0.7071}, float off = "
      "{0.6366}> "
      "{ a = Mul(one, i) b = Mul(i, high) c = Mul(i, root) d = Mul(i, off) }");
  CHECK(declined(*exact, g, "a") == "");
  CHECK(declined(*exact, g, "b") == "structure");
  CHECK(rejection(*exact, g, "b").why.find("rank") != std::string::npos);
  CHECK(declined(*near, g, "c") == "");
  CHECK(declined(*near, g, "d") == "structure");
  Graph ints = graph("g (int32[3] i) => (int32[3] a) <int32 one = {1}> { a = Mul(one, i) }");
  CHECK(declined(*exact, ints, "a") == "");
  CHECK(declined(*near, ints, "a") == "structure");
}

TEST_CASE("a double that is one only as a float is not one") {
  auto exact = pattern("y = Mul(x, 1)");
  Graph g = graph("g (double[3] i) => (double[3] a) <double k = {1.000000001}> { a = Mul(k, i) }");
  CHECK(declined(*exact, g, "a") == "structure");
}

TEST_CASE("optional nodes pass their first operand, alternatives set tags") {
  auto r = pattern("[r] t = Relu?(x)\ny = (#tanh Tanh(t) | #sig Sigmoid(t))");
  Graph g = graph(
      "g (float[2] i) => (float[2] a, float[2] b) { r = Relu(i) a = Tanh(r) b = Sigmoid(i) }");
  Attempt a = attempt(*r, g, "a"), b = attempt(*r, g, "b");
  REQUIRE(std::holds_alternative<Match>(a));
  REQUIRE(std::holds_alternative<Match>(b));
  CHECK(std::get<Match>(a).bindings.tags.contains("tanh"));
  CHECK(std::get<Match>(a).bindings.nodes.at("r") == maker(g, "r"));
  CHECK(std::get<Match>(b).bindings.tags.contains("sig"));
  CHECK_FALSE(std::get<Match>(b).bindings.nodes.at("r"));
}

TEST_CASE("shape patterns bind symbols and demand provable equality") {
  auto r = pattern("y = MatMul(x[..., M, K], W![K, K])");
  Graph g = graph(
      "g (float[N,5,4] i) => (float[N,5,4] a, float[N,5,3] b) "
      "<float[4,4] w = {1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1}, float[4,3] v = "
      "{1,0,0,0,1,0,0,0,1,0,0,0}> "
      "{ a = MatMul(i, w) b = MatMul(i, v) }");
  Attempt a = attempt(*r, g, "a");
  REQUIRE(std::holds_alternative<Match>(a));
  CHECK(std::get<Match>(a).bindings.dims.at("M") == Dim(5));
  CHECK(declined(*r, g, "b") == "structure");
}

TEST_CASE("D1: an inner value with another reader") {
  auto r = pattern("y = Relu(Sigmoid(x))");
  Graph g = graph(
      "g (float[2] i) => (float[2] o, float[2] p) { s = Sigmoid(i) o = Relu(s) p = Tanh(s) }");
  Rejection x = rejection(*r, g, "o");
  CHECK(x.id == "D1");
  CHECK(x.stage == Rejection::Stage::guarantee);
  CHECK(x.why.find("\"s\"") != std::string::npos);
}

TEST_CASE("D1 does not count what is declared shared") {
  auto r = pattern("t = Sigmoid(x)\ny = Relu(t)", "shared: [t]\nrewrite: |\n  y = t\n");
  Graph g = graph(
      "g (float[2] i) => (float[2] o, float[2] p) { s = Sigmoid(i) o = Relu(s) p = Tanh(s) }");
  CHECK(declined(*r, g, "o") == "");
}

TEST_CASE("D2: an inner value that is a graph output, or used by a nested graph") {
  auto r = pattern("y = Relu(Sigmoid(x))");
  Graph g = graph("g (float[2] i) => (float[2] o, float[2] s) { s = Sigmoid(i) o = Relu(s) }");
  CHECK(declined(*r, g, "o") == "D2");
  Graph n = graph(
      "g (float[2] i, bool c) => (float[2] o, float[2] p) { s = Sigmoid(i) o = Relu(s) "
      "p = If (c) <then_branch = t () => (float[2] q) { q = Neg(s) }, else_branch = e () => "
      "(float[2] q) { q = Identity(i) }> }");
  CHECK(declined(*r, n, "o") == "D2");
}

TEST_CASE("D4: results that the pattern does not name") {
  auto r = pattern("y = Relu(MaxPool<...>(x))");
  Graph used = graph(
      "g (float[1,1,4,4] i) => (float[1,1,3,3] o, int64[1,1,3,3] k) "
      "{ m, k = MaxPool<kernel_shape=[2,2]>(i) o = Relu(m) }");
  CHECK(declined(*r, used, "o") == "D4");
  Graph free = graph(
      "g (float[1,1,4,4] i) => (float[1,1,3,3] o) { m = MaxPool<kernel_shape=[2,2]>(i) o = Relu(m) "
      "}");
  CHECK(declined(*r, free, "o") == "");
}

TEST_CASE("D5: operands that the pattern does not name") {
  auto r = pattern("y = Conv<...>(x, W!)");
  Graph g = graph(
      "g (float[1,1,4,4] i) => (float[1,1,4,4] o) <float[1,1,1,1] w = {2.0}, float[1] b = {1.0}> { "
      "o = Conv(i, w, b) }");
  CHECK(declined(*r, g, "o") == "D5");
}

TEST_CASE("D6: attributes that the pattern does not name have their default") {
  auto r = pattern("y = LeakyRelu(x)");
  Graph g = graph(
      "g (float[2] i) => (float[2] a, float[2] b) { a = LeakyRelu(i) b = LeakyRelu<alpha=0.2>(i) "
      "}");
  CHECK(declined(*r, g, "a") == "");
  CHECK(declined(*r, g, "b") == "D6");
  auto open = pattern("y = LeakyRelu<...>(x)");
  CHECK(declined(*open, g, "b") == "");
  auto literal = pattern("y = LeakyRelu<alpha=0.2>(x)");
  CHECK(declined(*literal, g, "b") == "");
  CHECK(declined(*literal, g, "a") == "structure");
  auto bind = pattern("y = LeakyRelu<alpha=$a>(LeakyRelu<alpha=$a>(x))");
  Graph two = graph(
      "g (float[2] i) => (float[2] a, float[2] b) { s = LeakyRelu<alpha=0.2>(i) a = "
      "LeakyRelu<alpha=0.2>(s) "
      "t = LeakyRelu<alpha=0.3>(i) b = LeakyRelu<alpha=0.2>(t) }");
  CHECK(declined(*bind, two, "a") == "");
  CHECK(declined(*bind, two, "b") == "structure");
}

TEST_CASE("D6: strides and pads that import filled in are defaults") {
  auto r = pattern("y = AveragePool<kernel_shape=$k, strides=$s>(x)");
  Graph g = graph(
      "g (float[1,1,4,4] i) => (float[1,1,4,4] a, float[1,1,4,4] b, float[1,1,4,4] c) { "
      "a = AveragePool<kernel_shape=[1,1], strides=[1,1]>(i) "
      "b = AveragePool<kernel_shape=[1,1], dilations=[1,1], pads=[0,0,0,0]>(i) "
      "c = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(i) }");
  CHECK(declined(*r, g, "a") == "");
  CHECK(declined(*r, g, "b") == "");
  CHECK(declined(*r, g, "c") == "D6");
}

TEST_CASE("D8: random operators never match") {
  auto r = pattern("y = Relu(RandomNormalLike<...>(x))");
  Graph g = graph("g (float[2] i) => (float[2] o) { n = RandomNormalLike(i) o = Relu(n) }");
  CHECK(declined(*r, g, "o") == "D8");
}

TEST_CASE("a name from outside never stands for what the pattern computes") {
  auto r = pattern("y = Add(Relu(x), z)");
  Graph g = graph("g (float[2] i) => (float[2] o) { r = Relu(i) o = Add(r, r) }");
  CHECK(declined(*r, g, "o") == "structure");
}

TEST_CASE("conditions: types, false, unknown, profit that is ignored") {
  auto typed = pattern("y = Relu(x)", "types: [f64]\n");
  auto where = pattern(
      "y = Relu(x)",
      "where:\n  - {id: big, profit: \"numel(x) > 100\", why: \"only {numel(x)} elements\"}\n");
  Graph g = graph("g (float[2] i) => (float[2] o) { o = Relu(i) }");
  CHECK(declined(*typed, g, "o") == "types");
  Rejection x = rejection(*where, g, "o");
  CHECK(x.id == "big");
  CHECK(x.why.find("only 2 elements") != std::string::npos);
  CHECK(x.truth == Truth::no);
  Graph s = graph("g (float[N] i) => (float[N] o) { o = Relu(i) }");
  CHECK(rejection(*where, s, "o").truth == Truth::unknown);
  std::vector<std::string> globs{"t.*"};
  MatchContext c = context(g);
  c.ignore_profit = globs;
  CHECK(std::holds_alternative<Match>(match_rule(*where, maker(g, "o"), c)));
}

TEST_CASE("a condition that fails sends the matcher on to the other order") {
  auto r = pattern(
      "y = Add(a, b)",
      "where:\n  - {id: first, sound: \"const(a)\", why: \"no\"}\nrewrite: |\n  y = Add(a, b)\n");
  Graph g = graph("g (float[2] i) => (float[2] o) <float k = {1.0}> { o = Add(i, k) }");
  CHECK(declined(*r, g, "o") == "");
}

TEST_CASE("convexity") {
  Graph g =
      graph("g (float[2] i) => (float[2] o) { a = Relu(i) b = Tanh(a) c = Add(a, b) o = Neg(c) }");
  std::vector<NodeId> around{maker(g, "a"), maker(g, "c")},
      whole{maker(g, "a"), maker(g, "b"), maker(g, "c")};
  CHECK_FALSE(convex(g, around));
  CHECK(convex(g, whole));
}

TEST_CASE("convexity of random sets, against all paths") {
  constexpr uint32_t kNodes = 24;
  uint32_t seed = 1;
  auto random = [&](uint32_t n) { return (seed = seed * 1664525u + 1013904223u, (seed >> 8) % n); };
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string body = "v0 = Relu(i) ", all = "v0";
    bool reach[kNodes][kNodes] = {};
    for (uint32_t k = 1; k < kNodes; ++k) {
      const uint32_t a = round % 2 ? random(k) : k - 1 - random(std::min(k, 3u)), b = random(k);
      body += fmt::format("v{} = Add(v{}, v{}) ", k, a, b);
      all += fmt::format(", v{}", k);
      reach[a][k] = reach[b][k] = true;
      for (uint32_t j = 0; j < k; ++j) reach[j][k] |= reach[j][a] || reach[j][b];
    }
    Graph g = graph("g (float[2] i) => (float[2] o) { " + body + "o = Sum(" + all + ") }");
    std::vector<NodeId> set;
    bool in[kNodes] = {};
    for (uint32_t k = 0; k < kNodes; ++k)
      if (random(round % 3 ? 10 : 3) == 0)
        in[k] = true, set.push_back(maker(g, fmt::format("v{}", k)));
    bool comes_back = false;
    for (uint32_t from = 0; from < kNodes; ++from)
      for (uint32_t over = from; over < kNodes; ++over)
        for (uint32_t to = over; to < kNodes; ++to)
          comes_back |= in[from] && !in[over] && in[to] && reach[from][over] && reach[over][to];
    CHECK(convex(g, set) == !comes_back);
    refused += comes_back;
  }
  CHECK(refused > 50);
  CHECK(refused < 280);
}

TEST_CASE("a matcher that would try too much gives up and says so") {
  std::string match = "y = Sum(", text = "g (";
  for (int i = 0; i < 14; ++i) {
    match += (i ? ", " : "") + std::string("x") + std::to_string(i) + "!";
    text += (i ? ", " : "") + std::string("float[2] i") + std::to_string(i);
  }
  auto r = pattern(
      "y = Sum(Relu(a), Relu(b), Relu(c), Relu(d), Relu(e), Relu(f), Relu(h), Relu(k), Tanh(l))",
      "rewrite: |\n  y = a\n");
  std::string body = "g (float[2] i) => (float[2] o) { ", names;
  for (int i = 0; i < 9; ++i) {
    body += "r" + std::to_string(i) + " = Relu(i) ";
    names += (i ? ", r" : "r") + std::to_string(i);
  }
  Graph g = graph(body + "o = Sum(" + names + ") }");
  Rejection x = rejection(*r, g, "o");
  CHECK(x.id == "structure");
  CHECK(x.truth == Truth::unknown);
  CHECK(x.why.find("gave up") != std::string::npos);
}

TEST_CASE(
    "the index leaves out what must fail: makers of operands, constants; never what may match") {
  auto gate = pattern("y = Mul(x, Sigmoid(x))");
  auto scale = pattern("y = Mul(x, k!)");
  auto either = pattern("y = (#a Add(Relu(x), c) | #b Add(x, Abs(c)) | #c Sub(x, c))");
  auto maybe = pattern("y = Add(Relu?(x), c)");
  auto line = pattern("t = {Exp|Log}(x)\ny = Mul(t, c)");
  auto deep = pattern("t = Sub(x, c)\nu = Exp(t)\ny = Mul(u, d)");
  auto other = pattern("t = Neg(x)\nu = Exp(t)\ny = Mul(u, d)");
  const Rule* all[] = {gate.get(), scale.get(), either.get(), maybe.get(),
                       line.get(), deep.get(),  other.get()};
  RuleIndex index(all, ops());
  Graph g = graph(
      "g (float[2] i, float[2] j) => (float[2] o) <float k = {2.0}> { s = Sigmoid(i) a = Mul(s, i) "
      "b = Mul(a, k) r = Relu(b) "
      "c = Add(j, r) d = Add(c, j) e = Sub(d, i) f = Exp(e) h = Mul(j, f) o = Neg(h) }");
  auto ranks = [&](const char* value) {
    std::string out;
    for (uint32_t k : index.ranks_at(g.node(maker(g, value))))
      if (index.promising(k, g, maker(g, value))) out += fmt::format("{} ", k);
    return out;
  };
  CHECK(ranks("a") == "0 ");
  CHECK(ranks("b") == "1 ");
  CHECK(ranks("c") == "2 3 ");
  CHECK(ranks("d") == "3 ");
  CHECK(ranks("e") == "2 ");
  CHECK(ranks("h") == "4 5 ");  // its Exp is made of a Sub, not of a Neg
  for (uint32_t k = 0; k < std::size(all); ++k)
    for (NodeId n : g.order())
      if (auto a = match_any(*all[k], n, context(g)); std::holds_alternative<Match>(a))
        CHECK(index.promising(k, g, n));
}
