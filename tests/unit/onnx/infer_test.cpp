// Shapes and contents of single operators, from ONNX text; symbolic sizes stay expressions.
#include "engine/semantics/infer.h"
#include "engine/onnx/infer_onnx.h"

#include <doctest/doctest.h>

#include "engine/onnx/import.h"
#include "tests/support/paths.h"

using namespace ferrule;

namespace {

/// The shipped operators.
const Semantics& shipped() {
  static const Semantics ops = [] {
    const std::string rules[] = {rules_dir()};
    auto loaded = Semantics::load(rules, infer_by_schema);
    REQUIRE(loaded);
    return std::move(*loaded);
  }();
  return ops;
}

/// Type of output y of `body`; inputs as in `head`.
std::string type_of(const std::string& inputs, const std::string& body, int64_t opset = 21) {
  ImportOptions options;
  options.text_opset = opset;
  options.ops = &shipped();
  auto r = import_text("g (" + inputs + ") => (float[] y) {\n" + body + "\n}", options);
  if (!r) {
    // The declared type is a float; where the result is not, say so in the body's name.
    return "error: " + render(r.error());
  }
  return str(r->graph.value(r->graph.outputs()[0]).type);
}

std::string contents_of_y(const std::string& inputs, const std::string& body) {
  ImportOptions options;
  options.ops = &shipped();
  auto r = import_text("g (" + inputs + ") => (int64[] y) {\n" + body + "\n}", options);
  if (!r) return "error: " + render(r.error());
  auto c = contents_of(r->graph, r->graph.outputs()[0]);
  return c ? str(*c) : "unknown";
}

bool has(const std::string& text, const char* what) { return text.find(what) != std::string::npos; }

}  // namespace

TEST_CASE("functions know the ranks of operands that no value_info declares") {
  const std::string inputs = "float[2,3,4] x, float[4,12] w, float[12] b, int64[2,3] m, bool[2] c";
  const std::string call = "\n y = com.microsoft.Attention<num_heads = 2>(x, w, b, k)";
  const std::string refused = "error[unsupported_operator]";
  CHECK(type_of(inputs,
                "a = Constant<value = int64[1] {1}>() i = Cast<to = 6>(m) k = "
                "ReduceSum<keepdims = 0>(i, a)" +
                    call) == "f32[2,3,4]");
  // A constant that a run may replace decides nothing: then the rank is not known.
  CHECK(type_of(inputs + ", int64[n] a",
                "i = Cast<to = 6>(m) k = ReduceSum<keepdims = 0>(i, a)" + call)
            .find(refused) == 7);
  // Another branch may use a name for something else: this mask has lengths, that one is whole.
  const std::string attention = "com.microsoft.Attention<num_heads = 2>(x, w, b, k) }";
  CHECK(type_of("float[2,3,4] x, float[4,12] w, float[12] b, int64[2,3] m, bool c",
                "a = Constant<value = int64[1] {1}>() i = Cast<to = 6>(m) y = If(c) <then_branch = "
                "g () => (float[2,3,4] p) { k = Identity(i) p = " +
                    attention +
                    ", else_branch = g () => (float[2,3,4] q) { k = ReduceSum<keepdims = 0>(i, a) "
                    "q = " +
                    attention + ">") == "f32[2,3,4]");
}

TEST_CASE("infer: convolutions") {
  CHECK(type_of("float[1,3,H,W] x, float[8,3,3,3] w", "y = Conv<pads=[1,1,1,1]>(x, w)") ==
        "f32[1,8,H,W]");
  CHECK(type_of("float[1,3,H,W] x, float[8,3,3,3] w",
                "y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)") ==
        "f32[1,8,floordiv(H+1,2),floordiv(W+1,2)]");
  CHECK(type_of("float[N,3,H] x, float[8,3,3] w",
                "y = Conv<auto_pad=\"SAME_UPPER\", strides=[2]>(x, w)") ==
        "f32[N,8,floordiv(H+1,2)]");
  CHECK(type_of("float[1,4,9,9,9] x, float[8,2,3,3,3] w",
                "y = Conv<group=2, dilations=[2,1,1]>(x, w)") == "f32[1,8,5,7,7]");
  CHECK(has(type_of("float[1,3,8,8] x, float[8,4,3,3] w", "y = Conv(x, w)"), "error[bad_shape]"));
  CHECK(has(type_of("float[1,3,2,2] x, float[8,3,3,3] w", "y = Conv(x, w)"), "does not fit"));
  CHECK(has(type_of("float[1,3,8,8] x, float[8,3,3,3] w", "y = Conv<strides=[0,1]>(x, w)"),
            "strides"));
  CHECK(has(type_of("float[1,3,8,8] x, float[8,3,3,3] w",
                    "y = Conv<pads=[9223372036854775807,0,0,0]>(x, w)"),
            "pads"));
  CHECK(has(type_of("float[1,3,8,8] x, float[8,3,3] w", "y = Conv(x, w)"), "error[bad_shape]"));
  CHECK(has(type_of("float[1,3,8,8] x, float[8,1,3,3] w", "y = Conv<group=3>(x, w)"), "3 groups"));
  CHECK(type_of("float[1,8,H,W] x, float[8,4,3,3] w",
                "y = ConvTranspose<strides=[2,2], group=2>(x, w)") == "f32[1,8,2*H+1,2*W+1]");
  CHECK(type_of("float[1,8,5,5] x, float[8,4,3,3] w",
                "y = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]>(x, w)") ==
        "f32[1,4,10,10]");
}

TEST_CASE("infer: slopes are spread over the data, bounds have one element") {
  CHECK(type_of("float[2,3] x, float[3] s", "y = PRelu(x, s)") == "f32[2,3]");
  CHECK(type_of("float[N,C,H] x, float[C,1] s", "y = PRelu(x, s)") == "f32[N,C,H]");
  CHECK(type_of("float[N,3] x, float[M,3] s", "y = PRelu(x, s)") == "f32[N,3]");
  CHECK(has(type_of("float[3] x, float[1,3] s", "y = PRelu(x, s)"), "does not broadcast to [3]"));
  CHECK(has(type_of("float[2,1] x, float[3] s", "y = PRelu(x, s)"), "error[bad_shape]"));
  CHECK(has(type_of("float x, float[1] s", "y = PRelu(x, s)"), "error[bad_shape]"));
  CHECK(type_of("float[N] x, float[1] lo, float[1,1] hi", "y = Clip(x, lo, hi)") == "f32[N]");
  CHECK(type_of("float x, float[1] lo", "y = Clip(x, lo)") == "f32[]");
  CHECK(type_of("float[3] x, float[N] hi", "y = Clip(x, , hi)") == "f32[3]");
  CHECK(
      has(type_of("float[3] x, float[3] hi", "y = Clip(x, , hi)"), "where one element is wanted"));
  CHECK(
      has(type_of("float[3] x, float[0] hi", "y = Clip(x, , hi)"), "where one element is wanted"));
}

TEST_CASE("infer: pooling") {
  CHECK(type_of("float[1,3,H,W] x", "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)") ==
        "f32[1,3,floordiv(H,2),floordiv(W,2)]");
  CHECK(type_of("float[1,3,7,7] x",
                "y = MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(x)") ==
        "f32[1,3,4,4]");
  // The third window would start in the padding: it is not counted.
  CHECK(type_of("float[1,1,4] x",
                "y = AveragePool<kernel_shape=[1], strides=[2], pads=[0,1], ceil_mode=1>(x)") ==
        "f32[1,1,2]");
  CHECK(type_of("float[N,3,H,W] x", "y = GlobalAveragePool(x)") == "f32[N,3,1,1]");
  CHECK(has(type_of("float[1,3,8] x", "y = MaxPool<kernel_shape=[2,2]>(x)"), "error[bad_shape]"));
}

TEST_CASE("infer: products") {
  CHECK(type_of("float[B,M,K] a, float[K,N] b", "y = MatMul(a, b)") == "f32[B,M,N]");
  CHECK(type_of("float[K] a, float[K] b", "y = MatMul(a, b)") == "f32[]");
  CHECK(type_of("float[K] a, float[B,K,N] b", "y = MatMul(a, b)") == "f32[B,N]");
  CHECK(has(type_of("float[2,3] a, float[4,5] b", "y = MatMul(a, b)"), "cannot be multiplied"));
  CHECK(type_of("float[1,M,K] a, float[2,K,N] b",
                "y = Einsum<equation=\"bmk, bkn -> bmn\">(a, b)") == "f32[2,M,N]");
  CHECK(type_of("float[3,1,K] a, float[2,K] b", "y = Einsum<equation=\"...k,...k->...\">(a, b)") ==
        "f32[3,2]");
  CHECK(type_of("float[M,K] a, float[K,N] b", "y = Einsum<equation=\"za,ab\">(a, b)") ==
        "f32[N,M]");
  for (const auto& [equation, what] :
       {std::pair{"ij,jk-", "unexpected character"},
        {"ij,jk->im", "label m of the result is not known or not unique"},
        {"ij->ij", "1 term for 2 inputs"},
        {"ijl,jk->ik", "its term"}}) {
    CAPTURE(equation);
    CHECK(has(type_of("float[2,3] a, float[3,5] b",
                      fmt::format("y = Einsum<equation=\"{}\">(a, b)", equation)),
              what));
  }
  CHECK(has(type_of("float[2,3] a, float[4,5] b", "y = Einsum<equation=\"ij,jk->ik\">(a, b)"),
            "under one label"));
  CHECK(type_of("float[K,M] a, float[N,K] b, float[N] c",
                "y = Gemm<transA=1, transB=1>(a, b, c)") == "f32[M,N]");
  CHECK(has(type_of("float[2,3] a, float[3,4] b, float[3] c", "y = Gemm(a, b, c)"),
            "cannot be added"));
}

TEST_CASE("infer: reshape follows computed shapes") {
  CHECK(type_of("float[N,C,H,W] x", "s = Constant<value_ints=[0,-1]>()\ny = Reshape(x, s)") ==
        "f32[N,C*H*W]");
  CHECK(type_of("float[N,6,W] x", "s = Constant<value_ints=[0,2,3,-1]>()\ny = Reshape(x, s)") ==
        "f32[N,2,3,W]");
  CHECK(type_of("float[N,C,H,W] x",
                "s = Shape(x)\n i = Constant<value_int=0>()\n n = Gather<axis=0>(s, i)\n a = "
                "Constant<value_ints=[0]>()\n"
                "u = Unsqueeze(n, a)\n m = Constant<value_ints=[-1]>()\n t = Concat<axis=0>(u, "
                "m)\n y = Reshape(x, t)") == "f32[N,C*H*W]");
  CHECK(has(type_of("float[2,3] x", "s = Constant<value_ints=[4,-1]>()\ny = Reshape(x, s)"),
            "cannot become"));
  CHECK(has(type_of("float[2,3] x", "s = Constant<value_ints=[-1,-1]>()\ny = Reshape(x, s)"),
            "twice"));
  CHECK(type_of("float[2,3] x, int64[3] s", "y = Reshape(x, s)").substr(0, 5) == "f32[?");
}

TEST_CASE("infer: selecting and moving") {
  CHECK(type_of("float[N,C,H,W] x", "y = Transpose<perm=[0,2,3,1]>(x)") == "f32[N,H,W,C]");
  CHECK(has(type_of("float[2,3] x", "y = Transpose<perm=[0,0]>(x)"), "error"));
  CHECK(has(type_of("float[2,3] x", "y = Transpose<perm=[0,-1]>(x)"), "error"));
  CHECK(type_of("float[N,A] a, float[N,B] b", "y = Concat<axis=-1>(a, b)") == "f32[N,A+B]");
  CHECK(has(type_of("float[2,3] a, float[3,3] b", "y = Concat<axis=1>(a, b)"), "error[bad_shape]"));
  std::string five =
      "s = Constant<value_ints=[1]>()\n e = Constant<value_ints=[5]>()\n a = "
      "Constant<value_ints=[1]>()\n";
  CHECK(type_of("float[2,8] x", five + "y = Slice(x, s, e, a)") == "f32[2,4]");
  CHECK(type_of("float[2,3] x", five + "y = Slice(x, s, e, a)") == "f32[2,2]");
  CHECK(type_of("float[2,8] x",
                five + "t = Constant<value_ints=[-1]>()\ny = Slice(x, e, s, a, t)") == "f32[2,4]");
  CHECK(has(
      type_of("float[2,8] x", five + "t = Constant<value_ints=[0]>()\ny = Slice(x, s, e, a, t)"),
      "step is 0"));
  CHECK(
      type_of("float[2,N] x",
              "s = Constant<value_ints=[1]>()\n e = Constant<value_ints=[9223372036854775807]>()\n"
              "a = Constant<value_ints=[1]>()\ny = Slice(x, s, e, a)") == "f32[2,max(0,N-1)]");
  CHECK(has(type_of("float[2,8] x", five + "t = Constant<value_int=0>()\ny = Slice(x, t, e, a)"),
            "not all lists"));
  CHECK(contents_of_y("float x",
                      five + "n = Constant<value_ints=[-1]>()\nz = Constant<value_ints=[0]>()\nh = "
                             "Shape(x)\ny = Slice(h, n, s, z, n)") == "[]");
  CHECK(type_of("float[6,N] x", "y, z = Split<axis=0, num_outputs=2>(x)") == "f32[3,N]");
  CHECK(type_of("float[N,7] x", "a, b, y = Split<axis=1, num_outputs=3>(x)") == "f32[N,1]");
  CHECK(type_of("float[V,D] x, int64[B,S] i", "y = Gather(x, i)") == "f32[B,S,D]");
  CHECK(has(type_of("float[3,2] x", "i = Constant<value_ints=[3]>()\ny = Gather(x, i)"),
            "out of range"));
  CHECK(
      type_of("float[N,3,H,W] x", "p = Constant<value_ints=[0,0,1,2,0,0,1,2]>()\ny = Pad(x, p)") ==
      "f32[N,3,H+2,W+4]");
  CHECK(type_of("float[N,1] x", "s = Constant<value_ints=[1,5]>()\ny = Expand(x, s)") ==
        "f32[N,5]");
  CHECK(type_of("float[N,2] x", "s = Constant<value_ints=[2,3]>()\ny = Tile(x, s)") ==
        "f32[2*N,6]");
  CHECK(type_of("float[1,3,H,W] x",
                "s = Constant<value_floats=[1.0,1.0,2.0,0.5]>()\ny = Resize(x, \"\", s)") ==
        "f32[1,3,2*H,floordiv(W,2)]");
  for (const char* roi : {"\"\"", "a"})  // a region has two numbers for each axis
    CHECK(
        has(type_of("float[1,1,H,W] x, float[4] a",
                    fmt::format("s = Constant<value_floats=[1.0,1.0,2.0,0.5]>()\ny = "
                                "Resize<coordinate_transformation_mode=\"tf_crop_and_resize\">(x, "
                                "{}, s)",
                                roi)),
            "error: "));
  CHECK(type_of("float[1,1,H,W] x, float[8] a",
                "s = Constant<value_floats=[1.0,1.0,2.0,0.5]>()\ny = "
                "Resize<coordinate_transformation_mode=\"tf_crop_and_resize\">(x, a, s)") ==
        "f32[1,1,2*H,floordiv(W,2)]");
  CHECK(type_of("float[N,8,H,W] x", "y = DepthToSpace<blocksize=2>(x)") == "f32[N,2,2*H,2*W]");
  CHECK(type_of("float[N,1,3] x", "a = Constant<value_ints=[-2]>()\ny = Squeeze(x, a)") ==
        "f32[N,3]");
  CHECK(has(type_of("float[N,2] x", "a = Constant<value_ints=[1]>()\ny = Squeeze(x, a)"),
            "is not 1"));
}

TEST_CASE("infer: reductions, norms and makers") {
  CHECK(type_of("float[N,C,H] x",
                "a = Constant<value_ints=[-1]>()\ny = ReduceMean<keepdims=0>(x, a)") == "f32[N,C]");
  CHECK(type_of("float[N,C,H] x", "y = ReduceSum(x)") == "f32[1,1,1]");
  CHECK(type_of("float[N,C,H] x", "y = ReduceSum<noop_with_empty_axes=1>(x)") == "f32[N,C,H]");
  CHECK(type_of("float[N,C] x, float[C] s, float[C] b", "y = LayerNormalization(x, s, b)") ==
        "f32[N,C]");
  CHECK(type_of("float[N,C] x", "y = Softmax<axis=1>(x)") == "f32[N,C]");
  CHECK(has(type_of("float[N,C] x", "y = Softmax<axis=2>(x)"), "out of range"));
  CHECK(type_of("float[N,9] x", "k = Constant<value_ints=[3]>()\ny, i = TopK(x, k)") == "f32[N,3]");
  CHECK(type_of("float[N,9] x", "s = Shape(x)\ny = ConstantOfShape(s)") == "f32[N,9]");
  CHECK(type_of("float[1099511627776] x", "s = Shape(x)\ny = ConstantOfShape(s)") ==
        "f32[1099511627776]");
}

TEST_CASE("infer: recurrent nets, whose weights fit each other") {
  const std::string x = "float[S,B,3] x, ", weights = "float[1,16,3] w, float[1,16,4] r";
  CHECK(type_of(x + weights, "y = LSTM<hidden_size=4>(x, w, r)") == "f32[S,1,B,4]");
  CHECK(type_of(x + weights, "z, y = LSTM<hidden_size=4>(x, w, r)") == "f32[1,B,4]");
  CHECK(type_of("float[B,S,3] x, " + weights, "y = LSTM<layout=1, hidden_size=4>(x, w, r)") ==
        "f32[B,S,1,4]");
  CHECK(type_of(x + "float[2,12,3] w, float[2,12,4] r",
                "y = GRU<direction=\"bidirectional\", hidden_size=4>(x, w, r)") == "f32[S,2,B,4]");
  CHECK(type_of(x + "float[D,R,3] w, float[D,R,4] r", "y = RNN<hidden_size=4>(x, w, r)") ==
        "f32[S,1,B,4]");
  const std::string body = "y = LSTM<hidden_size=4>(x, w, r)";
  for (const std::string wrong :
       {"float[1,16] w, float[1,16,4] r", "float[1,16,5] w, float[1,16,4] r",
        "float[2,16,3] w, float[2,16,4] r", "float[1,12,3] w, float[1,12,4] r",
        "float[1,16,3] w, float[1,16,5] r"})
    CHECK_MESSAGE(has(type_of(x + wrong, body), "error[bad_shape]"), wrong);
  CHECK(has(type_of("float[2,3] x, " + weights, body), "error[bad_shape]"));
  const std::string more = "y = LSTM<hidden_size=4>(x, w, r, b, l, h)";
  auto with = [&](const std::string& rest) { return type_of(x + weights + ", " + rest, more); };
  CHECK(with("float[1,32] b, int32[B] l, float[1,B,4] h") == "f32[S,1,B,4]");
  CHECK(has(with("float[1,16] b, int32[B] l, float[1,B,4] h"), "error[bad_shape]"));
  CHECK(has(with("float[1,32] b, int32[B] l, float[1,B,5] h"), "error[bad_shape]"));
}

TEST_CASE("infer: contents of shape arithmetic") {
  CHECK(contents_of_y("float[N,4,H] x", "y = Shape(x)") == "[N,4,H]");
  CHECK(contents_of_y("float[N,4,H] x", "y = Shape<start=1>(x)") == "[4,H]");
  CHECK(contents_of_y("float[N,4,H] x", "y = Size(x)") == "[4*H*N]");
  CHECK(contents_of_y("float[N,H] x",
                      "s = Shape(x)\n two = Constant<value_int=2>()\n y = Mul(s, two)") ==
        "[2*N,2*H]");
  CHECK(contents_of_y("float[N,H] x",
                      "s = Shape(x)\n two = Constant<value_int=2>()\n y = Div(s, two)") ==
        "[floordiv(N,2),floordiv(H,2)]");
  // An exporter's detour through floats.
  CHECK(
      contents_of_y(
          "float[N,H] x",
          "s = Shape(x)\n f = Cast<to=1>(s)\n two = Constant<value_float=2.0>()\n m = Mul(f, two)\n"
          "r = Floor(m)\n y = Cast<to=7>(r)") == "[2*N,2*H]");
  CHECK(contents_of_y(
            "float[N,H] x",
            "s = Shape(x)\n m = Constant<value_int=-1>()\n e = Equal(s, m)\n y = Cast<to=7>(e)") ==
        "[0,0]");
  CHECK(contents_of_y("float[N,H] x", "s = Shape(x)\n y = ReduceProd<keepdims=1>(s)") == "[H*N]");
}

TEST_CASE("infer: equal expressions stay equal through onnx's own functions") {
  auto r = import_text(
      "g (float[1,3,H,W] x, float[8,3,3,3] w) => (float[] y) {\n"
      "a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)\n b = Conv<pads=[1,1,1,1], strides=[2,2]>(x, "
      "w)\n"
      "c = Elu(a)\n y = Add(c, b)\n}");
  REQUIRE(r);
  const Graph& g = r->graph;
  CHECK(str(g.value(g.outputs()[0]).type) == "f32[1,8,floordiv(H+1,2),floordiv(W+1,2)]");
}

TEST_CASE("infer: attention, with its heads apart or not, and its keys and values") {
  auto types = [](const std::string& inputs, const std::string& call) {
    ImportOptions options;
    options.text_opset = 24;
    options.ops = &shipped();
    auto r = import_text(
        "g (" + inputs +
            ") => (float[] y, float[] k2, float[] v2, float[] s) {\ny, k2, v2, s = " + call + "\n}",
        options);
    if (!r) return render(r.error());
    std::string out;
    for (ValueId v : r->graph.outputs()) out += str(r->graph.value(v).type) + " ";
    return out;
  };
  const std::string flat = "Attention<q_num_heads=6, kv_num_heads=3>",
                    flat_inputs = "float[B,S,12] q, float[B,T,6] k, float[B,T,15] v";
  CHECK(types(flat_inputs, flat + "(q, k, v)") ==
        "f32[B,S,30] f32[B,3,T,2] f32[B,3,T,5] f32[B,6,S,T] ");
  CHECK(types(flat_inputs + ", float[B,3,P,2] pk, float[B,3,P,5] pv",
              flat + "(q, k, v, \"\", pk, pv)") ==
        "f32[B,S,30] f32[B,3,P+T,2] f32[B,3,P+T,5] f32[B,6,S,P+T] ");
  CHECK(types("float[B,6,S,2] q, float[B,3,T,2] k, float[B,3,T,5] v", "Attention(q, k, v)") ==
        "f32[B,6,S,5] f32[B,3,T,2] f32[B,3,T,5] f32[B,6,S,T] ");
  CHECK(has(types(flat_inputs, "Attention(q, k, v)"), "q_num_heads"));
  CHECK(has(types(flat_inputs, "Attention<q_num_heads=5, kv_num_heads=3>(q, k, v)"),
            "5 does not divide 12"));
  CHECK(has(types("float[B,6,S,2] q, float[B,T,6] k, float[B,T,6] v", "Attention(q, k, v)"),
            "of other ranks"));
  CHECK(has(types("float[6,2] q, float[6,2] k, float[6,2] v", "Attention(q, k, v)"),
            "3 or 4 axes are wanted"));
}

TEST_CASE("infer: contents that wrap around or are rounded are not followed") {
  auto contents = [](const char* type, const std::string& body, const char* value) {
    auto r = import_text(
        fmt::format("g () => ({0}[] y) <{0}[1] c = {{{2}}}> {{ {1} }}", type, body, value));
    REQUIRE(r);
    auto c = contents_of(r->graph, r->graph.outputs()[0]);
    return c ? str(*c) : "unknown";
  };
  CHECK(contents("int64", "y = Neg(c)", "2") == "[-2]");
  const char* below = "z = Constant<value = uint8[1] {0}>() y = Sub(z, c)";
  CHECK(contents("uint8", below, "2") == "unknown");
  CHECK(contents("uint8", below, "0") == "[0]");
  CHECK(contents("int8", "y = Mul(c, c)", "12") == "unknown");
  CHECK(contents("int32", "y = Mul(c, c)", "65536") == "unknown");
  CHECK(contents("float", "y = Mul(c, c)", "5000") == "unknown");
  CHECK(contents("float", "y = Mul(c, c)", "4000") == "[16000000]");
  CHECK(contents("float16", "y = Add(c, c)", "2000") == "unknown");
}

TEST_CASE("infer: fixing the sizes of inputs") {
  auto make = [] {
    return import_text(
        "g (float[N,3,H,W] x, float[8,3,3,3] w, float[N] z) => (float[] y) {\n"
        "a = Conv<strides=[2,2]>(x, w)\n s = Constant<value_ints=[0,-1]>()\n y = Reshape(a, s)\n}");
  };
  auto r = make();
  REQUIRE(r);
  REQUIRE(fix_shapes(onnx_semantics(), r->graph, {{"x", {2, 3, 9, 11}}}));
  CHECK(str(r->graph.value(r->graph.outputs()[0]).type) == "f32[2,160]");
  CHECK(str(r->graph.value(r->graph.find_value("z")).type) == "f32[2]");
  auto bad = [&](std::map<std::string, std::vector<int64_t>> shapes) {
    auto m = make();
    auto s = fix_shapes(onnx_semantics(), m->graph, shapes);
    return s ? std::string("fine") : std::string(code_name(s.error().code));
  };
  CHECK(bad({{"x", {2, 4, 9, 11}}}) == "input_mismatch");
  CHECK(bad({{"x", {2, 3, 9}}}) == "input_mismatch");
  CHECK(bad({{"x", {2, 3, 9, -1}}}) == "input_mismatch");
  CHECK(bad({{"x", {2, 3, 9, 9}}, {"z", {3}}}) == "input_mismatch");
  CHECK(bad({{"q", {1}}}) == "unknown_input");
  CHECK(bad({{"x", {2, 3, 1, 1}}}) == "bad_shape");  // smaller than the window
}

TEST_CASE("infer: nested graphs see what they capture") {
  auto r = import_text(
      "g (bool c, float[N,4] x) => (float[] y) {\n"
      "y = If(c) <then_branch = t () => (float[] r) { r = Relu(x) }, else_branch = e () => "
      "(float[] r) { r = Neg(x) }>\n}");
  INFO((r ? std::string() : render(r.error())));
  REQUIRE(r);
  CHECK(str(r->graph.value(r->graph.outputs()[0]).type) == "f32[N,4]");
  auto loop = import_text(
      "g (int64 m, bool c, float[N,4] x) => (float[] y, float[] s) {\n"
      "y, s = Loop(m, c, x) <body = b (int64 i, bool k, float[N,4] v) => (bool k2, float[N,4] v2, "
      "float[N,4] o) {\n"
      "k2 = Identity(k)\n v2 = Add(v, x)\n o = Relu(v2) }>\n}");
  INFO((loop ? std::string() : render(loop.error())));
  REQUIRE(loop);
  CHECK(str(loop->graph.value(loop->graph.outputs()[0]).type).substr(0, 4) == "f32[");
  CHECK(loop->graph.value(loop->graph.outputs()[1]).type.rank() == 3);
}

TEST_CASE("infer: pads of a window") {
  Node n;
  n.op = "Conv";
  n.attrs.set("auto_pad", std::string("SAME_UPPER"));
  n.attrs.set("strides", std::vector<int64_t>{2, 2});
  CHECK(resolved_pads(n, {Dim(5), Dim(6)}, {3, 3}) == std::vector<int64_t>{1, 0, 1, 1});
  CHECK(resolved_pads(n, {Dim::symbol("H"), Dim(6)}, {3, 3}) == std::nullopt);
  n.attrs.set("strides", std::vector<int64_t>{0, 2});
  CHECK(resolved_pads(n, {Dim(5), Dim(6)}, {3, 3}) == std::nullopt);
  n.attrs.set("auto_pad", std::string("SAME_LOWER"));
  n.attrs.set("strides", std::vector<int64_t>{1, 1});
  CHECK(resolved_pads(n, {Dim::symbol("H"), Dim(6)}, {2, 2}) == std::vector<int64_t>{1, 1, 0, 0});
  n.attrs.set("strides", std::vector<int64_t>{2});  // fewer than the window has axes
  CHECK(resolved_pads(n, {Dim(5), Dim(6)}, {2, 2}) == std::nullopt);
  n.attrs.set("auto_pad", std::string("NOTSET"));
  CHECK(resolved_pads(n, {Dim(5), Dim(6)}, {3, 3}) == std::vector<int64_t>{0, 0, 0, 0});
}

TEST_CASE("infer: a size that is not known is not 0") {
  auto flat_heads = [](const std::string& last) {
    return type_of("float[2,5,6] q, float[2,7,6] k, float[2,7," + last + "] v",
                   "y = Attention<q_num_heads=3, kv_num_heads=3>(q, k, v)", 23);
  };
  CHECK(flat_heads("W") == "f32[2,5,3*floordiv(W,3)]");
  CHECK(flat_heads("9") == "f32[2,5,9]");
  CHECK(flat_heads("0") == "f32[2,5,0]");
}
