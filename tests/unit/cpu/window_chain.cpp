// Two windows as one region of strips: convolutions with pooling behind them, depthwise with 1x1
// convolutions. Random sizes, pads, strides, dilations and tails against the interpreter, with
// buffers from one row to whole images, and any number of threads; what the contract takes, the
// kernel is made for.
#include "engine/contract/accepts.h"
#include "engine/graph/compare.h"
#include "engine/group/group.h"
#include "engine/interpreter/interpreter.h"
#include "engine/proof/edit.h"
#include "runtime/parallel.h"
#include "tests/support/paths.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int64_t operator()(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool one_in(int64_t n) { return (*this)(1, n) == 1; }
  template <class T>
  const T& of(const std::vector<T>& v) {
    return v[static_cast<size_t>((*this)(0, static_cast<int64_t>(v.size()) - 1))];
  }
  Tensor tensor(const Dims& dims) {
    return random_tensor(dims, static_cast<unsigned>(engine_()), -2, 2);
  }
  /// Sums stay near the numbers that a clip behind them lets pass: the tolerance goes by those.
  Tensor weights(const Dims& dims) {
    return random_tensor(dims, static_cast<unsigned>(engine_()), -0.5, 0.5);
  }

 private:
  std::mt19937 engine_;
};

/// A graph of one group's nodes, as it stands in a model, and its inputs.
struct TileModel {
  Graph graph;
  std::vector<Tensor> inputs;

  ValueId input(const std::string& name, const Tensor& t) {
    inputs.push_back(t);
    return graph.add_input(name, {t.dtype(), Shape(t.dims().begin(), t.dims().end())});
  }
  ValueId constant(const Tensor& t) { return graph.add_constant(graph.fresh_name("c"), t); }
  ValueId node(std::string op, std::vector<ValueId> operands,
               const std::vector<std::pair<std::string, Attr>>& attrs = {}) {
    Node n;
    n.op = std::move(op);
    n.inputs = std::move(operands);
    n.outputs = {graph.add_value(graph.fresh_name("v"))};
    for (const auto& [key, value] : attrs) n.attrs.set(key, value);
    last = graph.add_node(std::move(n));
    return graph.output(last);
  }
  Dims dims(ValueId v) { return constant_shape(*graph.value(v).type.shape).value_or(Dims{}); }
  /// Shapes so far; false where there are none.
  bool infer() { return infer_again(operators(), graph).has_value(); }
  NodeId last;
};

const Target& target_of(bool wide) {
  static const auto load = [](const char* name) {
    const std::string dirs[] = {rules_dir()};
    auto t = load_target(dirs, name);
    REQUIRE(t.has_value());
    return *t;
  };
  static const Target narrow = load("cpu-avx2"), all = load("cpu-avx512");
  return wide ? all : narrow;
}

/// Nothing, or what a convolution takes behind it.
ValueId tail(TileModel& m, Random& random, ValueId v) {
  REQUIRE(m.infer());
  const Dims y = m.dims(v);
  switch (random(0, 5)) {
    case 0:
      return m.node("Relu", {v});
    case 1:
      return m.node("Clip", {v, m.constant(Tensor::of_f32({}, {-1.0f})),
                             m.constant(Tensor::of_f32({}, {1.5f}))});
    case 2:
      return m.node(
          "Relu",
          {m.node("Add", {v, m.input("r" + std::to_string(m.inputs.size()), random.tensor(y))})});
    case 3:
      return m.node("Mul", {v, m.constant(random.tensor({y[1], 1, 1}))});
    default:
      return v;
  }
}

ValueId convolution(TileModel& m, Random& random, ValueId x, int64_t filters, int64_t group,
                    const Dims& kernel) {
  const Dims in = m.dims(x), strides{random(1, 2), random(1, 2)};
  Dims dilations{1, 1}, pads;
  if (random.one_in(4)) dilations = {random(1, 2), random(1, 2)};
  for (size_t k = 0; k < 4; ++k) pads.push_back(random(0, (kernel[k % 2] - 1) * dilations[k % 2]));
  std::vector<std::pair<std::string, Attr>> attrs{
      {"strides", strides}, {"dilations", dilations}, {"group", group}};
  if (random.one_in(5))
    attrs.emplace_back("auto_pad", std::string(random.one_in(2) ? "SAME_UPPER" : "SAME_LOWER"));
  else
    attrs.emplace_back("pads", pads);
  std::vector<ValueId> operands{
      x, m.constant(random.weights({filters, in[1] / group, kernel[0], kernel[1]}))};
  if (random.one_in(2)) operands.push_back(m.constant(random.tensor({filters})));
  return m.node("Conv", operands, attrs);
}

/// The group as the backend sees it: constants among the inputs.
struct TileSetup {
  Body body;
  Harness h{"Conv"};
  Target target;

  TileSetup(const TileModel& m, bool wide, int64_t l2_bytes, Layout x_layout)
      : body(make_body(m.graph, m.graph.order())), target(target_of(wide)) {
    target.l2_bytes = l2_bytes;
    h.ops = &operators();
    h.target = &target;
    size_t next = 0;
    for (ValueId v : body.inputs) {
      if (const Tensor* c = m.graph.constant(v))
        h.constant(*c);
      else
        h.input(m.inputs[next], next == 0 ? x_layout : Layout::channels_last), ++next;
    }
    h.output(DType::f32, *constant_shape(*m.graph.value(m.graph.outputs()[0]).type.shape),
             Layout::channels_last);
  }
  Applicable<KernelPtr> make() {
    static const Graph* graph;  // a factory has no state
    graph = &body.graph;
    return h.make([](Context& context, const KernelCall& call) {
      KernelCall whole = call;
      whole.graph = graph;
      return make_window_chain(context, whole);
    });
  }
};

/// Whether the contract takes the group; then what is computed must be right.
bool check_tiles(const TileModel& m, std::string_view contract, Random& random) {
  const bool wide = __builtin_cpu_supports("avx512f") && random.one_in(2);
  const Accept a = accepts(m.graph, m.graph.order(), {}, contract, target_of(wide), operators());
  if (a.truth != Truth::yes) {
    const bool known = a.reason.find("only padding") != a.reason.npos ||
                       a.reason.find("ceil_mode") != a.reason.npos;
    CHECK_MESSAGE(known, a.reason);
    return false;
  }
  Limits limits;
  InterpreterOptions options;
  options.ops = &operators();
  options.limits = &limits;
  auto want = interpret(m.graph, m.inputs, options);
  REQUIRE(want.has_value());
  const int before = threads();
  set_threads(static_cast<int>(random(1, 3)));
  const bool plain = m.inputs[0].dims()[1] <= 4 && random.one_in(2);
  TileSetup s(m, wide, random.of<int64_t>({1024, 8192, 65536, 1 << 20}),
              plain ? Layout::plain : Layout::channels_last);
  auto kernel = s.make();
  REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
  for (int round = 0; round < 2; ++round) {  // what is left in the buffers does not matter
    REQUIRE((*kernel)->run().has_value());
    const Difference d = compare(s.h.result(), (*want)[0], model_tolerance(DType::f32));
    INFO((*kernel)->text());
    CHECK_MESSAGE(d.ok, d.text);
  }
  set_threads(before);
  return true;
}

bool conv_pool_case(Random& random) {
  TileModel m;
  const int64_t channels = random.one_in(3) ? random(1, 4) : random(1, 24);
  ValueId v = m.input("x", random.tensor({random(1, 3), channels, random(5, 40), random(5, 40)}));
  REQUIRE(m.infer());
  const bool depthwise = channels > 1 && random.one_in(5);
  const Dims kernel = random.one_in(2) ? Dims{3, 3} : Dims{random(1, 5), random(1, 5)};
  v = convolution(m, random, v, depthwise ? channels : random(1, 40), depthwise ? channels : 1,
                  kernel);
  if (!m.infer()) return false;
  v = tail(m, random, v);
  const Dims window{random(1, 4), random(1, 4)};
  const bool average = random.one_in(2), include = average && random.one_in(2);
  std::vector<std::pair<std::string, Attr>> attrs{{"kernel_shape", window},
                                                  {"strides", Dims{random(1, 4), random(1, 3)}}};
  Dims pads;
  for (size_t k = 0; k < 4; ++k) pads.push_back(random(0, window[k % 2] - 1));
  attrs.emplace_back("pads", pads);
  attrs.emplace_back("ceil_mode", int64_t{random.one_in(3)});
  if (average) attrs.emplace_back("count_include_pad", int64_t{include});
  m.graph.add_output(m.node(average ? "AveragePool" : "MaxPool", {v}, attrs));
  if (!m.infer() || m.dims(m.graph.outputs()[0]).empty() ||
      numel(m.dims(m.graph.outputs()[0])) <= 0)
    return false;
  return check_tiles(m, "conv_pool", random);
}

bool separable_case(Random& random) {
  TileModel m;
  const int64_t channels = random(2, 70);
  ValueId v = m.input("x", random.tensor({random(1, 3), channels, random(5, 40), random(5, 40)}));
  REQUIRE(m.infer());
  v = convolution(m, random, v, channels, channels,
                  random.one_in(2) ? Dims{3, 3} : Dims{random(1, 5), random(1, 5)});
  if (!m.infer()) return false;
  v = tail(m, random, v);
  REQUIRE(m.infer());
  const int64_t filters = random(1, 80);
  std::vector<ValueId> operands{v, m.constant(random.weights({filters, channels, 1, 1}))};
  if (random.one_in(2)) operands.push_back(m.constant(random.tensor({filters})));
  v = m.node("Conv", operands);
  m.graph.add_output(tail(m, random, v));
  REQUIRE(m.infer());
  return check_tiles(m, "depthwise_pointwise", random);
}

}  // namespace

TEST_CASE("convolutions and pooling of random forms") {
  Random random(5);
  int run = 0;
  for (int k = 0; k < 250; ++k) {
    CAPTURE(k);
    run += conv_pool_case(random);
  }
  CHECK(run > 150);
}

TEST_CASE("depthwise and 1x1 convolutions of random forms") {
  Random random(6);
  int run = 0;
  for (int k = 0; k < 200; ++k) {
    CAPTURE(k);
    run += separable_case(random);
  }
  CHECK(run > 150);
}

namespace {

/// A convolution of one pixel's width and a pooling, changed by the caller.
TileModel pair_of(const std::vector<std::pair<std::string, Attr>>& conv,
                  const std::vector<std::pair<std::string, Attr>>& pool,
                  const std::string& op = "MaxPool", const Dims& x = {1, 2, 8, 8}) {
  TileModel m;
  Random random(7);
  Dims w{3, x[1], 1, 1};
  w.resize(x.size(), 1);
  ValueId v = m.node("Conv", {m.input("x", random.tensor(x)), m.constant(random.tensor(w))}, conv);
  m.graph.add_output(m.node(op, {v}, pool));
  REQUIRE(m.infer());
  return m;
}
std::string refused(const TileModel& m, Target target = target_of(true)) {
  const Accept a = accepts(m.graph, m.graph.order(), {}, "conv_pool", target, operators());
  CHECK(a.truth == Truth::no);
  return a.reason;
}
bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("a convolution and pooling that have no kernel together are refused with the reason") {
  const Dims two{2, 2}, one_each{1, 1, 1, 1};
  CHECK(has(refused(pair_of({}, {{"kernel_shape", Dims{2}}}, "MaxPool", {1, 2, 8})), "rank 3"));
  CHECK(has(refused(pair_of({}, {{"kernel_shape", two}, {"dilations", two}})), "dilations"));
  CHECK(has(refused(pair_of({{"pads", one_each}}, {{"kernel_shape", two}})), "only padding"));
  CHECK(
      has(refused(pair_of({}, {{"kernel_shape", two}, {"pads", Dims{0, 2, 0, 0}}}, "AveragePool")),
          "as large as a window"));
  Target small = target_of(true);
  small.l2_bytes = 256;
  CHECK(has(refused(pair_of({}, {{"kernel_shape", two}}), small), "half of the L2 cache"));
  Target none = target_of(true);
  none.contracts.erase("conv_pool");
  CHECK(has(refused(pair_of({}, {{"kernel_shape", two}}), none), "no conv_pool kernels"));
  TileModel constant = pair_of({}, {{"kernel_shape", two}});
  Random random(8);
  TileModel rows;
  ValueId v = rows.node("Conv", {rows.input("x", random.tensor({1, 2, 8, 8})),
                                 rows.constant(random.tensor({3, 2, 1, 1}))});
  v = rows.node("Add", {v, rows.constant(random.tensor({3, 8, 8}))});
  rows.graph.add_output(rows.node("MaxPool", {v}, {{"kernel_shape", two}}));
  REQUIRE(rows.infer());
  CHECK_FALSE(refused(rows).empty());
}

TEST_CASE("small work stays on one thread, and its kernels, too") {
  const int before = threads();
  set_threads(3);
  TileModel m = pair_of({}, {{"kernel_shape", Dims{2, 2}}});
  TileSetup s(m, false, 1 << 20, Layout::channels_last);
  auto kernel = s.make();
  REQUIRE(kernel.has_value());
  CHECK((*kernel)->run().has_value());
  CHECK(threads() == 3);
  set_threads(before);
}

}  // namespace ferrule::cpu::test
