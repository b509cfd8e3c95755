#include "engine/graph/graph.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "engine/base/result.h"
#include "engine/graph/operator_name.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"

using namespace ferrule;

namespace {

Type f32(Shape s) { return {DType::f32, std::move(s)}; }

/// Adds `op(inputs)` with one output named `out`; the output's id.
ValueId add(Graph& g, const char* op, std::vector<ValueId> in, const char* out) {
  Node n;
  n.op = op;
  n.inputs = std::move(in);
  ValueId v = g.add_value(out, f32({2, 3}));
  n.outputs = {v};
  g.add_node(std::move(n));
  return v;
}

void check_fine(const Graph& g) {
  auto s = verify(g);
  INFO((s ? std::string() : render(s.error())));
  CHECK(s);
}

}  // namespace

TEST_CASE("graph: nodes record producers and uses") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  ValueId a = add(g, "Relu", {x}, "a");
  ValueId b = add(g, "Add", {a, a}, "b");
  g.add_output(b);
  CHECK(g.value(a).uses.size() == 2);
  CHECK(g.producer(b)->op == "Add");
  CHECK(g.producer(x) == nullptr);
  CHECK(g.find_value("a") == a);
  CHECK(g.find_node("Relu_a").valid());
  CHECK_FALSE(g.find_value("nope").valid());
  CHECK(g.live_nodes() == 2);
  check_fine(g);
}

TEST_CASE(
    "graph: what refers to a node or value holds while others come and go, and when the graph is "
    "moved") {
  for (const size_t reserved : {0, 1, 100, 10000}) {
    CAPTURE(reserved);
    Graph g;
    g.reserve(reserved, reserved);
    const ValueId x = g.add_input("x", f32({2, 3}));
    std::vector<const Node*> nodes;
    std::vector<const Value*> values;
    ValueId last = x;
    for (int k = 0; k < 3000; ++k) {
      last = add(g, "Relu", {last}, ("v" + std::to_string(k)).c_str());
      nodes.push_back(g.producer(last));
      values.push_back(&g.value(last));
    }
    g.add_output(last);
    const Graph moved = std::move(g);
    CHECK(moved.node_slots() == 3000);
    bool same = true;
    for (uint32_t k = 0; k < 3000; ++k)
      same = same && nodes[k] == &moved.node({k}) && values[k] == &moved.value({k + 1});
    CHECK(same);
    CHECK(values[1234]->name == "v1234");
    check_fine(moved);
    auto copy = moved.clone();
    CHECK(to_text(*copy) == to_text(moved));
    add(*copy, "Relu", {last}, "more");
    check_fine(*copy);
  }
}

namespace {
/// How a process ends that runs `f`.
template <class F>
int exit_code_of(F&& f) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
    f();
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
}  // namespace

TEST_CASE("graph: a list that changes under a loop over it is an internal error") {
  Graph g;
  const ValueId x = g.add_input("x", f32({2, 3}));
  const ValueId a = add(g, "Relu", {x}, "a"), b = add(g, "Add", {a, a}, "b");
  g.add_output(b);
  const NodeId n = g.value(b).producer;
  const int bug = static_cast<int>(Exit::bug);
  auto inputs = [&](size_t slot, ValueId to) {
    return exit_code_of([&] {
      for ([[maybe_unused]] ValueId v : g.node(n).inputs) g.set_input(n, slot, to);
    });
  };
  CHECK(inputs(1, x) == 0);
  CHECK(inputs(200, x) == bug);
  CHECK(inputs(1, {}) == bug);  // shorter by one
  CHECK(inputs(2, x) == bug);
  CHECK(exit_code_of([&] {
          for (const Use& u : g.value(a).uses) g.set_input(u.node, static_cast<size_t>(u.slot), x);
        }) == bug);
  CHECK(exit_code_of([&] {
          g.add_output(a);
          for (ValueId v : g.outputs()) g.add_output(v);
        }) == bug);
}

TEST_CASE("graph: names are found among many that came, went and changed") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  std::vector<ValueId> kept;
  for (int k = 0; k < 3000; ++k) {
    ValueId v = add(g, "Relu", {x}, ("v" + std::to_string(k)).c_str());
    if (k % 3 == 0)
      g.remove_node(g.value(v).producer);
    else
      kept.push_back(v);
    if (k % 3 == 1) g.rename(v, "w" + std::to_string(k));
  }
  size_t found = 0;
  for (int k = 0; k < 3000; ++k) {
    const std::string v = "v" + std::to_string(k), w = "w" + std::to_string(k);
    CHECK(g.find_value(v).valid() == (k % 3 == 2));
    CHECK(g.find_value(w).valid() == (k % 3 == 1));
    CHECK(g.find_node("Relu_" + v).valid() == (k % 3 != 0));
    if (ValueId id = g.find_value(k % 3 == 1 ? w : v)) found += id == kept[found];
  }
  CHECK(found == kept.size());
  check_fine(g);
  auto copy = g.clone();
  Graph moved = std::move(g);
  CHECK(moved.find_value("w1") == kept[0]);
  CHECK(copy->find_value("w1") == kept[0]);
  g = Graph();
  add(g, "Relu", {g.add_input("x", f32({2, 3}))}, "w1");
  CHECK(g.find_value("w1").valid());
  check_fine(*copy);
  check_fine(moved);
}

TEST_CASE("graph: one of many outputs gives way to another value, wherever it is listed") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  std::vector<ValueId> outputs;
  for (int k = 0; k < 200; ++k) {
    ValueId inner = add(g, "Relu", {x}, ("t" + std::to_string(k)).c_str());
    outputs.push_back(add(g, "Identity", {inner}, ("y" + std::to_string(k)).c_str()));
    g.add_output(outputs.back());
  }
  g.add_output(outputs[7]);  // a second time
  for (ValueId y : outputs) g.replace_uses(y, g.input(g.value(y).producer, 0));
  for (size_t k = 0; k < g.outputs().size(); ++k) {
    CHECK(g.value(g.outputs()[k]).name == "y" + std::to_string(k < 200 ? k : 7));
    CHECK(g.producer(g.outputs()[k])->op == "Relu");
  }
  CHECK(g.remove_dead() == 200);
  check_fine(g);
  ValueId last = add(g, "Neg", {x}, "z");
  g.set_output(0, last);
  g.replace_uses(last, add(g, "Abs", {x}, "u"));
  CHECK(g.producer(g.outputs()[0])->op == "Abs");
  CHECK(g.value(g.outputs()[0]).name == "z");
  CHECK(g.remove_dead() == 2);
  check_fine(g);
}

TEST_CASE("graph: nodes added and removed since the last sort take their place in the order") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  ValueId a = add(g, "Relu", {x}, "a"), b = add(g, "Neg", {a}, "b"), c = add(g, "Abs", {b}, "c");
  g.add_output(c);
  REQUIRE(g.sort());
  Node first;
  first.op = "Exp";
  first.inputs = {x};
  first.order = g.node(g.value(a).producer).order;
  ValueId e = g.add_value("e", f32({2, 3}));
  first.outputs = {e};
  g.add_node(std::move(first));
  g.set_input(g.value(c).producer, 0, e);
  g.remove_node(g.value(b).producer);
  std::string ops;
  for (NodeId n : g.order()) ops += g.node(n).op.text() + " ";
  CHECK(ops == "Relu Exp Abs ");
  CHECK(g.remove_dead() == 1);
  REQUIRE(g.sort());
  ops.clear();
  for (NodeId n : g.order()) ops += g.node(n).op.text() + " ";
  CHECK(ops == "Exp Abs ");
  check_fine(g);
}

TEST_CASE("graph: replacing uses keeps the name of an output") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  ValueId a = add(g, "Relu", {x}, "a");
  ValueId b = add(g, "Identity", {a}, "y");
  g.add_output(b);
  g.replace_uses(b, a);
  CHECK(g.outputs()[0] == a);
  CHECK(g.value(a).name == "y");
  CHECK(g.remove_dead() == 1);
  CHECK(g.live_nodes() == 1);
  check_fine(g);
}

TEST_CASE("graph: an output that repeats an input stays behind an Identity") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  ValueId a = add(g, "Relu", {x}, "y");
  g.add_output(a);
  g.replace_uses(a, x);
  g.remove_dead();
  REQUIRE(g.live_nodes() == 1);
  const Node* n = g.producer(g.outputs()[0]);
  REQUIRE(n);
  CHECK(n->op == "Identity");
  CHECK(g.value(g.outputs()[0]).name == "y");
  check_fine(g);
}

TEST_CASE("graph: dead nodes and constants go, chains of them too") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  ValueId c = g.add_constant("c", Tensor::of_f32({1}, {1}));
  ValueId a = add(g, "Add", {x, c}, "a");
  add(g, "Relu", {a}, "b");
  ValueId y = add(g, "Neg", {x}, "y");
  g.add_output(y);
  CHECK(g.remove_dead() == 2);
  CHECK_FALSE(g.find_value("c").valid());
  CHECK(g.live_nodes() == 1);
  check_fine(g);
}

TEST_CASE("graph: sort is stable and names a cycle") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  ValueId later = g.add_value("later", f32({2, 3}));
  ValueId y = add(g, "Add", {x, later}, "y");
  g.add_output(y);
  Node n;
  n.op = "Relu";
  n.inputs = {x};
  n.outputs = {later};
  NodeId relu = g.add_node(std::move(n));
  REQUIRE(g.sort());
  auto order = g.order();
  CHECK(g.node(order[0]).op == "Relu");
  CHECK(g.node(order[1]).op == "Add");
  check_fine(g);

  g.set_input(relu, 0, y);
  auto s = g.sort();
  REQUIRE_FALSE(s);
  CHECK(s.error().code == Code::graph_cycle);
  CHECK(s.error().message.find("Relu_later") != std::string::npos);
  CHECK(s.error().message.find("Add_y") != std::string::npos);
  CHECK_FALSE(verify(g));
}

TEST_CASE("graph: captures are uses, follow replacements and die with the node") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  ValueId cond = g.add_input("cond", {DType::boolean, Shape{}});
  ValueId a = add(g, "Relu", {x}, "a");
  auto branch = [&](const char* op) {
    auto sub = std::make_unique<Graph>();
    sub->name = op;
    ValueId in = sub->add_capture("a", f32({2, 3}), a);
    ValueId out = add(*sub, op, {in}, "r");
    sub->add_output(out);
    return sub;
  };
  Node n;
  n.op = "If";
  n.inputs = {cond};
  n.outputs = {g.add_value("y", f32({2, 3}))};
  n.subgraphs.emplace_back("then_branch", branch("Neg"));
  n.subgraphs.emplace_back("else_branch", branch("Abs"));
  NodeId iff = g.add_node(std::move(n));
  g.add_output(g.output(iff));
  CHECK(g.value(a).uses.size() == 1);
  CHECK(g.value(a).uses[0].slot == Use::kCapture);
  check_fine(g);

  auto copy = g.clone();
  check_fine(*copy);
  CHECK(to_text(*copy) == to_text(g));

  ValueId b = add(g, "Sqrt", {x}, "b");
  g.replace_uses(a, b);
  CHECK(g.value(a).uses.empty());
  REQUIRE(g.sort());
  check_fine(g);
  CHECK(g.remove_dead() == 1);
  check_fine(g);
  CHECK(copy->value(copy->find_value("a")).uses.size() == 1);  // the copy is its own
}

TEST_CASE("graph: many readers of one value") {
  Graph g;
  ValueId x = g.add_input("x", f32({2, 3}));
  std::vector<NodeId> nodes;
  auto add = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Node n;
      n.op = "Relu";
      n.inputs = {x};
      n.outputs = {g.add_value("")};
      nodes.push_back(g.add_node(std::move(n)));
    }
  };
  auto remove = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) g.remove_node(nodes[i]);
    nodes.erase(nodes.begin() + static_cast<long>(from), nodes.begin() + static_cast<long>(to));
  };
  add(20000);
  CHECK(g.value(x).uses.size() == 20000);
  remove(0, nodes.size());
  CHECK(g.value(x).uses.empty());
  check_fine(g);
  // Readers that come while there are fewer of them than there were.
  for (const int most : {20, 70, 130}) {
    for (const size_t fewer : {1, 20, 40, 60}) {
      add(most);
      remove(0, std::min(fewer, nodes.size()));
      add(5);
      remove(nodes.size() - 3, nodes.size());
      add(1);
      CHECK(g.value(x).uses.size() == nodes.size());
      check_fine(g);
      remove(0, nodes.size());
      CHECK(g.value(x).uses.empty());
    }
  }
}

TEST_CASE("verify: finds what is broken") {
  auto broken = [](const Graph& g, const char* what) {
    auto s = verify(g);
    REQUIRE_FALSE(s);
    CAPTURE(render(s.error()));
    CHECK(s.error().message.find(what) != std::string::npos);
  };
  {
    Graph g;
    ValueId x = g.add_value("x");
    g.add_output(x);
    broken(g, "produced by nothing");
  }
  {
    Graph g;
    ValueId x = g.add_input("x", f32({2, 3}));
    ValueId y = add(g, "Relu", {x}, "y");
    g.add_output(y);
    g.set_contents(y, std::vector<Dim>{1, 2});
    broken(g, "known elements");
  }
  {
    // A group whose body has another type than the node says.
    Graph g;
    ValueId x = g.add_input("x", f32({2, 3}));
    auto body = std::make_shared<Graph>();
    body->add_output(add(*body, "Relu", {body->add_input("x", f32({2, 3}))}, "y"));
    Node n;
    n.op = "group.pointwise";
    n.domain = "ferrule";
    n.inputs = {x};
    n.outputs = {g.add_value("y", f32({2, 4}))};
    n.body = body;
    g.add_node(std::move(n));
    g.add_output(g.find_value("y"));
    broken(g, "in its body");
  }
}

TEST_CASE("text: ONNX's syntax, stable") {
  Graph g;
  g.name = "g";
  ValueId x = g.add_input("x", f32({Dim::symbol("N"), 3}));
  ValueId w = g.add_constant("w", Tensor::of_f32({2}, {1, 0.5}));
  Node n;
  n.op = "Foo";
  n.domain = "my.ops";
  n.inputs = {x, ValueId{}, w};
  n.outputs = {g.add_value("a\nb", f32({Dim::symbol("N"), 3}))};
  n.attrs.set("axis", int64_t{-1});
  n.attrs.set("alpha", 1.0);
  n.attrs.set("mode", std::string("a\"b"));
  n.attrs.set("pads", std::vector<int64_t>{0, 1});
  g.add_node(std::move(n));
  g.add_output(g.find_value("a\nb"));
  CHECK(to_text(g) ==
        "g (float[N,3] x) => (float[N,3] \"a\\\\x0Ab\")\n"
        "  <float[2] w = {1.0, 0.5}>\n"
        "{\n"
        "  [\"Foo_a\\\\x0Ab\"] \"a\\\\x0Ab\" = my.ops.Foo <alpha = 1.0, axis = -1, mode = "
        "\"a\\\"b\", pads = [0, 1]> "
        "(x, \"\", w)  # f32[N,3]\n"
        "}\n");
  Graph small;
  small.add_input("q", {DType::i4, Shape{2}});
  small.add_input("r", {DType::f8e4m3fn, Shape{2}});
  CHECK(to_text(small).starts_with("graph (int4[2] q, float8e4m3fn[2] r)"));
}

TEST_CASE("attributes: numbers compare as ONNX stores them") {
  CHECK(same_attr(Attr(int64_t{1}), Attr(1.0)));
  CHECK(same_attr(Attr(0.1), Attr(static_cast<double>(0.1f))));
  CHECK_FALSE(same_attr(Attr(int64_t{1}), Attr(std::string("1"))));
  CHECK(same_attr(Attr(std::vector<int64_t>{}), Attr(std::vector<double>{})));
  CHECK_FALSE(same_attr(Attr(std::vector<int64_t>{1}), Attr(std::vector<int64_t>{1, 2})));
  CHECK(same_attr(Attr(Tensor::of_f32({1}, {2})), Attr(Tensor::of_f32({1}, {2}))));
  CHECK_FALSE(same_attr(Attr(Tensor::of_f32({1}, {2})), Attr(Tensor::of_f32({1}, {3}))));
}
