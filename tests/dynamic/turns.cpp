// Loops whose turns run by stages of the body, against the reference: by one session again and
// again, when stages are planned that were interpreted before, and by two threads at once.
#include <doctest/doctest.h>

#include <thread>

#include "engine/onnx/export.h"
#include "engine/onnx/import.h"
#include "runtime/session.h"
#include "runtime/shared_knowledge.h"
#include "tests/support/paths.h"

namespace ferrule::test {
namespace {

using Named = std::map<std::string, Tensor>;

SessionOptions options_of(const std::string& backend) {
  SessionOptions options;
  options.engine.rule_dirs = {rules_dir()};
  options.engine.cache = "";
  options.backend = backend;
  options.threads = 1;
  return options;
}

Session session_of(const std::string& text, SessionOptions options) {
  auto knowledge = shared_knowledge(options.engine);
  REQUIRE_MESSAGE(knowledge, (knowledge ? "" : render(knowledge.error())));
  ImportOptions import;
  import.ops = &(*knowledge)->ops;
  auto graph = import_text("g " + text, import);
  REQUIRE_MESSAGE(graph, (graph ? "" : render(graph.error())));
  auto session = Session::from_graph(std::move(graph->graph), *knowledge, std::move(options));
  REQUIRE_MESSAGE(session, (session ? "" : render(session.error())));
  return std::move(*session);
}

std::string differ(const Result<Named>& got, const Result<Named>& want) {
  if (!got || !want) return render((got ? want : got).error());
  for (const auto& [name, t] : *want) {
    const Tensor& o = got->at(name);
    if (o.dims() != t.dims() || o.dtype() != t.dtype()) return name + " has another size or type";
    const std::vector<double> a = o.to_f64(), b = t.to_f64();
    for (size_t k = 0; k < a.size(); ++k)
      if (std::abs(a[k] - b[k]) > 1e-5 * (1 + std::abs(b[k]))) return name + " differs";
  }
  return "";
}

/// How many layers are interpreted in the last of so many runs.
size_t runs(const std::string& text, const Named& inputs, int times, bool no_interpreter = false) {
  SessionOptions options = options_of("cpu");
  options.no_interpreter = no_interpreter;
  Session session = session_of(text, options),
          reference = session_of(text, options_of("reference"));
  const auto want = reference.run(inputs);
  for (int k = 0; k < times; ++k) CHECK(differ(session.run(inputs), want) == "");
  Shapes shapes;
  for (const auto& [name, t] : inputs) shapes[name] = t.dims();
  return (*session.plan(shapes))->executable().interpreted().size();
}

Tensor row() { return Tensor::of_f32({1, 3}, {0.5f, -1, 2}); }
Tensor number(int64_t n) { return Tensor::of_i64({}, {n}); }
Tensor yes(bool is) { return Tensor::scalar(DType::boolean, is); }

/// A turn doubles the state until 40 is passed; two things are stacked, one of what it captures.
constexpr const char* kUntil = R"((float[1,3] x, float[1,3] c, int64 m, bool go)
    => (float[1,3] y, float[a,1,3] all, int64[b] at) {
  y, all, at = Loop<body = b (int64 i, bool on, float[1,3] s)
      => (bool more, float[1,3] t, float[1,3] u, int64 j) {
    t = Add(s, s) u = Mul(t, c) j = Add(i, i)
    top = ReduceMax<keepdims = 0>(t) most = Constant<value = float {40}>() more = Less(top, most)
  }>(m, go, x) })";

/// The state grows by a row; the body's Slice has bounds that differ from turn to turn.
constexpr const char* kGrows = R"((float[1,3] x, int64 m) => (float[a,3] y, float[b,3] all) {
  y, all = Loop<body = b (int64 i, bool on, float[k,3] s) => (bool more, float[l,3] t, float[3] u) {
    more = Identity(on)
    zero = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
    from = Unsqueeze(i, zero) to = Add(from, one) last = Slice(s, from, to, zero)
    next = Exp(last) small = Neg(next) t = Concat<axis = 0>(s, small)
    u = ReduceSum<keepdims = 0>(t, zero)
  }>(m, , x) })";

/// The body's turns turn themselves: as often as the outer one has.
constexpr const char* kNested = R"((float[1,3] x, int64 m) => (float[1,3] y, float[a,3] all) {
  y, all = Loop<body = b (int64 i, bool on, float[1,3] s)
      => (bool more, float[1,3] t, float[3] u) {
    more = Identity(on) one = Constant<value = int64 {1}>() n = Add(i, one)
    t, rows = Loop<body = c (int64 j, bool going, float[1,3] v)
        => (bool again, float[1,3] w, float[1,3] r) {
      again = Identity(going) half = Constant<value = float {0.5}>() w = Mul(v, half)
      r = Add(w, s) }>(n, on, s)
    axes = Constant<value_ints = [0, 1]>() u = ReduceSum<keepdims = 0>(rows, axes)
  }>(m, , x) })";

}  // namespace

TEST_CASE("turns whose number depends on data run by kernels, if there is any") {
  for (const auto& [most, go] : {std::pair(20, true), {2, true}, {0, true}, {-1, true}, {9, false}})
    CHECK(runs(kUntil, {{"x", row()}, {"c", row()}, {"m", number(most)}, {"go", yes(go)}}, 2,
               true) == 0);
}

TEST_CASE("turns of sizes that come again are planned") {
  CHECK(runs(kGrows, {{"x", row()}, {"m", number(4)}}, 1) == 1);
  CHECK(runs(kGrows, {{"x", row()}, {"m", number(4)}}, 4) == 1);  // its Slice
  CHECK(runs(kGrows, {{"x", row()}, {"m", number(4)}}, 2, true) == 0);
  CHECK(runs(kGrows, {{"x", row()}, {"m", number(80)}}, 2) == 1);  // more than plans are kept
  CHECK(runs(kNested, {{"x", row()}, {"m", number(3)}}, 1) == 1);
  CHECK(runs(kNested, {{"x", row()}, {"m", number(3)}}, 3) == 0);
  CHECK(runs(kNested, {{"x", row()}, {"m", number(0)}}, 1) == 0);
}

TEST_CASE("a count that alone stops a loop says how much is stacked") {
  Session session = session_of(
      "(float[1,3] x) => (float[a] z) <int64 m = {4}, bool go = {1}, int64[1] axes = {2}> "
      "{ y, all = Loop<body = b (int64 i, bool on, float[1,3] s) => (bool more, float[1,3] t, "
      "float[1,3] u) { more = Identity(on) t = Add(s, s) u = Neg(t) }>(m, go, x) "
      "s = ReduceSum<keepdims = 0>(all) z = Exp(s) }",
      options_of("cpu"));
  const auto compiled = session.plan();
  REQUIRE_MESSAGE(compiled, (compiled ? "" : render(compiled.error())));
  const Plan& plan = (*compiled)->plan();
  CHECK(plan.layers[0].contract == "loop");
  CHECK(str(plan.graph.value(plan.graph.node(plan.layers[0].node).outputs[1]).type) ==
        "f32[4,1,3]");
  CHECK((*compiled)->executable().interpreted().empty());
}

TEST_CASE("the turn's number has the rank that the body declares") {
  const std::string body =
      "y, at = Loop<body = b (int64[1] i, bool on, float[1,3] s) => (bool more, float[1,3] t, "
      "int64[1] j) { more = Identity(on) t = Add(s, s) j = Identity(i) }>(m, go, x) }";
  CHECK(runs("(float[1,3] x, int64 m) => (int64[a,1] at) <bool go = {1}> { " + body,
             {{"x", row()}, {"m", number(6)}}, 2, true) == 0);
  CHECK(runs("(float[1,3] x) => (int64[a,1] at) <bool go = {1}, int64 m = {3}> { " + body,
             {{"x", row()}}, 2, true) == 0);
}

TEST_CASE("numbers are drawn in the sequence of the turns") {
  for (const char* count : {"int64 m", "float[1] z"}) {
    Named inputs = {{"x", row()}};
    const bool open = std::string_view(count) == "int64 m";
    inputs.emplace(open ? "m" : "z", open ? number(3) : Tensor::of_f32({1}, {0}));
    runs(fmt::format("(float[1,3] x, {}) => (float[a,1,3] all) {} {{ all = Loop<body = b (int64 i, "
                     "bool on) => (bool more, float[1,3] t) {{ more = Identity(on) r = "
                     "RandomUniformLike<seed = 1.0>(x) t = Add(r, x) }}>(m, go) }}",
                     count, open ? "<bool go = {1}>" : "<int64 m = {3}, bool go = {1}>"),
         inputs, 1);
  }
}

TEST_CASE("two threads run one session's turns") {
  Session session = session_of(kGrows, options_of("cpu")),
          reference = session_of(kGrows, options_of("reference"));
  std::string wrong[2];
  const auto work = [&](int who) {
    for (int k = 0; k < 6 && wrong[who].empty(); ++k) {
      const Named inputs = {{"x", row()}, {"m", number(2 + (k + who) % 3)}};
      wrong[who] = differ(session.run(inputs), reference.run(inputs));
    }
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  CHECK(wrong[0] == "");
  CHECK(wrong[1] == "");
}

TEST_CASE("turns without end stop when time is up, or memory") {
  const char* kForever = R"((float[1,3] x, bool go) => (float[a,1,3] all) {
    all = Loop<body = b (int64 i, bool on) => (bool more, float[1,3] t) {
      none = Constant<value = int64 {-1}>() more = Less(none, i) t = Neg(x) }>(, go) })";
  const Named inputs = {{"x", row()}, {"go", yes(true)}};
  SessionOptions options = options_of("cpu");
  auto cancel = std::make_shared<Cancel>();
  options.cancel = cancel;
  Session session = session_of(kForever, options);
  REQUIRE(session.plan());
  cancel->deadline(std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
  auto out = session.run(inputs);
  REQUIRE(!out);
  CHECK(out.error().code == Code::cancelled);
  CHECK(out.error().place.starts_with("node "));
  options = options_of("cpu");
  options.engine.limits.memory_bytes = 1 << 20;
  out = session_of(kForever, options).run(inputs);
  REQUIRE(!out);
  CHECK(out.error().code == Code::limit_exceeded);
}

}  // namespace ferrule::test
