// NaN and infinities through tails that the library or our own kernels do: each kind of kernel with each step, a plan of
// its own, so that each must show its NaN by itself; against the interpreter. The instruction set is oneDNN's
// ($ONEDNN_MAX_CPU_ISA), so that tests/nan can run it for all.
#include <xmmintrin.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "engine/graph/infer.h"
#include "engine/graph/interpreter.h"
#include "engine/group.h"
#include "engine/onnx/infer_onnx.h"
#include "runtime/cpu/executable.h"
#include "runtime/cpu/nan_watch.h"
#include "runtime/parallel.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu {
std::unique_ptr<Backend> make_cpu_backend();
}

namespace ferrule::cpu::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

Target target() {
  Target t;
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), wide = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  t.name = (isa & wide) == wide ? "cpu-avx512" : "cpu-avx2";
  t.device = "cpu";
  t.l2_bytes = 1 << 20;
  for (const char* c : {"conv", "deconv", "gemm", "pool", "conv_pool", "depthwise_pointwise", "pointwise", "copy", "view"}) {
    ContractFacts& f = t.contracts[c];
    f.types = {DType::f32};
    f.max_epilogue_ops = 8;
    f.max_operands = 4;
    f.generated_tail = true;
  }
  return t;
}

/// A graph whose last nodes are to be one group.
struct Net {
  Graph graph;
  int names = 0;
  Net() { install_onnx_inference(); }
  ValueId constant(Tensor t) { return graph.add_constant("c" + std::to_string(names++), std::move(t)); }
  ValueId number(float v) { return constant(Tensor::of_f32({}, {v})); }
  ValueId input(const Dims& d) { return graph.add_input("x" + std::to_string(names++), {DType::f32, Shape(d.begin(), d.end())}); }
  ValueId node(std::string op, std::vector<ValueId> inputs, std::map<std::string, Attr> attrs = {}) {
    Node n;
    n.op = op;
    n.name = op + std::to_string(names);
    n.origins = {n.name};
    n.inputs = std::move(inputs);
    for (auto& [k, v] : attrs) n.attrs.set(k, v);
    const ValueId out = graph.add_value("v" + std::to_string(names++));
    n.outputs = {out};
    const Status s = infer(graph, graph.add_node(std::move(n)));
    REQUIRE_MESSAGE(s.has_value(), (s ? "" : render(s.error())));
    return out;
  }
  ValueId conv(const Dims& x, int64_t out, int64_t k, int64_t group = 1, int64_t stride = 1) {
    Dims w{out, x[1] / group}, pads(2 * (x.size() - 2), k / 2), strides(x.size() - 2, stride);
    w.resize(x.size(), k);
    return node("Conv", {input(x), constant(random_tensor(w, 1, -0.1f, 0.1f)), constant(random_tensor({out}, 2))}, {{"pads", pads}, {"group", group}, {"strides", strides}});
  }
  ValueId deconv(const Dims& x, int64_t out, int64_t k, int64_t group = 1, int64_t stride = 1) {
    Dims w{x[1], out / group}, strides(x.size() - 2, stride);
    w.resize(x.size(), k);
    return node("ConvTranspose", {input(x), constant(random_tensor(w, 1, -0.1f, 0.1f))}, {{"group", group}, {"strides", strides}});
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
    {"1-D", "conv", [](Net& n) { return n.conv({2, 5, 21}, 12, 3); }},
    {"3-D", "conv", [](Net& n) { return n.conv({1, 4, 5, 6, 7}, 8, 3); }},
    {"transposed", "deconv", [](Net& n) { return n.deconv({1, 12, 9, 9}, 16, 3, 1, 2); }},
    {"transposed, grouped", "deconv", [](Net& n) { return n.deconv({1, 16, 9, 9}, 16, 3, 16); }},
    {"transposed, unfolded", "deconv", [](Net& n) { return n.deconv({1, 16, 9, 9}, 8, 2, 1, 2); }},
    {"MatMul", "gemm", [](Net& n) { return n.node("MatMul", {n.input({33, 64}), n.constant(random_tensor({64, 48}, 1))}); }},
    {"MatMul, one column", "gemm", [](Net& n) { return n.node("MatMul", {n.input({5, 8}), n.constant(random_tensor({8, 1}, 1))}); }},
    {"MatMul, batch", "gemm", [](Net& n) { return n.node("MatMul", {n.input({3, 17, 32}), n.input({3, 32, 20})}); }},
    {"Gemm", "gemm", [](Net& n) {
       return n.node("Gemm", {n.input({9, 64}), n.constant(random_tensor({32, 64}, 1)), n.constant(random_tensor({32}, 2))}, {{"transB", int64_t{1}}});
     }},
    {"Gemm, one number a row", "gemm", [](Net& n) {
       return n.node("Gemm", {n.input({9, 64}), n.constant(random_tensor({64, 32}, 1)), n.constant(random_tensor({9, 1}, 2))});
     }},
    {"Gemm, one number a row, scaled", "gemm", [](Net& n) {
       return n.node("Gemm", {n.input({9, 64}), n.constant(random_tensor({64, 32}, 1)), n.constant(random_tensor({9, 1}, 2))}, {{"beta", -1.5}});
     }},
};

struct Step {
  std::string name;
  std::function<ValueId(Net&, ValueId)> make;
};
Step plain(const char* op) {
  return {op, [op](Net& n, ValueId x) { return n.node(op, {x}); }};
}
const Step kSteps[] = {
    plain("Relu"), plain("LeakyRelu"), plain("HardSigmoid"), plain("HardSwish"), plain("Sigmoid"), plain("Tanh"), plain("Elu"),
    plain("Abs"), plain("Softplus"), plain("Mish"), plain("Exp"),
    {"Clip", [](Net& n, ValueId x) { return n.node("Clip", {x, n.number(-0.5f), n.number(0.75f)}); }},
    {"Clip from below", [](Net& n, ValueId x) { return n.node("Clip", {x, n.number(0), {}}); }},
    {"Clip from above", [](Net& n, ValueId x) { return n.node("Clip", {x, {}, n.number(0.5f)}); }},
    {"Max", [](Net& n, ValueId x) { return n.node("Max", {n.number(0.25f), x}); }},
    {"Min of a tensor", [](Net& n, ValueId x) { return n.node("Min", {x, n.input(*constant_shape(*n.graph.value(x).type.shape))}); }},
    {"PRelu", [](Net& n, ValueId x) { return n.node("PRelu", {x, n.number(0.2f)}); }},
    {"Add, Relu", [](Net& n, ValueId x) { return n.node("Relu", {n.node("Add", {x, n.input(*constant_shape(*n.graph.value(x).type.shape))})}); }},
    {"Relu, Mul", [](Net& n, ValueId x) { return n.node("Mul", {n.node("Relu", {x}), n.number(-2)}); }},
};

struct Run {
  Plan plan;
  Lowered lowered;
  Target device = target();
  Limits limits;
  std::unique_ptr<Backend> backend = make_cpu_backend();
  std::unique_ptr<Executable> executable;
};
std::unique_ptr<Run> prepare(const Graph& g, const LowerOptions& options, int threads = 2) {
  auto r = std::make_unique<Run>();
  auto plan = make_plan(std::move(*g.clone()), r->device, operators());
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : render(plan.error())));
  r->plan = std::move(*plan);
  auto lowered = lower(r->plan, operators(), r->device, options);
  REQUIRE_MESSAGE(lowered.has_value(), (lowered ? "" : render(lowered.error())));
  r->lowered = std::move(*lowered);
  auto e = r->backend->prepare({r->plan, r->lowered, operators(), r->device, r->limits, threads, {}});
  REQUIRE_MESSAGE(e.has_value(), (e ? "" : render(e.error())));
  r->executable = std::move(*e);
  return r;
}

/// Random inputs, with `odd` at the end of input `which`.
std::vector<Tensor> inputs_of(const Graph& g, float odd, size_t which) {
  std::vector<Tensor> all;
  for (ValueId v : g.inputs()) {
    const Tensor t = random_tensor(*constant_shape(*g.value(v).type.shape), static_cast<unsigned>(all.size()) + 5);
    std::vector<float> values(t.as<float>().begin(), t.as<float>().end());
    if (all.size() == which && odd != 0) values[values.size() - 2] = odd;
    all.push_back(Tensor::of_f32(t.dims(), values));
  }
  return all;
}

/// The first element in which they differ by more than the README says; empty: none.
std::string difference(const Tensor& got, const Tensor& want) {
  const std::vector<double> g = got.to_f64(), w = want.to_f64();
  double most = 1;
  for (double v : w)
    if (std::isfinite(v)) most = std::max(most, std::fabs(v));
  for (size_t k = 0; k < g.size(); ++k) {
    const bool same = std::isnan(w[k]) ? std::isnan(g[k]) : g[k] == w[k] || std::fabs(g[k] - w[k]) <= 1e-4 * std::fabs(w[k]) + 1e-5 * most;
    if (!same) return fmt::format("element {}: {} for {}", k, g[k], w[k]);
  }
  return "";
}

std::string run(Run& r, const Graph& g, const std::vector<Tensor>& inputs) {
  InterpreterOptions options;
  options.ops = &operators();
  const auto want = interpret(g, inputs, options);
  const auto got = r.executable->run_tensors(inputs);
  REQUIRE(want.has_value());
  REQUIRE_MESSAGE(got.has_value(), (got ? "" : render(got.error())));
  return difference((*got)[0], (*want)[0]);
}

int kernels(const Plan& p) {
  int n = 0;
  for (const Layer& l : p.layers) n += l.kernels;
  return n;
}

/// Finite values, NaN and infinities in each input; what hides NaN is left only for those.
void check(const Graph& g, const LowerOptions& options, std::string* text = nullptr) {
  auto r = prepare(g, options);
  if (text) *text = r->executable->text();
  for (size_t which = 0; which < g.inputs().size(); ++which)
    for (const float odd : {0.0f, kNan, 0.0f, 0.0f, kInf, -kInf}) {
      CAPTURE(odd);
      CAPTURE(which);
      CHECK(run(*r, g, inputs_of(g, odd, which)) == "");
    }
  for (int again = 0; again < 70; ++again) REQUIRE(r->executable->run_tensors(inputs_of(g, 0, 0)).has_value());
  CHECK(r->executable->launches() == kernels(r->plan));
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
      const Graph g = tailed(a, s);
      std::string text;
      check(g, {}, &text);
      for (const char* kind : {"first:", "depthwise:", "winograd", "product:", "brgconv", "brg", "jit"})
        if (text.find(kind) != text.npos) seen.insert(kind);
    }
  for (const char* kind : {"first:", "depthwise:", "winograd", "product:", "brgconv", "jit"}) CHECK_MESSAGE(seen.count(kind), kind);
}

TEST_CASE("strict plans keep NaN, too, and so do windows over each other's results") {
  for (const Anchor& a : kAnchors)
    for (const size_t s : {0, 2, 11}) {
      CAPTURE(a.name);
      CAPTURE(kSteps[s].name);
      check(tailed(a, kSteps[s]), {.strict = true});
    }
  for (const bool strict : {false, true}) {
    Net pooled;
    const ValueId conv = pooled.node("Relu", {pooled.conv({2, 6, 17, 19}, 8, 3)});
    pooled.graph.add_output(pooled.node("AveragePool", {conv}, {{"kernel_shape", Dims{2, 2}}, {"strides", Dims{2, 2}}}));
    REQUIRE(make_group(pooled.graph, std::vector<NodeId>(pooled.graph.order()), "conv_pool", "a_rule", "joined").has_value());
    check(pooled.graph, {.strict = strict});
    Net pair;
    const ValueId deep = pair.node("Clip", {pair.conv({1, 16, 20, 20}, 16, 3, 16), pair.number(0), pair.number(6)});
    const ValueId wide = pair.node("Conv", {deep, pair.constant(random_tensor({24, 16, 1, 1}, 3))});
    pair.graph.add_output(pair.node("Relu", {wide}));
    REQUIRE(make_group(pair.graph, std::vector<NodeId>(pair.graph.order()), "depthwise_pointwise", "a_rule", "joined").has_value());
    check(pair.graph, {.strict = strict});
  }
}

TEST_CASE("what hides NaN is said only where nobody notices it") {
  for (const auto& [options, says] : {std::pair{LowerOptions{}, ""}, {LowerOptions{.fast_math = true}, "library (NaN becomes 0)"},
                                      {LowerOptions{.strict = true}, ""}, {LowerOptions{.keep_nan = true}, ""}}) {
    const Graph g = tailed(kAnchors[0], kSteps[0]);
    auto r = prepare(g, options);
    for (const Layer& l : r->plan.layers)
      if (l.name == "joined") CHECK(l.numerics == says);
    CHECK(r->lowered.notices_nan() == (!options.fast_math && !options.strict && !options.keep_nan));
    CHECK(run(*r, g, inputs_of(g, 0, 0)) == "");
    const std::string odd = run(*r, g, inputs_of(g, kNan, 0));
    CHECK((odd == "") == !options.fast_math);
  }
}

TEST_CASE("a run that finds NaN and writes over its input is right, and the caller's flags stay") {
  Net net;
  net.graph.add_output(net.node("Relu", {net.conv({1, 16, 8, 8}, 16, 1)}));
  REQUIRE(make_group(net.graph, std::vector<NodeId>(net.graph.order()), "conv", "a_rule", "joined").has_value());
  auto r = prepare(net.graph, {});
  const std::vector<Tensor> inputs = inputs_of(net.graph, kNan, 0);
  auto want = r->executable->run_tensors(inputs);
  REQUIRE(want.has_value());
  std::vector<float> buffer(inputs[0].as<float>().begin(), inputs[0].as<float>().end());
  const void* in[] = {buffer.data()};
  void* out[] = {buffer.data()};
  auto fresh = prepare(net.graph, {});
  _mm_setcsr(_mm_getcsr() | _MM_EXCEPT_INVALID);
  REQUIRE(fresh->executable->run(in, out).has_value());
  CHECK((_mm_getcsr() & _MM_EXCEPT_INVALID) != 0);
  CHECK(difference(Tensor::of_f32((*want)[0].dims(), buffer), (*want)[0]) == "");
}

TEST_CASE("flags of NaN are found on every thread, also on those that have ended") {
  set_threads(4);
  NanWatch watch;
  volatile float nan = kNan, one = 1;
  auto hide = [&] { [[maybe_unused]] volatile float y = _mm_cvtss_f32(_mm_max_ss(_mm_set_ss(nan), _mm_set_ss(one))); };
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
