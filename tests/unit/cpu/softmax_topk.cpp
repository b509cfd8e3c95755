// A softmax and what is selected of it in one pass over the rows: against the interpreter, with
// rows that are longer and shorter than a block, equal elements, underflow, infinities and NaN.
#include "engine/contract/softmax_topk.h"

#include "engine/interpreter/interpreter.h"
#include "engine/proof/edit.h"
#include "runtime/parallel.h"
#include "tests/unit/codegen/rule_groups.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

using ferrule::test::group_by;

struct TopkCase {
  Tensor x;
  int64_t k = 1;
  std::string op = "Softmax";
  bool log = false, largest = true;

  Graph graph() const {
    Graph g;
    auto add = [&](std::string name, std::vector<ValueId> inputs, int outputs, auto&& attrs) {
      Node n;
      n.op = std::move(name);
      n.inputs = std::move(inputs);
      for (int i = 0; i < outputs; ++i) n.outputs.push_back(g.add_value(g.fresh_name("v")));
      attrs(n);
      return g.add_node(std::move(n));
    };
    auto last = [](Node& n) { n.attrs.set("axis", int64_t{-1}); };
    ValueId v = g.add_input("x", {DType::f32, Shape(x.dims().begin(), x.dims().end())});
    v = g.output(add(op, {v}, 1, last));
    if (log) v = g.output(add("Log", {v}, 1, [](Node&) {}));
    const ValueId count = g.add_constant("k", Tensor::of_i64({1}, std::vector<int64_t>{k}));
    const NodeId top = add("TopK", {v, count}, 2, [&](Node& n) {
      last(n);
      n.attrs.set("largest", int64_t{largest});
      n.attrs.set("sorted", int64_t{1});
    });
    for (size_t i = 0; i < 2; ++i) g.add_output(g.output(top, i));
    REQUIRE(infer_again(operators(), g).has_value());
    return g;
  }
};

struct Results {
  Tensor values, indices;
};

Results fused(const TopkCase& c) {
  static const Roles* roles;  // a factory has no state
  roles = group_by("softmax_topk", c.graph(), "cpu-avx2").roles.get();
  Harness h(c.op);
  h.input(c.x);
  Dims out = c.x.dims();
  out.back() = c.k;
  h.output(DType::f32, out);
  h.output(DType::i64, out);
  Tensor values = h.run([](Context& context, const KernelCall& call) {
    KernelCall whole = call;
    whole.roles = roles;
    return make_softmax_topk(context, whole);
  });
  return {values, h.result(1)};
}

Results unfused(const TopkCase& c) {
  const Graph g = c.graph();
  Limits limits;
  InterpreterOptions options;
  options.ops = &operators();
  options.limits = &limits;
  auto r = interpret(g, std::span(&c.x, 1), options);
  REQUIRE(r.has_value());
  return {(*r)[0], (*r)[1]};
}

/// The same values, and the same elements; elements that the interpreter's own rounding tells apart
/// or not may swap.
void check_topk(const TopkCase& c, bool exact) {
  CAPTURE(c.x.dims().back());
  CAPTURE(c.k);
  const Results got = fused(c), want = unfused(c);
  check_close(got.values, want.values.to_f64());
  int64_t differ = 0;
  for (int64_t i = 0; i < want.indices.numel(); ++i)
    differ += got.indices.at_i64(i) != want.indices.at_i64(i);
  CHECK(differ <= (exact ? 0 : want.indices.numel() / 100));
}

TopkCase random_topk(std::mt19937& engine) {
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  };
  TopkCase c;
  const int64_t n = pick(0, 3) == 0 ? pick(1, 3000) : pick(1, 90);
  c.x = random_tensor({pick(1, 3), pick(1, 4), n}, static_cast<unsigned>(engine()), -6, 6);
  c.k = std::min<int64_t>(n, pick(0, 2) == 0 ? n : pick(1, 12));
  const int64_t form = pick(0, 2);
  c.op = form == 1 ? "LogSoftmax" : "Softmax";
  c.log = form == 2;
  c.largest = pick(0, 2) != 0;
  return c;
}

/// The case with every element replaced.
template <class F>
TopkCase with(TopkCase c, F f) {
  std::vector<float> v;
  for (double d : c.x.to_f64())
    v.push_back(f(static_cast<float>(d), static_cast<int64_t>(v.size())));
  c.x = Tensor::of_f32(c.x.dims(), v);
  return c;
}

}  // namespace

TEST_CASE("the largest of a softmax, rows of random lengths") {
  std::mt19937 engine(3);
  const int before = threads();
  for (int round = 0; round < 150; ++round) {
    CAPTURE(round);
    set_threads(1 + round % 3);
    const TopkCase c = random_topk(engine);
    check_topk(c, false);
    // Few different numbers: equals come in the order of their indices.
    check_topk(with(c, [](float x, int64_t) { return std::round(x); }), true);
    // Numbers that are equal only after the exponential: all that is far below the largest is 0.
    if (!c.log && c.op == "Softmax")
      check_topk(with(c, [](float x, int64_t) { return 60 * std::round(x); }), true);
  }
  set_threads(before);
}

TEST_CASE("masked, infinite and undefined rows") {
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 engine(4);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const TopkCase c = random_topk(engine);
    check_topk(
        with(c, [&](float x, int64_t i) { return i % 3 == round % 3 ? -kInf : std::round(x); }),
        true);
    check_topk(with(c, [&](float, int64_t) { return -kInf; }), true);
    check_topk(with(c, [&](float x,
                           int64_t i) { return i == round % c.x.numel() ? kNan : std::round(x); }),
               true);
    check_topk(with(c, [&](float x,
                           int64_t i) { return i == round % c.x.numel() ? kInf : std::round(x); }),
               true);
  }
}

}  // namespace ferrule::cpu::test
