// Scan, Loop and If whose graphs are planned, against the interpreter: axes and directions, states
// that are read and that are not, captures in any layout, graphs in graphs, no step at all; that a
// step allocates nothing; and what is left to the interpreter.
#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/onnx/import.h"
#include "runtime/cpu/kernel.h"
#include "tests/unit/cpu/plans.h"

namespace {
std::atomic<int64_t> allocations = 0;
}

// Of this program: counted, and otherwise as they were. GCC does not see that both sides are
// replaced.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes ? bytes : 1);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace ferrule::cpu::test {
namespace {

Graph parsed(const std::string& text) {
  ImportOptions import;
  import.ops = &operators();
  auto g = import_text(text, import);
  REQUIRE_MESSAGE(g.has_value(), (g ? "" : render(g.error())));
  return std::move(g->graph);
}

NestedGraphs nested_of(const Graph& g) {
  NestedGraphs out;
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (n.subgraphs.empty()) continue;
    auto graphs = graphs_of_their_own(operators(), g, n, contract_of(n, operators()));
    if (!graphs) continue;
    for (NestedGraph& inner : *graphs) inner.nested = nested_of(inner.graph);
    out.emplace(id, std::move(*graphs));
  }
  return out;
}

std::unique_ptr<Prepared> stepwise(const Graph& g) {
  auto p = std::make_unique<Prepared>();
  for (const char* c : {"scan", "loop", "branch"}) p->device.contracts[c] = {};
  p->device.contracts["pointwise"].types.push_back(DType::boolean);
  auto plan = make_plan(std::move(*g.clone()), p->device, operators(), nested_of(g));
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : render(plan.error())));
  p->plan = std::move(*plan);
  auto lowered = lower(p->plan, operators(), p->device, {});
  REQUIRE_MESSAGE(lowered.has_value(), (lowered ? "" : render(lowered.error())));
  p->lowered = std::move(*lowered);
  auto e = p->backend->prepare({p->plan, p->lowered, operators(), p->device, p->limits, 2, {}});
  REQUIRE_MESSAGE(e.has_value(), (e ? "" : e.error().reason()));
  p->executable = std::move(*e);
  return p;
}

/// The graph's inputs: numbers, and what `given` says of others by name.
std::vector<Tensor> operands(const Graph& g, unsigned seed,
                             const std::map<std::string, Tensor>& given) {
  std::vector<Tensor> v;
  for (ValueId x : g.inputs()) {
    auto it = given.find(g.value(x).name);
    v.push_back(it != given.end() ? it->second
                                  : random_tensor(*constant_shape(*g.value(x).type.shape), seed++));
  }
  return v;
}

/// Run three times with other numbers; `interpreted`: how many layers have no kernel.
std::unique_ptr<Prepared> check_steps(const std::string& text, size_t interpreted = 0,
                                      const std::map<std::string, Tensor>& given = {}) {
  CAPTURE(text);
  const Graph g = parsed(text);
  auto p = stepwise(g);
  CHECK(p->executable->interpreted().size() == interpreted);
  for (unsigned seed : {10u, 20u, 30u}) CHECK(difference(*p, g, operands(g, seed, given)) == "");
  return p;
}

const std::string kBody = R"(body = b (float[3] s, float[3] v) => (float[3] t, float[3] w) {
    a = Mul(s, c) t = Add(a, v) w = Tanh(t) })";
const std::string kConstant = "<float[3] c = {0.5, -0.25, 2.0}>";

}  // namespace

TEST_CASE("scan: axes and directions") {
  check_steps("g (float[3] s0, float[5,3] x) => (float[3] s, float[5,3] y) " + kConstant +
              " { s, y = Scan<num_scan_inputs = 1, " + kBody + ">(s0, x) }");
  for (const char* axis : {"0", "1", "-1"})
    for (const char* out : {"0", "1", "-1"})
      for (const char* back : {"0", "1"}) {
        check_steps("g (float[3] s0, float[3,3] x) => (float[3] s, float[3,3] y) " + kConstant +
                    " { s, y = Scan<num_scan_inputs = 1, scan_input_axes = [" + axis +
                    "], scan_output_axes = [" + out + "], scan_input_directions = [" + back +
                    "], scan_output_directions = [1], " + kBody + ">(s0, x) }");
      }
}

TEST_CASE("scan: results that nobody reads, and no steps") {
  check_steps("g (float[3] s0, float[5,3] x) => (float[3] s) " + kConstant +
              " { s, y = Scan<num_scan_inputs = 1, " + kBody + ">(s0, x) }");
  check_steps("g (float[3] s0, float[5,3] x) => (float[5,3] y) " + kConstant +
              " { s, y = Scan<num_scan_inputs = 1, " + kBody + ">(s0, x) }");
  check_steps("g (float[3] s0, float[1,3] x) => (float[3] s, float[1,3] y) " + kConstant +
              " { s, y = Scan<num_scan_inputs = 1, " + kBody + ">(s0, x) }");
  check_steps("g (float[3] s0, float[0,3] x) => (float[3] s, float[0,3] y) " + kConstant +
              " { s, y = Scan<num_scan_inputs = 1, " + kBody + ">(s0, x) }");
}

TEST_CASE(
    "scan: a state that is only handed on, one that is a capture, a result that is the slice") {
  check_steps(R"(g (float[3] a, float[3] b, float[3] k, float[4,3] x)
    => (float[3] p, float[3] q, float[4,3] y) {
    p, q, y = Scan<num_scan_inputs = 1, body = h (float[3] s, float[3] u, float[3] v)
      => (float[3] t, float[3] w, float[3] o) { t = Identity(u) w = Add(s, k) o = Identity(v) }>
      (a, b, x) })");
}

TEST_CASE("loop: counts and conditions") {
  const std::string body = R"(body = b (int64 i, bool going, float[4] s) => (bool on, float[4] t) {
      u = Mul(s, k) t = Add(u, x) m = ReduceMax<keepdims = 0>(t) on = Less(m, most) })";
  const std::string text = R"(g (int64 n, bool start, float[4] x, float most) => (float[4] y)
    <float k = {1.5}> { y = Loop<)" +
                           body + ">(n, start, x) }";
  for (const int64_t n : {0, 1, 2, 7})
    for (const double start : {0.0, 1.0})
      for (const double most : {0.0, 3.0, 1e9}) {
        Graph g = parsed(text);
        g.set_type(g.outputs()[0],
                   {DType::f32, Shape{Dim(4)}});  // what sizes of loops are found by
        auto p = stepwise(g);
        CHECK(p->executable->interpreted().empty());
        const std::map<std::string, Tensor> given{
            {"n", Tensor::of_i64({}, std::vector{n})},
            {"start", Tensor::scalar(DType::boolean, start, {})},
            {"most", Tensor::scalar(DType::f32, most, {})}};
        CHECK(difference(*p, g, operands(g, 5, given)) == "");
      }
}

TEST_CASE("branches that capture, one in another layout") {
  for (const double yes : {0.0, 1.0})
    check_steps(R"(g (bool c, float[1,8,5,5] x) => (float[1,8,5,5] y) {
      v = MaxPool<pads = [1,1,1,1], kernel_shape = [3,3]>(x)
      y = If(c)<then_branch = t () => (float[1,8,5,5] a) { a = Tanh(v) },
                else_branch = e () => (float[1,8,5,5] b) { b = Add(v, x) }> })",
                0, {{"c", Tensor::scalar(DType::boolean, yes, {})}});
}

TEST_CASE("graphs in graphs") {
  check_steps(R"(g (float[3] s0, float[4,3] x, bool c, float[3] far) => (float[3] s, float[4,3] y) {
    s, y = Scan<num_scan_inputs = 1, body = b (float[3] a, float[3] v)
      => (float[3] t, float[3] w) {
        t = If(c)<then_branch = h () => (float[3] p) { p = Add(a, far) },
                  else_branch = e () => (float[3] q) { q = Mul(a, v) }>
        w = Tanh(t) }>(s0, x) })",
              0, {{"c", Tensor::scalar(DType::boolean, 1, {})}});
}

TEST_CASE("a step allocates nothing") {
  const Graph g = parsed("g (float[3] s0, float[50,3] x) => (float[3] s, float[50,3] y) " +
                         kConstant + " { s, y = Scan<num_scan_inputs = 1, " + kBody + ">(s0, x) }");
  auto p = stepwise(g);
  const auto inputs = operands(g, 1, {});
  std::vector<float> s(3), y(150);
  const void* in[] = {inputs[0].data(), inputs[1].data()};
  void* out[] = {s.data(), y.data()};
  for (int warm = 0; warm < 2; ++warm) REQUIRE(p->executable->run(in, out).has_value());
  const int64_t before = allocations;
  REQUIRE(p->executable->run(in, out).has_value());
  CHECK(allocations == before);
}

TEST_CASE("a state that grows is left to the interpreter") {
  const Graph g = parsed(R"(g (int64 n, bool c, float[3] x) => (float[L] y) {
    y = Loop<body = b (int64 i, bool on, float[A] s) => (bool go, float[B] t) {
      go = Identity(on) t = Concat<axis = 0>(s, s) }>(n, c, x) })");
  int seen = 0;
  for (NodeId id : g.order()) {
    if (g.node(id).subgraphs.empty()) continue;
    auto graphs = graphs_of_their_own(operators(), g, g.node(id), "loop");
    REQUIRE_FALSE(graphs.has_value());
    CHECK(graphs.error().reason().find("changes its size") != std::string::npos);
    ++seen;
  }
  CHECK(seen == 1);
}

}  // namespace ferrule::cpu::test
