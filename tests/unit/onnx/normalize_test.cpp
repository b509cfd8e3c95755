// Old models in the newest view: one case a row of the table; and what import does besides.
#include "engine/onnx/normalize.h"
#include "engine/graph/operator_name.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "engine/graph/text.h"
#include "engine/onnx/import.h"
#include "tests/support/paths.h"
#include "tests/unit/onnx/wire.h"

using namespace ferrule;

namespace {

/// The node lines of `body` (output y) under `opset`, without types; or the error.
std::string lines(const std::string& inputs, const std::string& body, int64_t opset) {
  ImportOptions options;
  options.text_opset = opset;
  auto r = import_text("g (" + inputs + ") => (float[] y) {\n" + body + "\n}", options);
  if (!r) return render(r.error());
  std::string out;
  for (NodeId n : r->graph.order()) {
    const Node& node = r->graph.node(n);
    out += (out.empty() ? "" : "; ") + node.op.text() + "(";
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Tensor* c = r->graph.constant(node.inputs[i]);
      std::string name = !node.inputs[i] ? "-"
                         : c             ? str(Attr(*c))
                                         : r->graph.value(node.inputs[i]).name;
      out += (i ? ", " : "") + name;
    }
    out += ")";
    for (const auto& [key, value] : node.attrs.items()) out += " " + key + "=" + str(value);
  }
  return out;
}

}  // namespace

TEST_CASE("normalize: attributes that became inputs") {
  CHECK(lines("float[1,2,1] x", "y = Squeeze<axes=[0]>(x)", 11) == "Squeeze(x, i64[1] {0})");
  CHECK(lines("float[2] x", "y = Unsqueeze<axes=[0,-1]>(x)", 11) == "Unsqueeze(x, i64[2] {0, -1})");
  CHECK(lines("float[2,3] x", "y = ReduceMean<axes=[1], keepdims=0>(x)", 11) ==
        "ReduceMean(x, i64[1] {1}) keepdims=0 noop_with_empty_axes=0");
  CHECK(lines("float[2,3] x", "y = ReduceMax(x)", 11) ==
        "ReduceMax(x) keepdims=1 noop_with_empty_axes=0");
  CHECK(lines("float[2,3] x", "y = ReduceSum<axes=[1]>(x)", 11) ==
        "ReduceSum(x, i64[1] {1}) keepdims=1 noop_with_empty_axes=0");
  CHECK(lines("float[4] x", "y, z = Split<split=[1,3]>(x)", 11) ==
        "Split(x, i64[2] {1, 3}) axis=0");
  CHECK(lines("float[4] x", "y, z = Split(x)", 13) == "Split(x) axis=0 num_outputs=2");
  CHECK(lines("float[4,4] x", "y = Slice<starts=[1], ends=[3], axes=[1]>(x)", 9) ==
        "Slice(x, i64[1] {1}, i64[1] {3}, i64[1] {1})");
  CHECK(lines("float[4] x", "y = Pad<pads=[1,2], value=0.5>(x)", 9) ==
        "Pad(x, i64[2] {1, 2}, f32[] {0.5}) mode=\"constant\"");
  CHECK(lines("float[4] x", "y = Pad<pads=[1,2], mode=\"edge\">(x)", 9) ==
        "Pad(x, i64[2] {1, 2}) mode=\"edge\"");
  CHECK(lines("float[4] x", "y = Clip<min=0.0, max=6.0>(x)", 9) ==
        "Clip(x, f32[] {0.0}, f32[] {6.0})");
  CHECK(lines("float[4] x", "y = Clip<max=6.0>(x)", 9) == "Clip(x, -, f32[] {6.0})");
  CHECK(lines("double[4] x", "z = Clip<min=0.5>(x) y = Cast<to=1>(z)", 9).substr(0, 20) ==
        "Clip(x, f64[] {0.5})");
  CHECK(lines("float[4] x", "y, i = TopK<k=2>(x)", 9) ==
        "TopK(x, i64[1] {2}) axis=-1 largest=1 sorted=1");
  CHECK(lines("float[4] x", "y = Dropout<ratio=0.25>(x)", 10) == "Dropout(x, f32[] {0.25})");
  CHECK(lines("float[4] x", "y = Dropout(x)", 13) == "Dropout(x)");
  CHECK(lines("float[4] x", "d, m = Dropout(x) y = Mul(d, m)", 7) ==
        "Dropout(x); Shape(x) start=0; ConstantOfShape(d_shape) value=f32[1] {1.0}; Mul(d, m)");
}

TEST_CASE("normalize: meanings that moved") {
  CHECK(lines("float[1,1,2,2] x",
              "s = Constant<value=float[4] {1.0,1.0,2.0,2.0}>() y = Upsample(x, s)", 9) ==
        "Resize(x, -, f32[4] {1.0, 1.0, 2.0, 2.0}) antialias=0 "
        "coordinate_transformation_mode=\"asymmetric\" "
        "cubic_coeff_a=-0.75 exclude_outside=0 extrapolation_value=0.0 "
        "keep_aspect_ratio_policy=\"stretch\" "
        "mode=\"nearest\" nearest_mode=\"floor\"");
  CHECK(lines("float[1,1,2,2] x", "y = Upsample<scales=[1.0,1.0,2.0,2.0], mode=\"linear\">(x)", 8)
            .find("Resize(x, -, f32[4] {1.0, 1.0, 2.0, 2.0})") == 0);
  CHECK(lines("float[1,1,2,2] x",
              "s = Constant<value=float[4] {1.0,1.0,2.0,2.0}>() y = Resize(x, s)", 10)
            .find("Resize(x, -, f32[4] {1.0, 1.0, 2.0, 2.0})") == 0);
  // Empty tensors stood for absent inputs, and the region is read in one mode only.
  CHECK(lines("float[1,1,2,2] x",
              "r = Constant<value=float[0] {}>() s = Constant<value=float[0] {}>() z = "
              "Constant<value=int64[4] {1,1,4,4}>()"
              "y = Resize(x, r, s, z)",
              11)
            .find("Resize(x, -, -, i64[4] {1, 1, 4, 4})") == 0);
  CHECK(lines("float[2,3,4] x", "y = Softmax<axis=2>(x)", 11) == "Softmax(x) axis=2");
  CHECK(lines("float[2,3,1] x", "y = Softmax(x)", 11) == "Softmax(x) axis=1");
  CHECK(
      lines("float[2,3,4] x", "y = Softmax(x)", 11) ==
      "Flatten(x) axis=1; Softmax(y_flat) axis=-1; Reshape(y_rows, i64[3] {2, 3, 4}) allowzero=0");
  CHECK(
      lines("float[0,3,4] x", "y = Softmax<axis=0>(x)", 11) ==
      "Flatten(x) axis=0; Softmax(y_flat) axis=-1; Reshape(y_rows, i64[3] {0, 3, 4}) allowzero=1");
  CHECK(lines("float[N,3,4] x", "y = LogSoftmax<axis=-2>(x)", 11) ==
        "Shape(x) start=0; Flatten(x) axis=1; LogSoftmax(y_flat) axis=-1; Reshape(y_rows, y_shape) "
        "allowzero=1");
  CHECK(lines("float[2,3] x", "y = Softmax(x)", 13) == "Softmax(x) axis=-1");
  CHECK(lines("float[1,2,4,4] x, float[2] s", "y = BatchNormalization<spatial=1>(x, s, s, s, s)",
              8) == "BatchNormalization(x, s, s, s, s) epsilon=1e-05 momentum=0.9 training_mode=0");
  CHECK(lines("float[1,2,4,4] x, float[2] s", "y = BatchNormalization<spatial=0>(x, s, s, s, s)", 8)
            .find("error[unsupported_operator]") == 0);
  CHECK(lines("float[2,3] b, float[3,4] a", "y = Einsum<equation=\"ca,ab\">(b, a)", 12) ==
        "Einsum(b, a) equation=\"ca,ab->bc\"");
  CHECK(lines("float[2,3] b, float[3,4] a", "y = Einsum<equation=\"...i, ij\">(b, a)", 12) ==
        "Einsum(b, a) equation=\"...i, ij->...j\"");
  CHECK(lines("float[2,3] x, int64[2,3] i", "y = Scatter(x, i, x)", 9) ==
        "ScatterElements(x, i, x) axis=0 reduction=\"none\"");
}

TEST_CASE("normalize: defaults") {
  CHECK(lines("float[1,3,8,8] x, float[4,3,3,3] w", "y = Conv(x, w)", 21) ==
        "Conv(x, w) auto_pad=\"NOTSET\" dilations=[1, 1] group=1 kernel_shape=[3, 3] pads=[0, 0, "
        "0, 0] strides=[1, 1]");
  CHECK(lines("float[1,3,8,8] x", "y = MaxPool<kernel_shape=[2,2]>(x)", 7) ==
        "MaxPool(x) auto_pad=\"NOTSET\" ceil_mode=0 dilations=[1, 1] kernel_shape=[2, 2] pads=[0, "
        "0, 0, 0] "
        "storage_order=0 strides=[1, 1]");
  CHECK(lines("float[1,3,8,8] x", "y = AveragePool<kernel_shape=[2,2], auto_pad=\"SAME_UPPER\">(x)",
              21)
            .find("pads=") == std::string::npos);
  CHECK(lines("float[2,3,4] x", "y = Transpose(x)", 21) == "Transpose(x) perm=[2, 1, 0]");
  CHECK(lines("float[2,3] x", "y = LeakyRelu(x)", 21) == "LeakyRelu(x) alpha=0.01");
  CHECK(lines("float[2,3] a, float[3,4] b", "y = Gemm(a, b)", 13) ==
        "Gemm(a, b) alpha=1.0 beta=1.0 transA=0 transB=0");
}

TEST_CASE("import: names of nodes") {
  auto r = import_text(
      "g (float[2] x) => (float[2] y) {\n a = Relu(x)\n [Relu_0] b = Relu(a)\n [twice] c = "
      "Neg(b)\n [twice] y = Neg(c)\n}");
  INFO((r ? std::string() : render(r.error())));
  REQUIRE(r);
  std::vector<std::string> names;
  for (NodeId n : r->graph.order()) {
    names.push_back(r->graph.node(n).name);
    CHECK(r->graph.node(n).origins == std::vector<std::string>{names.back()});
  }
  CHECK(names == std::vector<std::string>{"Relu_0_1", "Relu_0", "Neg_2", "Neg_3"});
}

TEST_CASE("import: initializers that are also inputs") {
  using namespace wire;
  std::string one("\0\0\x80\x3f", 4);
  std::string bytes =
      model(str(1, node("Add", {"x", "w"}, {"y"})) + str(5, tensor("w", 1, {1}, raw(one))) +
            in(value("x", 1, {2})) + in(value("w", 1, {1})) + out(value("y", 1, {2})));
  auto r = import_bytes(bytes);
  REQUIRE(r);
  CHECK(r->graph.inputs().size() == 1);
  CHECK(r->graph.constant(r->graph.find_value("w"))->at_f64(0) == 1);
  REQUIRE(r->notes.size() == 1);
  CHECK(r->notes[0].find("\"w\"") != std::string::npos);
  ImportOptions options;
  options.overridable = true;
  r = import_bytes(bytes, options);
  REQUIRE(r);
  CHECK(r->graph.inputs().size() == 2);
  CHECK(r->graph.constant(r->graph.find_value("w")) == nullptr);
  CHECK(r->defaults.at("w").at_f64(0) == 1);
}

TEST_CASE("import: functions are inlined with their attributes and defaults") {
  auto r = import_text(
      "<ir_version: 10, opset_import: [\"\" : 21, \"my\" : 1]>\n"
      "g (float[2] x) => (float[2] y) {\n [one] a = my.twice<slope=0.5>(x)\n y = my.twice(a)\n}\n"
      "<domain: \"my\", opset_import: [\"\" : 21]>\n"
      "twice <slope: float = 0.25> (v) => (w) {\n c = Constant<value=float[1] {2.0}>()\n m = "
      "Mul(v, c)\n"
      " w = LeakyRelu<alpha: float = @slope>(m)\n}");
  INFO((r ? std::string() : render(r.error())));
  REQUIRE(r);
  auto order = r->graph.order();
  REQUIRE(order.size() == 4);
  CHECK(r->graph.node(order[1]).op == "LeakyRelu");
  CHECK(r->graph.node(order[1]).attrs.f("alpha") == 0.5);
  CHECK(r->graph.node(order[3]).attrs.f("alpha") == 0.25);
  CHECK(r->graph.node(order[0]).name == "one/Mul_1");
  CHECK(r->graph.node(order[0]).origins == std::vector<std::string>{"one"});
  CHECK(r->graph.value(r->graph.outputs()[0]).name == "y");
}

TEST_CASE("import: operators that formulas describe") {
  const char* text = "g (float[2,1] x, float[3] z) => (float[] y) { y = Glow<q=1.0>(x, z) }";
  CHECK_FALSE(import_text(text));
  std::string dir = (std::filesystem::temp_directory_path() / "ferrule-glow-XXXXXX").string();
  REQUIRE(mkdtemp(dir.data()));
  std::filesystem::create_directory(dir + "/ops");
  std::ofstream(dir + "/ops/glow.yaml")
      << "ferrule: 1\nops:\n  - {op: Glow, in: [x, z], attrs: {q: 2.0}, expr: \"x * z + q\", "
         "source: test}\n";
  const auto ops = Semantics::load(std::span<const std::string>(&dir, 1));
  std::filesystem::remove_all(dir);
  REQUIRE_MESSAGE(ops, (ops ? std::string() : render(ops.error())));
  ImportOptions options;
  options.ops = &*ops;
  auto r = import_text(text, options);
  REQUIRE_MESSAGE(r, (r ? std::string() : render(r.error())));
  CHECK(str(r->graph.value(r->graph.outputs()[0]).type) == "f32[2,3]");
}

TEST_CASE("import: operators that are written in others become functions of the model") {
  std::string dir = (std::filesystem::temp_directory_path() / "ferrule-written-XXXXXX").string();
  REQUIRE(mkdtemp(dir.data()));
  std::filesystem::create_directory(dir + "/ops");
  const auto imported = [&](const std::string& body, const std::string& call,
                            const Limits& limits = {}) -> std::string {
    std::ofstream(dir + "/ops/mine.yaml")
        << "ferrule: 1\nfunctions:\n  - op: Mine\n    domain: my\n    in: [x, 'b?', 'xs...']\n"
           "    out: [y, z]\n    attrs: {k: 2, mode: \"soft\", p: optional, q: required}\n    "
           "body:\n"
        << body;
    const std::vector<std::string> dirs{rules_dir(), dir};
    const auto ops = Semantics::load(dirs);
    if (!ops) return render(ops.error());
    ImportOptions options;
    options.ops = &*ops;
    options.limits = &limits;
    auto r = import_text(
        "<ir_version: 10, opset_import: [\"\": 18, \"my\": 1]>\ng (float[2,3] x, float[3] b, "
        "float[2,3] c) => (float[] y) { " +
            call + " }",
        options);
    if (!r) return render(r.error());
    std::string out;
    for (NodeId n : r->graph.order()) {
      const Node& node = r->graph.node(n);
      if (node.op == "Identity") continue;  // results that the call does not want
      out += node.op.text() + " ";
      for (const auto& [name, a] : node.attrs.items())
        if (name == "alpha" || name == "axis") out += name + "=" + str(a) + " ";
    }
    return out;
  };
  const std::string z = "      - z = Identity(x)\n";
  const std::string plain = z + "      - y = Relu(x)\n";
  CHECK(imported(plain, "y = my.Mine<q = 1>(x)") == "Relu ");
  SUBCASE("choices are made by attributes and by what is there") {
    const std::string body =
        z +
        "      - {if: present(b) and mode == 'soft', then: 's = Add(x, b)', else: s = Neg(x)}\n"
        "      - {if: present(p), then: 'y = LeakyRelu<alpha: float = $(p)>(s)', else: "
        "['t = Abs(s)', 'y = Elu<alpha: float = $(k * 2 + q)>(t)']}\n";
    CHECK(imported(body, "y = my.Mine<q = 1>(x, b)") == "Add Abs Elu alpha=5.0 ");
    CHECK(imported(body, "y = my.Mine<q = 1, mode = \"hard\">(x, b)") == "Neg Abs Elu alpha=5.0 ");
    CHECK(imported(body, "y = my.Mine<q = 1, k = 3, p = 0.5>(x)") == "Neg LeakyRelu alpha=0.5 ");
  }
  SUBCASE("lists, ranks and results that are wanted") {
    const std::string body =
        z +
        "      - y = Concat<axis = $(x_rank - 1)>(x\n      - {for: i, below: count(xs), do: ', "
        "xs$(i)'}\n      - )\n";
    CHECK(imported(body, "y = my.Mine<q = 1>(x, , c, c)") == "Concat axis=1 ");
    CHECK(imported(z + "      - {if: present(z), then: y = Relu(x), else: y = Abs(x)}\n",
                   "y, w = my.Mine<q = 1>(x)") == "Relu ");
  }
  SUBCASE("a call inside a branch, and one of another") {
    CHECK(imported(plain +
                       "  - {op: Other, domain: my, in: [x], out: [y], body: 'v, w = my.Mine<q = "
                       "1>(x)\n\n      y = Neg(v)'}\n",
                   "y = my.Other(x)") == "Relu Neg ");
  }
  SUBCASE("what is wrong is said with its place") {
    const auto wrong = [&](const std::string& body, const std::string& call) {
      return imported(body, call);
    };
    const auto has = [](const std::string& text, const std::string& part) {
      INFO(text);
      CHECK(text.find(part) != text.npos);
    };
    has(wrong(plain, "y = my.Mine(x)"), "attribute q: it is missing");
    has(wrong(z + "      - 'y = Elu<alpha: float = $(nobody)>(x)'\n", "y = my.Mine<q = 1>(x)"),
        "mine.yaml:3:5: function Mine: \"nobody\" is no attribute");
    has(wrong(z + "      - 'y = Elu<alpha: float = $(k +>(x)'\n", "y = my.Mine<q = 1>(x)"),
        "without its closing parenthesis");
    has(wrong(z + "      - y = Elu<alpha = >(x\n", "y = my.Mine<q = 1>(x)"), "function Mine: ");
    has(wrong(z + "      - {if: k == 2, then: {refuse: two is too few}}\n",
              "y = my.Mine<q = 1>(x)"),
        "two is too few");
    has(wrong(z, "y = my.Mine<q = 1>(x)"), "is not produced by any node");
    has(wrong(z + "      - y, w = my.Mine<q = 1>(x)\n", "y = my.Mine<q = 1>(x)"), "calls itself");
    has(wrong(z + "      - {for: i, below: q, do: 'y$(i) = Relu(x)'}\n",
              "y = my.Mine<q = 9000000000000>(x)"),
        "the text grows beyond");
    Limits few;
    few.functions = 0;
    has(imported(plain, "y = my.Mine<q = 1>(x)", few), "the number of functions");
    has(wrong(plain + "  - {op: Mine, domain: my, in: [x], out: [y], body: y = Relu(x)}\n",
              "y = my.Mine<q = 1>(x)"),
        "is described at");
  }
  std::filesystem::remove_all(dir);
}

TEST_CASE("import: results that nobody reads are not asked for") {
  auto r = import_text(
      "g (float[2,3] x, float[3] s) => (float[] y) { y, mean, dev = LayerNormalization(x, s) }");
  REQUIRE_MESSAGE(r, (r ? std::string() : render(r.error())));
  CHECK(r->graph.node(r->graph.order()[0]).outputs.size() == 1);
  r = import_text("g (float[2,4] x) => (float[] y) { y, z = Split<axis = 1, num_outputs = 2>(x) }");
  REQUIRE_MESSAGE(r, (r ? std::string() : render(r.error())));
  CHECK(r->graph.node(r->graph.order()[0]).outputs.size() == 2);
}

TEST_CASE("import: every kind of constant") {
  for (const char* c : {"value=float[1] {1.0}", "value_float=1.0", "value_floats=[1.0]"}) {
    auto r = import_text(std::string("g (float[1] x) => (float[1] y) { c = Constant<") + c +
                         ">() y = Add(x, c) }");
    REQUIRE(r);
    CHECK(r->graph.live_nodes() == 1);
    CHECK(r->graph.constant(r->graph.input(r->graph.order()[0], 1))->at_f64(0) == 1);
  }
  for (const char* c : {"value_int=1", "value_ints=[1]"}) {
    auto r = import_text(std::string("g (int64[1] x) => (int64[1] y) { c = Constant<") + c +
                         ">() y = Add(x, c) }");
    REQUIRE(r);
    CHECK(r->graph.constant(r->graph.input(r->graph.order()[0], 1))->at_i64(0) == 1);
  }
  // A constant that is an output of the graph.
  auto r = import_text("g (float[1] x) => (float[1] y) { y = Constant<value_floats=[1.0]>() }");
  REQUIRE(r);
  CHECK(r->graph.constant(r->graph.outputs()[0])->at_f64(0) == 1);
}
