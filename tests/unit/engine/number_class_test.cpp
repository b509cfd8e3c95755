// D9: constants that a replacement computes stay the kind of number that they are computed as.
#include "engine/rule/number_class.h"

#include "engine/rewrite/replacement.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

std::shared_ptr<const Rule> scales(const std::string& numerics = "reassociating") {
  return rule("scale",
              rewrite_text(numerics, "y = Mul(Mul(x, a!), b!)", "k = Mul(a, b)\ny = Mul(x, k)"));
}

/// A declaration of a constant, to be set().
std::string constant(std::string_view type, int64_t count, const std::string& name,
                     std::string_view dims = "") {
  const std::vector<std::string_view> zeros(static_cast<size_t>(count),
                                            type.ends_with("16") ? "0" : "0.0");
  return fmt::format("{}{} {} = {{{}}}", type, dims, name, fmt::join(zeros, ", "));
}
void set(Graph& g, const char* name, const std::vector<double>& values) {
  const ValueId v = g.find_value(name);
  REQUIRE(g.constant(v));
  const Tensor old = *g.constant(v);
  g.set_constant(v, converted(Tensor::of<double>(DType::f64, old.dims(), values), old.dtype()));
}

/// "D9 " and the reason where D9 declined a rewrite; "" where it did not.
std::string declined(const Passed& p) {
  for (const Rejection& r : p.misses)
    if (r.id == "D9") return "D9 " + r.why;
  return "";
}

/// What declines the rule that multiplies the factors a and b of x, and why; "" if it fires.
std::string twice(const char* onnx_type, double a, double b,
                  const std::string& numerics = "reassociating") {
  Graph g =
      graph(fmt::format("g ({0}[2] i) => ({0}[2] o) <{1}, {2}> {{ t = Mul(i, a) o = Mul(t, b) }}",
                        onnx_type, constant(onnx_type, 1, "a"), constant(onnx_type, 1, "b")));
  set(g, "a", {a});
  set(g, "b", {b});
  Passed p = must(pass(g, set_of({scales(numerics)})));
  const std::string why = declined(p);
  CHECK(ops_of(g) == (why.empty() ? "Mul" : "Mul Mul"));
  return why;
}

/// A graph of a convolution whose weights are these, and a factor a channel behind it.
Graph weighted(const char* type, std::vector<int64_t> dims, const std::vector<double>& weights,
               const std::vector<double>& factors) {
  const int64_t n = dims[0], c = dims[1];
  Graph g = graph(fmt::format(
      "g ({0}[1,{2},3,3] i) => ({0}[1,{1},3,3] o) <{3}, {4}> {{ t = Conv(i, w) o = Mul(t, s) }}",
      type, n, c, constant(type, n * c, "w", fmt::format("[{},{},1,1]", n, c)),
      constant(type, n, "s", fmt::format("[{},1,1]", n))));
  set(g, "w", weights);
  set(g, "s", factors);
  return g;
}

std::string folded(Graph g) {
  auto r =
      rule("scale", rewrite_text("reassociating", "[conv] t = Conv<...>(x, W!)\ny = Mul(t, s!)",
                                 "y = conv<...conv>(x, Mul(W, Reshape(s, {[-1, 1, 1, 1]})))"));
  Passed p = must(pass(g, set_of({r})));
  const std::string why = declined(p);
  return why.empty() ? ops_of(g) : why;
}

}  // namespace

TEST_CASE(
    "D9: a product of constants that its type rounds to 0, a subnormal number or infinity is not "
    "made") {
  CHECK(twice("float16", 1e-4, 1e-4).starts_with("D9 the rule would compute \"k\" as 1.0"));
  CHECK(twice("float16", 1e-4, 1e-4).ends_with(", which is 0 in f16"));
  CHECK(twice("float16", 2e-3, 2e-3).ends_with(", which is a subnormal number in f16"));
  CHECK(twice("float16", 300, 300).ends_with("which is infinite in f16"));
  CHECK(twice("bfloat16", 1e-25, 1e-25).ends_with("which is 0 in bf16"));
  CHECK(twice("bfloat16", 1e-19, 1e-20).ends_with("which is a subnormal number in bf16"));
  CHECK(twice("bfloat16", 1e25, -1e25).ends_with("which is infinite in bf16"));
  CHECK(twice("float", 1e-30, 1e-30).ends_with("which is 0 in f32"));
  CHECK(twice("float", 1e-20, -1e-20).ends_with("which is a subnormal number in f32"));
  CHECK(twice("float", 1e30, 1e30).ends_with("which is infinite in f32"));
  CHECK(twice("double", 1e-200, 1e-200) == "D9 computing \"k\" underflows in f64");
  CHECK(twice("double", 1e-160, 1e-155).starts_with("D9 "));
  CHECK(twice("double", 1e200, 1e200) == "D9 the rule would compute \"k\" as inf");
}

TEST_CASE("D9: what stays normal, is 0, or was subnormal before is made") {
  for (const char* type : {"float16", "bfloat16", "float", "double"}) {
    INFO(type);
    CHECK(twice(type, 0.03, 0.03).empty());
    CHECK(twice(type, 0, 1e-3).empty());
    CHECK(twice(type, 1e-3, -0.0).empty());
  }
  // No processor flushes those of f16, which are computed in f32.
  CHECK(twice("float16", 6e-6, 0.3).starts_with("D9"));
  CHECK(twice("float", 1e-40, 0.3).empty());
  CHECK(twice("bfloat16", 1e-40, 1e-20).empty());
  CHECK(twice("double", 1e-310, 0.3).empty());
}

TEST_CASE("D9: an attribute of a layer of f64 is rounded to f32 by nobody") {
  auto slope = [](const char* type, double value) {
    Graph g = graph(fmt::format("g ({0}[2] i) => ({0}[2] o) <{1}> {{ o = PRelu(i, a) }}", type,
                                constant(type, 1, "a")));
    set(g, "a", {value});
    const Passed p =
        must(pass(g, set_of({rule("leaky", rewrite_text("exact", "y = PRelu(x, a!)",
                                                        "y = LeakyRelu<alpha={value(a)}>(x)"))})));
    return declined(p).empty() ? ops_of(g) : declined(p);
  };
  CHECK(slope("double", 0.25) == "LeakyRelu");
  CHECK(slope("double", 0.1) == "D9 attribute alpha would be rounded to f32 in a layer of f64");
  CHECK(slope("float", 0.1) == "LeakyRelu");
}

TEST_CASE(
    "D9: a rule that takes a shorter type loses small numbers on purpose, but makes none "
    "infinite") {
  CHECK(twice("float16", 1e-4, 1e-4, "reduced").empty());
  CHECK(twice("float16", 300, 300, "reduced").starts_with("D9"));
}

TEST_CASE("D9: weights are summed up: one that is lost beside larger ones is no row that is") {
  CHECK(folded(weighted("float16", {2, 2}, {1, 1e-4, 1e-4, 1}, {1e-3, 1e-3})) == "Conv");
  CHECK(folded(weighted("float16", {2, 2}, {1, 1, 1e-4, 1e-4}, {1, 1e-4}))
            .ends_with("[2] as 1.00033e-08, which is 0 in f16"));  // a row
  CHECK(folded(weighted("float16", {2, 2}, {1, 1e-4, 1, 1e-4}, {1e-4, 1e-4}))
            .starts_with("D9 "));  // a column
  CHECK(folded(weighted("float16", {1, 2}, {1, 1e-4}, {1e-4}))
            .starts_with("D9 "));  // alone with its input
}

TEST_CASE("D9: what is computed on the way may be anything that f64 holds") {
  auto r = rule("scale", rewrite_text("reassociating", "y = Div(Mul(x, a!), b!)",
                                      "big = Mul(a, a)\ny = Mul(x, Div(Div(big, a), b))"));
  Graph g = graph("g (float16[2] i) => (float16[2] o) <" + constant("float16", 1, "a") + ", " +
                  constant("float16", 1, "b") + "> { t = Mul(i, a) o = Div(t, b) }");
  for (const char* name : {"a", "b"}) set(g, name, {400});
  must(pass(g, set_of({r})));
  REQUIRE(ops_of(g) == "Mul");
  CHECK(g.constant(g.node(g.order()[0]).inputs[1])->at_f64(0) == 1);
}

TEST_CASE(
    "D9: a rule's own numbers are rounded where they stay, and not before something is computed "
    "with them") {
  auto inside =
      rule("inside", rewrite_text("reassociating", "y = Mul(x, v!)",
                                  "k = Sqrt(Add(v, 1e-8))\ny = Mul(k, Neg(x))", "once: true\n"));
  Graph g = graph("g (float16[2] i) => (float16[2] o) <float16 v = {0}> { o = Mul(i, v) }");
  must(pass(g, set_of({inside})));
  REQUIRE(ops_of(g) == "Neg Mul");
  CHECK(g.constant(g.node(g.order()[1]).inputs[0])->at_f64(0) ==
        Tensor::scalar(DType::f16, 1e-4).at_f64(0));

  auto left = rule(
      "left", rewrite_text("reassociating", "y = Abs(x)", "y = Add(Neg(x), 1e-8)", "once: true\n"));
  Graph h = graph("g (float16[2] i) => (float16[2] o) { o = Abs(i) }");
  Passed p = must(pass(h, set_of({left})));
  CHECK(ops_of(h) == "Abs");
  CHECK(declined(p).starts_with("D9 "));
}

TEST_CASE("D9: an attribute that a replacement computes is f32") {
  auto r = rule("leaky", rewrite_text("exact", "y = Mul(x, a!)",
                                      "y = LeakyRelu<alpha={value(a) * value(a)}>(x)"));
  for (double a : {1e-30, 1e-20, 1e30}) {
    Graph g = graph("g (float[2] i) => (float[2] o) <float a = {0.0}> { o = Mul(i, a) }");
    set(g, "a", {a});
    Passed p = must(pass(g, set_of({r})));
    CHECK(ops_of(g) == "Mul");
    CHECK(declined(p).starts_with("D9 attribute alpha would be "));
  }
}

TEST_CASE("D9: large weights, which are rounded as they are computed, are looked at, too") {
  auto r = rule("scale", rewrite_text("reassociating", "y = Mul(Add(x, W!), k!)",
                                      "W2 = Mul(W, k)\ny = Add(Mul(x, k), W2)", "once: true\n"));
  constexpr int64_t kMany = 70000;
  for (const double w : {1.0, 1e-6, 1e-9, 0.0}) {
    Graph g = graph(fmt::format(
        "g (float[{0}] i) => (float[{0}] o) <{1}, {2}> {{ a = Add(i, w) o = Mul(a, k) }}", kMany,
        constant("float", kMany, "w", fmt::format("[{}]", kMany)), constant("float", 1, "k")));
    std::vector<double> weights(kMany, 1.0);
    weights[kMany - 1] = w;
    set(g, "w", weights);
    set(g, "k", {1e-36});
    Passed p = must(pass(g, set_of({r})));
    INFO(w);
    CHECK(ops_of(g) == (w == 1.0 || w == 0.0 ? "Mul Add" : "Add Mul"));
    CHECK(declined(p).starts_with(
        w == 1.0 || w == 0.0 ? "" : "D9 the rule would compute \"W2\"[69999] as 1e-4"));
  }
}

TEST_CASE("D10: what is computed from sizes alone keeps its bits") {
  const auto after = [](const std::string& numerics, const std::string& from) {
    Graph g = graph(
        "g (float[N,2] x, float[1] f) => (float[M] y) <int64[1] begin = {0}, int64[1] end = {1}, "
        "float a = {0.1}, float b = {10.0}> { s = Shape(x) n = Slice(s, begin, end) "
        "c = Cast<to=1>(n) t = Mul(" +
        from +
        ", a) o = Mul(t, b) u = Ceil(o) k = Cast<to=7>(u) y = "
        "ConstantOfShape(k) }");
    Passed p = must(pass(g, set_of({scales(numerics)})));
    std::string why;
    for (const Rejection& r : p.misses)
      if (r.id == "D10") why = r.why;
    const std::string ops = ops_of(g);
    return std::pair(why, ops.find("Mul Mul") == std::string::npos);
  };
  const auto [why, joined] = after("reassociating", "c");
  CHECK(why == "\"o\" is computed from sizes, and a size may hang on its last bit");
  CHECK_FALSE(joined);
  CHECK(after("reassociating", "f").second);
}
