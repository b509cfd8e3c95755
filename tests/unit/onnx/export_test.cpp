#include "engine/onnx/export.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/onnx/import.h"

using namespace ferrule;
namespace fs = std::filesystem;

namespace {

Imported read(const char* text) {
  auto r = import_text(text);
  INFO((r ? std::string() : render(r.error())));
  REQUIRE(r);
  return std::move(*r);
}

Imported again(const Graph& g, const ExportOptions& options = {}) {
  auto bytes = export_bytes(g, options);
  INFO((bytes ? std::string() : render(bytes.error())));
  REQUIRE(bytes);
  auto r = import_bytes(*bytes);
  INFO((r ? std::string() : render(r.error())));
  REQUIRE(r);
  return std::move(*r);
}

/// A graph of one group: y = last(2 * x), and z = x passed through.
Graph grouped(const char* last = "Relu", const Type& t = {DType::f32, Shape{2}}) {
  Graph g;
  g.name = "g";
  ValueId x = g.add_input("x", t);
  auto body = std::make_shared<Graph>();
  ValueId bx = body->add_input("x", t),
          two = body->add_constant("c", Tensor::scalar(t.dtype, 2, {1}));
  auto add = [&](const char* op, std::vector<ValueId> in, const char* out) {
    Node n;
    n.op = op;
    n.inputs = std::move(in);
    n.outputs = {body->add_value(out, t)};
    ValueId v = n.outputs[0];
    body->add_node(std::move(n));
    return v;
  };
  body->add_output(add(last, {add("Mul", {bx, two}, "m")}, "r"));
  body->add_output(bx);
  Node n;
  n.op = "group.pointwise";
  n.domain = "ferrule";
  n.name = "mul + relu";
  n.rule = "pointwise";
  n.inputs = {x};
  n.outputs = {g.add_value("y", t), g.add_value("z", t)};
  n.body = body;
  g.add_node(std::move(n));
  g.add_output(g.find_value("y"));
  g.add_output(g.find_value("z"));
  REQUIRE(verify(g));
  return g;
}

}  // namespace

TEST_CASE("export: what goes out comes back the same") {
  for (const char* text :
       {"g (float[1,3,H,W] x, float[8,3,3,3] w) => (float[] y) { a = Conv<pads=[1,1,1,1]>(x, w) y "
        "= Relu(a) }",
        "g (float[N,4] x) => (float[] y) { s = Constant<value_ints=[0,2,2]>() y = Reshape(x, s) }",
        "g (float[4] x) => (float[] y) { m = Constant<value_float=6.0>() y = Clip(x, \"\", m) }",
        "g (bool c, float[N,4] x) => (float[] y) { t = Abs(x) y = If(c) <then_branch = a () => "
        "(float[] q) { q = Relu(t) }, "
        "else_branch = b () => (float[] r) { r = Neg(x) }> }",
        "g (float[2] x) => (float[] y) { h = Cast<to=10>(x) y = Cast<to=1>(h) }"}) {
    CAPTURE(text);
    Imported first = read(text);
    Imported second = again(first.graph);
    CHECK(to_text(second.graph) == to_text(first.graph));
    CHECK(second.opsets.at("") == 21);
  }
}

TEST_CASE(
    "export: a pool whose sizes ONNX infers wrongly up to version 21 is written in a later one") {
  for (const auto& [attributes, opset] :
       {std::pair{"kernel_shape=[3,1], strides=[1,3]", 22},
        {"kernel_shape=[3,1], strides=[1,3], auto_pad=\"VALID\"", 22},
        {"kernel_shape=[1,3], strides=[2,2], pads=[0,0,2,0]", 22},
        {"kernel_shape=[2,2], strides=[2,2]", 21},
        {"kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]", 21}}) {
    CAPTURE(attributes);
    const std::string text =
        fmt::format("g (float[1,1,7,6] x) => (float[] y) {{ y = AveragePool<ceil_mode=1, {}>(x) }}",
                    attributes);
    Imported first = read(text.c_str());
    Imported second = again(first.graph);
    CHECK(to_text(second.graph) == to_text(first.graph));
    CHECK(second.opsets.at("") == opset);
  }
}

TEST_CASE("export: groups become their bodies, or functions") {
  Graph g = grouped();
  Imported plain = again(g);
  CHECK(plain.graph.find_value("y").valid());
  CHECK(to_text(plain.graph).find("Mul") != std::string::npos);
  CHECK(plain.graph.live_nodes() == 3);  // Mul, Relu, Identity for the input that passes
  ExportOptions options;
  options.functions = true;
  auto bytes = export_bytes(g, options);
  REQUIRE(bytes);
  CHECK(bytes->find("made by rule pointwise") != std::string::npos);
  Imported functions = again(g, options);
  CHECK(functions.graph.live_nodes() == 3);
  CHECK(functions.graph.node(functions.graph.order()[0]).origins ==
        std::vector<std::string>{"mul + relu"});
  // Tools that infer types within functions, such as ONNX Runtime, do not load one with this
  // operator: ONNX types its body without its default axes, and for f32 alone.
  const Type image{DType::f16, Shape{1, 2, 3, 3}};
  for (const char* op : {"Relu", "MeanVarianceNormalization"}) {
    bytes = export_bytes(grouped(op, image), options);
    REQUIRE(bytes);
    CHECK((bytes->find("made by rule pointwise") != std::string::npos) ==
          (op == std::string("Relu")));
  }
}

TEST_CASE("export: files appear whole, and replace nothing unasked") {
  std::string folder = (fs::temp_directory_path() / "ferrule_test_XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()));
  Imported m = read(
      "g (float[2] x) => (float[] y) { c = Constant<value_floats=[1.0,2.0]>() y = Add(x, c) }");
  std::string path = folder + "/m.onnx";
  REQUIRE(export_file(m.graph, path));
  CHECK(import_file(path));
  auto refused = export_file(m.graph, path);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::file_exists);
  ExportOptions force;
  force.force = true;
  CHECK(export_file(m.graph, path, force));
  auto nowhere = export_file(m.graph, folder + "/none/m.onnx");
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().code == Code::file_not_written);
  // Large weights beside the model.
  Graph big;
  big.name = "big";
  ValueId x = big.add_input("x", {DType::f32, Shape{1000}});
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Node n;
  n.op = "Add";
  n.inputs = {x, big.add_constant("w", Tensor::of_f32({1000}, values))};
  n.outputs = {big.add_value("y", {DType::f32, Shape{1000}})};
  big.add_node(std::move(n));
  big.add_output(big.find_value("y"));
  ExportOptions external;
  external.inline_bytes = 100;
  REQUIRE(export_file(big, folder + "/big.onnx", external));
  CHECK(fs::exists(folder + "/big.onnx.data"));
  auto back = import_file(folder + "/big.onnx");
  REQUIRE(back);
  CHECK(back->graph.constant(back->graph.find_value("w"))->at_f64(999) == 999);
  size_t files = 0;
  for ([[maybe_unused]] const auto& e : fs::directory_iterator(folder)) ++files;
  CHECK(files == 3);  // no temporary is left
  fs::remove_all(folder);
}
