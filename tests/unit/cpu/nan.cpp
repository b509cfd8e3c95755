// NaN and infinities through tails that the library or our own kernels do: each kind of kernel with
// each step, a plan of its own, so that each must show its NaN by itself; against the interpreter.
// The instruction set is oneDNN's
// ($ONEDNN_MAX_CPU_ISA), so that tests/nan can run it for all.
#include <xmmintrin.h>

#include <cmath>
#include <functional>
#include <set>

#include "runtime/cpu/nan_watch.h"
#include "runtime/parallel.h"
#include "tests/unit/cpu/plans.h"

namespace ferrule::cpu::test {
namespace {

/// A graph whose last nodes are to be one group.
struct Net : Model {
  ValueId number(float v) { return constant(Tensor::of_f32({}, {v})); }
  ValueId conv(const Dims& x, int64_t out, int64_t k, int64_t group = 1, int64_t stride = 1) {
    Dims w{out, x[1] / group}, pads(2 * (x.size() - 2), k / 2), strides(x.size() - 2, stride);
    w.resize(x.size(), k);
    return node(
        "Conv",
        {input(x), constant(random_tensor(w, 1, -0.1f, 0.1f)), constant(random_tensor({out}, 2))},
        {{"pads", pads}, {"group", group}, {"strides", strides}});
  }
  ValueId deconv(const Dims& x, int64_t out, int64_t k, int64_t group = 1, int64_t stride = 1) {
    Dims w{x[1], out / group}, strides(x.size() - 2, stride);
    w.resize(x.size(), k);
    return node("ConvTranspose", {input(x), constant(random_tensor(w, 1, -0.1f, 0.1f))},
                {{"group", group}, {"strides", strides}});
  }
};

struct Anchor {
  std::string name;
  const char* contract;
  std::function<ValueId(Net&)> make;
};
const Anchor kAnchors[] = {
    {"1x1, more channels", "conv", [](Net& n) { return n.conv({1, 16, 28, 28}, 96, 1); }},
    {"1x1, small", "conv", [](Net& n) { return n.conv({1, 8, 5, 5}, 16, 1); }},
    {"1x1, fewer channels", "conv", [](Net& n) { return n.conv({1, 96, 14, 14}, 16, 1); }},
    {"3x3", "conv", [](Net& n) { return n.conv({1, 32, 14, 14}, 40, 3); }},
    {"3x3, odd", "conv", [](Net& n) { return n.conv({2, 7, 9, 9}, 9, 3); }},
    {"3x3, Winograd", "conv", [](Net& n) { return n.conv({1, 64, 28, 28}, 64, 3); }},
    {"first layer", "conv", [](Net& n) { return n.conv({1, 3, 33, 33}, 24, 3, 1, 2); }},
    {"depthwise", "conv", [](Net& n) { return n.conv({1, 24, 17, 17}, 24, 3, 24); }},
    {"grouped", "conv", [](Net& n) { return n.conv({1, 16, 9, 9}, 16, 3, 4); }},
    {"few filters", "conv", [](Net& n) { return n.conv({1, 6, 12, 35}, 2, 3); }},
    {"few filters of rows", "conv", [](Net& n) { return n.conv({2, 1, 90}, 1, 16, 1, 2); }},
    {"1-D", "conv", [](Net& n) { return n.conv({2, 5, 21}, 12, 3); }},
    {"3-D", "conv", [](Net& n) { return n.conv({1, 4, 5, 6, 7}, 8, 3); }},
    {"transposed", "deconv", [](Net& n) { return n.deconv({1, 12, 9, 9}, 16, 3, 1, 2); }},
    {"transposed, grouped", "deconv", [](Net& n) { return n.deconv({1, 16, 9, 9}, 16, 3, 16); }},
    {"transposed, few filters", "deconv",
     [](Net& n) { return n.deconv({1, 12, 9, 9}, 2, 4, 1, 2); }},
    {"transposed, unfolded", "deconv", [](Net& n) { return n.deconv({1, 16, 9, 9}, 8, 2, 1, 2); }},
    {"MatMul", "gemm",
     [](Net& n) {
       return n.node("MatMul", {n.input({33, 64}), n.constant(random_tensor({64, 48}, 1))});
     }},
    {"MatMul, one column", "gemm",
     [](Net& n) {
       return n.node("MatMul", {n.input({5, 8}), n.constant(random_tensor({8, 1}, 1))});
     }},
    {"MatMul, batch", "gemm",
     [](Net& n) { return n.node("MatMul", {n.input({3, 17, 32}), n.input({3, 32, 20})}); }},
    {"Gemm", "gemm",
     [](Net& n) {
       return n.node("Gemm",
                     {n.input({9, 64}), n.constant(random_tensor({32, 64}, 1)),
                      n.constant(random_tensor({32}, 2))},
                     {{"transB", int64_t{1}}});
     }},
    {"Gemm, one number a row", "gemm",
     [](Net& n) {
       return n.node("Gemm", {n.input({9, 64}), n.constant(random_tensor({64, 32}, 1)),
                              n.constant(random_tensor({9, 1}, 2))});
     }},
    {"Gemm, one number a row, scaled", "gemm",
     [](Net& n) {
       return n.node("Gemm",
                     {n.input({9, 64}), n.constant(random_tensor({64, 32}, 1)),
                      n.constant(random_tensor({9, 1}, 2))},
                     {{"beta", -1.5}});
     }},
};

struct Step {
  std::string name;
  std::function<ValueId(Net&, ValueId)> make;
};
Step plain(const char* op) {
  return {op, [op](Net& n, ValueId x) { return n.node(op, {x}); }};
}
Step of_alpha(const char* op, double alpha) {
  return {fmt::format("{} of {}", op, alpha),
          [=](Net& n, ValueId x) { return n.node(op, {x}, {{"alpha", alpha}}); }};
}
/// With a constant.
Step by(const char* op, float v) {
  return {fmt::format("{} {}", op, v),
          [=](Net& n, ValueId x) { return n.node(op, {x, n.number(v)}); }};
}
/// Where it magnifies no rounding.
Step far_from_zero(Step s) {
  return {s.name + " far from 0",
          [s](Net& n, ValueId x) { return s.make(n, n.node("Add", {x, n.number(64)})); }};
}
/// With another input of the result's size.
Step tensor(const char* op) {
  return {fmt::format("{} of a tensor", op), [op](Net& n, ValueId x) {
            return n.node(op, {x, n.input(*constant_shape(*n.graph.value(x).type.shape))});
          }};
}
const Step kSteps[] = {
    plain("Relu"),
    plain("LeakyRelu"),
    plain("HardSigmoid"),
    plain("HardSwish"),
    plain("Sigmoid"),
    plain("Tanh"),
    plain("Elu"),
    plain("Abs"),
    plain("Softplus"),
    plain("Mish"),
    plain("Exp"),
    {"Clip",
     [](Net& n, ValueId x) { return n.node("Clip", {x, n.number(-0.5f), n.number(0.75f)}); }},
    {"Clip from below", [](Net& n, ValueId x) { return n.node("Clip", {x, n.number(0), {}}); }},
    {"Clip from above", [](Net& n, ValueId x) { return n.node("Clip", {x, {}, n.number(0.5f)}); }},
    {"Max", [](Net& n, ValueId x) { return n.node("Max", {n.number(0.25f), x}); }},
    {"Min of a tensor",
     [](Net& n, ValueId x) {
       return n.node("Min", {x, n.input(*constant_shape(*n.graph.value(x).type.shape))});
     }},
    by("PRelu", 0.2f),
    by("PRelu", 0),
    by("PRelu", -0.5f),
    by("PRelu", kInf),
    of_alpha("LeakyRelu", 0),
    of_alpha("Elu", 0),
    of_alpha("Elu", -1),
    of_alpha("ThresholdedRelu", 0),
    of_alpha("HardSigmoid", 0),
    of_alpha("Celu", 0.5),
    plain("Selu"),
    plain("Round"),
    plain("Neg"),
    plain("Softsign"),
    by("Pow", 0),
    by("Pow", 2),
    far_from_zero(plain("Sqrt")),
    far_from_zero(plain("Log")),
    far_from_zero(by("Pow", 0.5f)),
    far_from_zero(by("Pow", -0.5f)),
    far_from_zero(by("Pow", -1)),
    far_from_zero(by("Pow", 3)),
    by("Mul", 0),
    by("Mul", kInf),
    by("Add", kInf),
    by("Sub", -kInf),
    by("Div", 0.5f),
    by("Div", kInf),
    by("Min", -kInf),
    by("Max", kNan),
    tensor("Sub"),
    tensor("Mul"),
    tensor("Div"),
    tensor("Max"),
    {"Clip to one number",
     [](Net& n, ValueId x) { return n.node("Clip", {x, n.number(0.5f), n.number(0.5f)}); }},
    {"Swish", [](Net& n, ValueId x) { return n.node("Mul", {x, n.node("Sigmoid", {x})}); }},
    {"Swish of 0",
     [](Net& n, ValueId x) {
       return n.node("Mul", {x, n.node("Sigmoid", {n.node("Mul", {x, n.number(0)})})});
     }},
    {"Gelu",
     [](Net& n, ValueId x) { return n.node("Gelu", {x}, {{"approximate", std::string("tanh")}}); }},
    {"Where(x > 0, x, 0)",
     [](Net& n, ValueId x) {
       return n.node("Where", {n.node("Greater", {x, n.number(0)}), x, n.number(0)});
     }},
    {"Add, Relu",
     [](Net& n, ValueId x) {
       return n.node("Relu",
                     {n.node("Add", {x, n.input(*constant_shape(*n.graph.value(x).type.shape))})});
     }},
    {"Relu, Mul",
     [](Net& n, ValueId x) { return n.node("Mul", {n.node("Relu", {x}), n.number(-2)}); }},
};

/// Random inputs, with `odd` at the end of input `which`.
std::vector<Tensor> odd_inputs(const Graph& g, float odd, size_t which) {
  std::vector<Tensor> all = inputs_of(g, 5);
  if (odd == 0) return all;
  std::vector<float> values(all[which].as<float>().begin(), all[which].as<float>().end());
  values[values.size() - 2] = odd;
  all[which] = Tensor::of_f32(all[which].dims(), values);
  return all;
}

/// Finite values, NaN and infinities in each input; what hides NaN is left only for those.
std::unique_ptr<Prepared> check_odd(const Graph& g, const LowerOptions& options = {}) {
  auto p = prepare(g, options);
  for (size_t which = 0; which < g.inputs().size(); ++which)
    for (const float odd : {0.0f, kNan, 0.0f, 0.0f, kInf, -kInf}) {
      CAPTURE(odd);
      CAPTURE(which);
      CHECK(difference(*p, g, odd_inputs(g, odd, which)) == "");
    }
  for (int again = 0; again < 70 && p->lowered.notices_nan(); ++again)
    REQUIRE(p->executable->run_tensors(inputs_of(g, 5)).has_value());
  CHECK(p->executable->launches() == planned_kernels(*p));
  return p;
}

Graph tailed(const Anchor& a, const Step& s) {
  Net net;
  net.graph.add_output(s.make(net, a.make(net)));
  const std::vector<NodeId> nodes = net.graph.order();
  REQUIRE(make_group(net.graph, nodes, a.contract, "a_rule", "joined").has_value());
  return std::move(net.graph);
}

}  // namespace

TEST_CASE("NaN comes through every step behind every kind of kernel") {
  std::set<std::string> seen;
  for (const Anchor& a : kAnchors)
    for (const Step& s : kSteps) {
      CAPTURE(a.name);
      CAPTURE(s.name);
      const std::string text = check_odd(tailed(a, s))->executable->text();
      for (const char* kind : {"first:", "depthwise:", "few_filters:", "winograd",
                               "product:", "brgconv", "brg", "jit"})
        if (text.find(kind) != text.npos) seen.insert(kind);
    }
  for (const char* kind :
       {"first:", "depthwise:", "few_filters:", "winograd", "product:", "brgconv", "jit"})
    CHECK_MESSAGE(seen.count(kind), kind);
}

TEST_CASE("strict plans keep NaN, too, and so do windows over each other's results") {
  for (const Anchor& a : kAnchors)
    for (const size_t s : {0, 2, 11}) {
      CAPTURE(a.name);
      CAPTURE(kSteps[s].name);
      check_odd(tailed(a, kSteps[s]), {.strict = true});
    }
  for (const bool strict : {false, true}) {
    Net pooled;
    const ValueId conv = pooled.node("Relu", {pooled.conv({2, 6, 17, 19}, 8, 3)});
    pooled.graph.add_output(pooled.node("AveragePool", {conv},
                                        {{"kernel_shape", Dims{2, 2}}, {"strides", Dims{2, 2}}}));
    REQUIRE(make_group(pooled.graph, std::vector<NodeId>(pooled.graph.order()), "conv_pool",
                       "a_rule", "joined")
                .has_value());
    check_odd(pooled.graph, {.strict = strict});
    Net pair;
    const ValueId deep =
        pair.node("Clip", {pair.conv({1, 16, 20, 20}, 16, 3, 16), pair.number(0), pair.number(6)});
    const ValueId wide = pair.node("Conv", {deep, pair.constant(random_tensor({24, 16, 1, 1}, 3))});
    pair.graph.add_output(pair.node("Relu", {wide}));
    REQUIRE(make_group(pair.graph, std::vector<NodeId>(pair.graph.order()), "depthwise_pointwise",
                       "a_rule", "joined")
                .has_value());
    check_odd(pair.graph, {.strict = strict});
  }
}

TEST_CASE("a factor keeps the sign of 0 behind every kind of kernel") {
  const Step factors[] = {by("Mul", -2), plain("Neg"), by("Div", -4)};
  for (const Anchor& a : kAnchors)
    for (const Step& factor : factors)
      for (const bool strict : {false, true}) {
        CAPTURE(a.name);
        CAPTURE(factor.name);
        CAPTURE(strict);
        const Step zeros{"Round", [&](Net& n, ValueId x) {
                           const ValueId small = n.node("Mul", {x, n.number(0x1p-6f)});
                           return factor.make(n, n.node("Round", {small}));
                         }};
        const Graph g = tailed(a, zeros);
        const auto p = prepare(g, {.strict = strict});
        const std::vector<Tensor> inputs = inputs_of(g, 5);
        InterpreterOptions options;
        options.ops = &operators();
        const auto want = interpret(g, inputs, options);
        const auto got = p->executable->run_tensors(inputs);
        REQUIRE((want.has_value() && got.has_value()));
        int seen = 0, turned = 0;
        for (int64_t k = 0; k < want->front().numel(); ++k) {
          const double w = want->front().at_f64(k), x = got->front().at_f64(k);
          if (w != 0 || x != 0) continue;
          ++seen, turned += std::signbit(w) != std::signbit(x);
        }
        CHECK(seen > 0);
        // No result of the library's deconvolutions by backward passes is -0, whatever the tail.
        const bool library = a.name.starts_with("transposed") && !strict;
        CHECK((turned == 0 || (library && a.name != "transposed, unfolded")));
        const bool declared = std::ranges::any_of(p->lowered.layers, [](const LoweredLayer& layer) {
          return std::ranges::any_of(layer.launches, [](const Launch& l) {
            return l.deviation.find("-0 becomes 0") != l.deviation.npos;
          });
        });
        CHECK(declared == library);
      }
}

TEST_CASE("a softplus behind every kind of kernel is positive, and right where it is small") {
  const Step steep{"Softplus", [](Net& n, ValueId x) {
                     return n.node("Softplus", {n.node("Mul", {x, n.number(16)})});
                   }};
  for (const Anchor& a : kAnchors)
    for (const bool strict : {false, true}) {
      CAPTURE(a.name);
      CAPTURE(strict);
      const Graph g = tailed(a, steep);
      const auto p = prepare(g, {.strict = strict});
      const std::vector<Tensor> inputs = inputs_of(g, 5);
      InterpreterOptions options;
      options.ops = &operators();
      const auto want = interpret(g, inputs, options);
      const auto got = p->executable->run_tensors(inputs);
      REQUIRE((want.has_value() && got.has_value()));
      int wrong = 0;
      for (int64_t k = 0; k < want->front().numel(); ++k) {
        const double w = want->front().at_f64(k), x = got->front().at_f64(k);
        if (w > 1e-20) wrong += std::abs(x - w) > 1e-3 * w;  // 16 times what the anchor is off
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("what hides NaN is said only where nobody notices it") {
  for (const auto& [options, says] :
       {std::pair{LowerOptions{}, ""},
        {LowerOptions{.fast_math = true}, "library (NaN may become 0)"},
        {LowerOptions{.strict = true}, ""},
        {LowerOptions{.keep_nan = true}, ""}}) {
    const Graph g = tailed(kAnchors[0], kSteps[0]);
    auto r = prepare(g, options);
    for (const Layer& l : r->plan.layers)
      if (l.name == "joined") CHECK(l.numerics == says);
    CHECK(r->lowered.notices_nan() == (!options.fast_math && !options.strict && !options.keep_nan));
    CHECK(difference(*r, g, inputs_of(g, 5)) == "");
    const std::string odd = difference(*r, g, odd_inputs(g, kNan, 0));
    CHECK((odd == "") == !options.fast_math);
  }
}

TEST_CASE("a run that finds NaN and writes over its input is right, and the caller's flags stay") {
  Net net;
  net.graph.add_output(net.node("Relu", {net.conv({1, 16, 8, 8}, 16, 1)}));
  REQUIRE(make_group(net.graph, std::vector<NodeId>(net.graph.order()), "conv", "a_rule", "joined")
              .has_value());
  auto r = prepare(net.graph);
  const std::vector<Tensor> inputs = odd_inputs(net.graph, kNan, 0);
  auto want = r->executable->run_tensors(inputs);
  REQUIRE(want.has_value());
  std::vector<float> buffer(inputs[0].as<float>().begin(), inputs[0].as<float>().end());
  const void* in[] = {buffer.data()};
  void* out[] = {buffer.data()};
  auto fresh = prepare(net.graph);
  _mm_setcsr(_mm_getcsr() | _MM_EXCEPT_INVALID);
  REQUIRE(fresh->executable->run(in, out).has_value());
  CHECK((_mm_getcsr() & _MM_EXCEPT_INVALID) != 0);
  CHECK(compare(Tensor::of_f32((*want)[0].dims(), buffer), (*want)[0], model_tolerance(DType::f32))
            .ok);
}

TEST_CASE("flags of NaN are found on every thread, also on those that have ended") {
  set_threads(4);
  NanWatch watch;
  volatile float nan = kNan, one = 1;
  auto hide = [&] {
    [[maybe_unused]] volatile float y = _mm_cvtss_f32(_mm_max_ss(_mm_set_ss(nan), _mm_set_ss(one)));
  };
  for (int bad = 0; bad < 4; ++bad) {
    watch.begin(4);
    on_team(4, [&](int me, int) {
      if (me == bad) hide();
    });
    CHECK(watch.end(4));
  }
  watch.begin(4);
  on_team(4, [](int, int) {});
  CHECK(!watch.end(4));
  watch.begin(4);
  on_team(4, [&](int me, int) {
    if (me == 3) hide();
  });
  on_team(2, [](int, int) {});  // OpenMP lets the others go
  CHECK(watch.end(4));
  watch.begin(4);
  on_team(2, [](int, int) {});
  CHECK(!watch.end(4));
  set_threads(2);
}

}  // namespace ferrule::cpu::test
