// Reduction against faults that are known: a model of many nodes holds one, and what is left must
// be it and little else.
#include "engine/reduce/reduce.h"
#include "engine/graph/operator_name.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "engine/reduce/edit.h"
#include "tests/unit/engine/kit.h"

using namespace ferrule;

namespace {

using reduce::Candidate;
using reduce::Check;
using reduce::Tensors;

reduce::Reduced reduced(const Graph& g, const Check& check, const Tensors& inputs = {},
                        double seconds = 60) {
  reduce::Options o;
  o.ops = &kit::ops();
  o.limits = &kit::limits();
  o.seconds = seconds;
  return kit::must(reduce::reduce(g, inputs, check, o));
}

/// A check of the graph alone.
Check of_graph(std::function<bool(const Graph&)> holds) {
  return [holds = std::move(holds)](const Candidate& c) -> Result<bool> { return holds(c.graph); };
}

bool any_node(const Graph& g, const std::function<bool(const Node&)>& f) {
  return std::ranges::any_of(g.order(), [&](NodeId n) { return f(g.node(n)); });
}
/// Some node of `op` with an operand that a node of `from` makes.
bool reads(const Graph& g, const std::string& op, const std::string& from) {
  return any_node(g, [&](const Node& n) {
    return n.op == op && std::ranges::any_of(n.inputs, [&](ValueId v) {
             return g.producer(v) && g.producer(v)->op == from;
           });
  });
}

/// A chain with side branches of `count` nodes over one shape; each operator is in it many times.
Graph chain(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text = "g (float[1,4,6,6] x) => (float[1,4,6,6] out) <float[4,4,1,1] W = {";
  for (int k = 0; k < 16; ++k) text += fmt::format("{}{}", k ? ", " : "", 0.1 * (k % 7) - 0.2);
  text += "}> {\n";
  std::vector<std::string> made = {"x"};
  auto pick = [&](size_t last) {
    return made[made.size() - 1 - random() % std::min(made.size(), last)];
  };
  static constexpr const char* kOne[] = {"Relu", "Sigmoid",  "Tanh", "Neg",
                                         "Abs",  "Softplus", "Sin",  "Cos"};
  static constexpr const char* kTwo[] = {"Add", "Mul", "Sub", "Max", "Min"};
  for (size_t k = 0; k < count; ++k) {
    const std::string y = k + 1 == count ? "out" : fmt::format("v{}", k), a = pick(2);
    switch (random() % 8) {
      case 0:
        text += fmt::format("  [n{}] {} = Conv ({}, W)\n", k, y, a);
        break;
      case 1:
        text += fmt::format("  [n{}] {} = Transpose <perm = [0, 1, 3, 2]> ({})\n", k, y, a);
        break;
      case 2:
        text += fmt::format("  [n{}] {} = Softmax <axis = {}> ({})\n", k, y, 1 + random() % 3, a);
        break;
      case 3:
      case 4:
        text += fmt::format("  [n{}] {} = {} ({}, {})\n", k, y, kTwo[random() % 5], a, pick(6));
        break;
      default:
        text += fmt::format("  [n{}] {} = {} ({})\n", k, y, kOne[random() % 8], a);
    }
    made.push_back(y);
  }
  return kit::graph(text + "}");
}

/// Whether `v` depends on a node of `op`.
bool depends(const Graph& g, ValueId v, const std::string& op, std::set<ValueId>& seen) {
  const Node* p = g.producer(v);
  if (!p || !seen.insert(v).second) return false;
  return p->op == op ||
         std::ranges::any_of(p->inputs, [&](ValueId x) { return depends(g, x, op, seen); });
}

/// The faults: each a property that a small part of a model has.
struct Fault {
  std::string name;
  std::function<bool(const Graph&)> holds;
};
std::vector<Fault> faults() {
  std::vector<Fault> out;
  static const char* const kOps[] = {"Relu", "Sigmoid", "Tanh", "Neg",     "Abs",
                                     "Add",  "Mul",     "Conv", "Softmax", "Transpose"};
  for (const char* a : kOps)
    for (const char* b : {"Conv", "Add", "Softmax"})
      out.push_back(
          {fmt::format("{} reads {}", a, b), [a, b](const Graph& g) { return reads(g, a, b); }});
  for (const char* op : kOps)
    out.push_back({fmt::format("a {} with two readers", op), [op](const Graph& g) {
                     return any_node(g, [&](const Node& n) {
                       return n.op == op && g.value(n.outputs[0]).uses.size() >= 2;
                     });
                   }});
  for (int64_t axis : {1, 2, 3})
    out.push_back({fmt::format("a Softmax over axis {}", axis), [axis](const Graph& g) {
                     return any_node(g, [&](const Node& n) {
                       return n.op == "Softmax" && n.attrs.i("axis") == axis;
                     });
                   }});
  for (const char* op : {"Conv", "Softmax", "Sin"})
    out.push_back({fmt::format("an Add far behind a {}", op), [op](const Graph& g) {
                     return any_node(g, [&](const Node& n) {
                       std::set<ValueId> seen;
                       return n.op == "Add" && depends(g, n.inputs[0], op, seen);
                     });
                   }});
  for (const char* op : {"Add", "Mul", "Max"})
    out.push_back(
        {fmt::format("a {} of a value and something made of it", op), [op](const Graph& g) {
           return any_node(g, [&](const Node& n) {
             const Node* p = n.op == op && n.inputs.size() == 2 ? g.producer(n.inputs[1]) : nullptr;
             return p && n.inputs[0] != n.inputs[1] &&
                    std::ranges::find(p->inputs, n.inputs[0]) != p->inputs.end();
           });
         }});
  return out;
}

}  // namespace

TEST_CASE("reduce: seeded faults in 120 nodes become at most 5 nodes, nearly always") {
  int seeded = 0, small = 0;
  uint32_t seed = 0;
  for (const Fault& f : faults()) {
    Graph g = chain(120, ++seed);
    while (!f.holds(g)) g = chain(120, seed += 1000);
    const reduce::Reduced r = reduced(g, of_graph(f.holds));
    INFO(f.name, ": ", to_text(r.graph));
    CHECK(f.holds(r.graph));
    CHECK(r.complete);
    ++seeded, small += r.nodes <= 5;
    if (r.nodes > 5) MESSAGE(f.name << ": " << r.nodes << " nodes\n" << to_text(r.graph));
  }
  MESSAGE(small << " of " << seeded << " faults are at most 5 nodes");
  CHECK(small * 100 >= seeded * 95);
}

TEST_CASE("reduce: 1000 nodes") {
  const Graph g = chain(1000, 7);
  const auto holds = [](const Graph& g) { return reads(g, "Neg", "Conv"); };
  REQUIRE(holds(g));
  const reduce::Reduced r = reduced(g, of_graph(holds));
  MESSAGE("1000 nodes -> " << r.nodes << " in " << r.checks << " checks, " << r.seconds << " s");
  CHECK(r.nodes == 2);
  CHECK(r.complete);
  CHECK(r.checks < 200);
}

TEST_CASE("reduce: the same again gives the same") {
  const Graph g = chain(60, 3);
  const auto holds = [](const Graph& g) {
    return any_node(g, [](const Node& n) { return n.op == "Softmax"; });
  };
  REQUIRE(holds(g));
  CHECK(reduced(g, of_graph(holds)).bytes == reduced(g, of_graph(holds)).bytes);
}

TEST_CASE("reduce: what is cut out of a run leaves its values") {
  const Graph g = chain(40, 5);
  std::mt19937 random(1);
  std::vector<float> x(144);
  for (float& v : x) v = static_cast<float>(random() % 2000) / 1000 - 1;
  // A failure that only the values show: some Mul gives a large result.
  auto largest = [](const Candidate& c, const char* op) {
    double most = 0;
    InterpreterOptions o;
    o.ops = &kit::ops(), o.limits = &kit::limits();
    o.on_node = [&](const Graph& of, NodeId n, const std::vector<Tensor>& out) {
      if (of.node(n).op == op)
        for (double v : out[0].to_f64()) most = std::max(most, std::abs(v));
    };
    std::vector<Tensor> in;
    for (ValueId v : c.graph.inputs()) in.push_back(c.inputs.at(c.graph.value(v).name));
    kit::must(interpret(c.graph, in, o));
    return most;
  };
  const Tensors inputs = {{"x", Tensor::of_f32({1, 4, 6, 6}, x)}};
  const std::string none;
  const double all = largest(Candidate{g, none, inputs}, "Mul");
  REQUIRE(all > 0);
  const reduce::Reduced r = reduced(
      g, [&](const Candidate& c) -> Result<bool> { return largest(c, "Mul") > all * 0.99; },
      inputs);
  CHECK(r.nodes == 1);
  CHECK(r.inputs.size() == r.graph.inputs().size());
  for (ValueId v : r.graph.inputs()) {
    const Tensor& t = r.inputs.at(r.graph.value(v).name);
    CHECK(constant_shape(*r.graph.value(v).type.shape) == t.dims());
  }
}

TEST_CASE("reduce: sizes shrink together") {
  const Graph g = kit::graph(
      R"(g (float[8,32,24,20] x, float[64,32,3,3] W, float[64] b) => (float[8,64,12,10] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, W, b)
    r = Relu (c)
    y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  })");
  const reduce::Reduced r =
      reduced(g, of_graph([](const Graph& g) { return reads(g, "Relu", "Conv"); }));
  CHECK(kit::ops_of(r.graph) == "Conv Relu");
  int64_t elements = 0;
  for (ValueId v : r.graph.inputs())
    elements += product(*r.graph.value(v).type.shape).value_or(1 << 20);
  INFO(to_text(r.graph));
  CHECK(elements == 1);  // a 1x1 kernel over one element, which is the kernel, too

  const reduce::Reduced wide =
      reduced(g, of_graph([](const Graph& g) {
                return any_node(g, [&](const Node& n) {
                  const Type& t = g.value(n.outputs[0]).type;
                  return n.op == "Conv" && t.shape && (*t.shape)[1].value_or(0) >= 48;
                });
              }));
  const Node* conv = wide.graph.producer(wide.graph.outputs()[0]);
  CHECK(str(wide.graph.value(conv->inputs[1]).type) == "f32[48,1,1,1]");
}

TEST_CASE("reduce: sizes in shapes and attributes go along") {
  const Graph g = kit::graph(R"(g (float[6,32] x) => (float[6,16] a, float[6,16] b)
      <int64[3] s = {6, 4, 8}, int64[2] parts = {16, 16}, int64[2] flat = {6, 32}> {
    h = Reshape (x, s)
    e = Exp (h)
    f = Reshape (e, flat)
    a, b = Split <axis = 1> (f, parts)
  })");
  const reduce::Reduced r = reduced(g, of_graph([](const Graph& g) {
                                      return reads(g, "Exp", "Reshape") &&
                                             reads(g, "Reshape", "Exp") &&
                                             reads(g, "Split", "Reshape");
                                    }));
  int64_t elements = 1;
  for (ValueId v : r.graph.inputs())
    elements *= product(*r.graph.value(v).type.shape).value_or(1 << 20);
  INFO(to_text(r.graph));
  CHECK(r.nodes == 4);
  CHECK(elements <= 8);
}

TEST_CASE("reduce: branches and loop bodies come out") {
  const Graph g = kit::graph(R"(g (bool c, float[4] x) => (float[4] y) {
    t = Abs (x)
    u = If (c) <then_branch = a () => (float[4] q) { p = Relu (t) q = Exp (p) }, else_branch = b () => (float[4] r) { r = Neg (t) }>
    y = Sin (u)
  })");
  const auto pair = [](const Graph& g) { return reads(g, "Exp", "Relu"); };
  const auto anywhere = [&](const Graph& g) {
    std::function<bool(const Graph&)> in = [&](const Graph& g) {
      return pair(g) || any_node(g, [&](const Node& n) {
               return std::ranges::any_of(n.subgraphs,
                                          [&](const auto& s) { return in(*s.second); });
             });
    };
    return in(g);
  };
  CHECK(kit::ops_of(reduced(g, of_graph(anywhere)).graph) == "Relu Exp");

  const Graph loop = kit::graph(R"(g (float[4] x) => (float[4] y) <int64 n = {3}, bool go = {1}> {
    y = Loop (n, go, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) { d = Identity (c) p = Relu (v) w = Exp (p) }>
  })");
  CHECK(kit::ops_of(reduced(loop, of_graph(anywhere)).graph) == "Relu Exp");

  // Where the failure is the loop itself, its body is what shrinks.
  const auto looped = [](const Graph& g) {
    return any_node(g, [](const Node& n) {
      return !n.subgraphs.empty() && reads(*n.subgraphs[0].second, "Exp", "Relu");
    });
  };
  const Graph longer = kit::graph(R"(g (float[4] x) => (float[4] y) <int64 n = {3}, bool go = {1}> {
    y = Loop (n, go, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
      d = Identity (c) a = Sin (v) p = Relu (a) q = Exp (p) r = Tanh (q) w = Neg (r) }>
  })");
  CHECK(reduced(longer, of_graph(looped)).nodes <= 4);
}

TEST_CASE("reduce: optional operands, results and attributes go") {
  const Graph g = kit::graph(
      R"(g (float[1,2,5,5] x, float[2,2,3,3] W, float[2] b) => (float[1,2,2,2] y, float[1,2,2,2] z)
      <float low = {-1.0}, float high = {1.0}> {
    c = Conv <pads = [1, 1, 1, 1], dilations = [1, 1]> (x, W, b)
    k = Clip (c, low, high)
    y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (k)
    z = Cast <to = 1> (i)
  })");
  const reduce::Reduced r =
      reduced(g, of_graph([](const Graph& g) {
                return reads(g, "Clip", "Conv") && reads(g, "MaxPool", "Clip");
              }));
  INFO(to_text(r.graph));
  CHECK(r.nodes == 3);
  CHECK(r.graph.inputs().size() == 1);  // the kernel is no other
  CHECK(r.graph.outputs().size() == 1);
  CHECK(any_node(r.graph, [](const Node& n) { return n.op == "Clip" && n.inputs.size() == 1; }));
  CHECK(
      any_node(r.graph, [](const Node& n) { return n.op == "MaxPool" && n.outputs.size() == 1; }));
}

TEST_CASE("reduce: what cannot begin, and what ends early") {
  const Graph g = chain(30, 1);
  reduce::Options o;
  o.ops = &kit::ops();
  auto absent = reduce::reduce(g, {}, of_graph([](const Graph&) { return false; }), o);
  REQUIRE(!absent);
  CHECK(absent.error().message.find("does not find the failure") != std::string::npos);
  auto broken = reduce::reduce(
      g, {},
      [](const Candidate& c) -> Result<bool> {
        if (c.graph.live_nodes() < 30) return error(Code::usage, "check", std::string("it broke"));
        return true;
      },
      o);
  REQUIRE(!broken);
  CHECK(broken.error().message.find("it broke") != std::string::npos);
  const reduce::Reduced stopped = reduced(g, of_graph([](const Graph&) { return true; }), {}, 0.0);
  CHECK(!stopped.complete);
  CHECK(stopped.nodes == 30);
}
