// The hand-written cases that break rules in use today, by name: each model
// fused by all shipped rules must compute what it computes unfused, and must have become the
// operators named here. ONNX Runtime 1.31.1 at its default level gets 3 of the 13 right.
#include "engine/graph/compare.h"
#include "engine/proof/values.h"
#include "tests/unit/engine/shipped.h"

using namespace kit;

namespace {

struct Trap {
  const char* name;     ///< the catalogue's
  const char* missing;  ///< the condition that the broken rule lacks
  const char* model;
  const char* fused;  ///< operators afterwards
};

constexpr Trap kTraps[] = {
    {"divmul_int", "element type: integer division truncates",
     "g (int32[4] a, int32[4] b) => (int32[4] y) <int32 one = {1}> { t = Div(one, a) y = Mul(t, b) "
     "}",
     "group.pointwise(Div Mul)"},
    {"divmul_rank", "a constant 1 that raises the rank",
     "g (float[4] a, float[4] b) => (float[1,1,4] y) <float[1,1,1] one = {1.0}> { t = Div(one, a) "
     "y = Mul(t, b) }",
     "group.pointwise(Div Mul)"},
    {"pad_maxpool", "MaxPool pads with minus infinity, so a Pad with 0 is another",
     "g (float[1,1,4,4] x) => (float[1,1,3,3] y) <int64[8] p = {0,0,1,1,0,0,1,1}> "
     "{ t = Pad(x, p) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(t) }",
     "Pad MaxPool"},
    {"slice_steps_noaxes", "steps count without axes, too",
     "g (float[4] x) => (float[2] y) <int64[1] s = {0}, int64[1] e = {9223372036854775807}, "
     "int64[1] k = {2}> { y = Slice(x, s, e, , k) }",
     "Slice"},
    {"expand_zero", "a target size of 0",
     "g (float[1] x) => (float[0] y) <int64[1] s = {0}> { y = Expand(x, s) }", "Expand"},
    {"ln_pow4", "the exponent is 2",
     "g (float[2,4] x) => (float[2,4] y) <float four = {4.0}, float eps = {0.1}, int64[1] ax = "
     "{-1}> "
     "{ m = ReduceMean(x, ax) d = Sub(x, m) p = Pow(d, four) q = ReduceMean(p, ax) e = Add(q, eps) "
     "s = Sqrt(e) y = Div(d, s) }",
     "group.row_reduce(ReduceMean Sub Pow ReduceMean Add Sqrt Div)"},
    {"ln_eps_first", "epsilon on either side of the Add",
     "g (float[2,4] x) => (float[2,4] y) <float two = {2.0}, float eps = {0.1}, int64[1] ax = "
     "{-1}, float[4] g = {1.0, 2.0, 3.0, 4.0}> "
     "{ m = ReduceMean(x, ax) d = Sub(x, m) p = Pow(d, two) q = ReduceMean(p, ax) e = Add(eps, q) "
     "s = Sqrt(e) n = Div(d, s) y = Mul(n, g) }",
     "LayerNormalization"},
    {"matmul_T_bn", "BatchNormalization's channels are the product's columns",
     "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}, float[2] g = {1.5, "
     "2.0}, float[2] b = {0.5, 0.0}, "
     "float[2] m = {0.1, 0.2}, float[2] v = {1.0, 0.25}> "
     "{ t = MatMul(x, w) u = Transpose<perm=[1,0]>(t) y = BatchNormalization(u, g, b, m, v) }",
     "MatMul group.pointwise(Transpose Mul Add)"},
    {"relu_clip_i32", "a bound in the model's integer type",
     "g (int32[4] x) => (int32[4] y) <int32 lo = {-3}, int32 hi = {3}> { t = Relu(x) y = Clip(t, "
     "lo, hi) }",
     "Clip"},
    {"fastgelu_shared", "0.5 x is read elsewhere, too",
     "g (float[4] x) => (float[4] y, float[4] z) <float h = {0.5}, float c = {0.044715}, float k = "
     "{0.7978846}, float one = {1.0}, float three = {3.0}> "
     "{ hx = Mul(x, h) p = Pow(x, three) q = Mul(p, c) i = Add(x, q) s = Mul(i, k) t = Tanh(s) a = "
     "Add(t, one) y = Mul(hx, a) z = Neg(hx) }",
     "group.pointwise(Mul Mul Mul Mul Add Mul Tanh Add Mul Neg)"},
    {"pad_avgpool_excl", "an AveragePool that does not count its own padding counts the Pad's",
     "g (float[1,1,4,4] x) => (float[1,1,3,3] y) <int64[8] p = {0,0,1,1,0,0,1,1}> "
     "{ t = Pad(x, p) y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(t) }",
     "AveragePool"},
    {"pad_neg_conv", "a negative pad is a crop",
     "g (float[1,1,4,4] x) => (float[1,1,2,2] y) <int64[8] p = {0,0,-1,-1,0,0,0,0}, float[1,1,2,2] "
     "w = {1.0, 2.0, 3.0, 4.0}> "
     "{ t = Pad(x, p) y = Conv(t, w) }",
     "Pad Conv"},
    {"ln_ok", "none: the rule must fire",
     "g (float[2,4] x) => (float[2,4] y) <float two = {2.0}, float eps = {0.1}, int64[1] ax = "
     "{-1}> "
     "{ m = ReduceMean(x, ax) d = Sub(x, m) p = Pow(d, two) q = ReduceMean(p, ax) e = Add(q, eps) "
     "s = Sqrt(e) y = Div(d, s) }",
     "LayerNormalization"},
};

/// Of the same kind, beside the table.
constexpr Trap kMore[] = {
    {"rms_epsilon_f64", "epsilon in the model's type",
     "g (double[2,4] x) => (double[2,4] y) <double two = {2.0}, double eps = {0.1}, int64[1] ax = "
     "{-1}> "
     "{ p = Pow(x, two) q = ReduceMean(p, ax) e = Add(q, eps) s = Sqrt(e) y = Div(x, s) }",
     "group.row_reduce(Mul ReduceMean Add Sqrt Div)"},
    {"unit_f64", "a factor compared in its own type",
     "g (double[3] x) => (double[3] y) <double k = {1.000000001}> { y = Mul(x, k) }", "Mul"},
    {"unit_rank", "a constant 1 that raises the rank",
     "g (float[4] a) => (float[1,1,4] y) <float[1,1,1] one = {1.0}> { y = Mul(one, a) }", "Mul"},
    {"pad_maxpool_relu", "of values that are never negative, 0 is as good as minus infinity",
     "g (float[1,1,4,4] x) => (float[1,1,3,3] y) <int64[8] p = {0,0,1,1,0,0,1,1}> "
     "{ r = Relu(x) t = Pad(r, p) y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(t) }",
     "Relu MaxPool"},
};

void check(const Trap& trap) {
  INFO(trap.name << " (" << trap.missing << ")");
  (void)knowledge();
  Graph before = graph(trap.model);
  Fused f = must(fuse(graph(trap.model), knowledge(), EngineOptions()));
  CHECK(ops_of(f.graph) == trap.fused);
  CHECK(f.notes.empty());  // no rule called itself broken
  Draw draw(7);
  for (int round = 0; round < 4; ++round) {
    std::vector<Tensor> in;
    for (ValueId v : before.inputs())
      in.push_back(drawn_tensor(before.value(v).type.dtype,
                                *constant_shape(*before.value(v).type.shape), draw,
                                Magnitudes::small));
    auto want = run(before, in), got = run(f.graph, in);
    REQUIRE(want.size() == got.size());
    for (size_t k = 0; k < want.size(); ++k) {
      Difference d = compare(got[k], want[k], model_tolerance(want[k].dtype()));
      INFO(to_text(f.graph) << d.text);
      CHECK(d.ok);
    }
  }
}

}  // namespace

TEST_CASE("the 13 traps of the catalogue: all right") {
  static_assert(std::size(kTraps) == 13);
  for (const Trap& trap : kTraps) check(trap);
}

TEST_CASE("traps of the same kind") {
  for (const Trap& trap : kMore) check(trap);
}
