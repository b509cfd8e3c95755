// Rewrites that are right for ordinary numbers in their author's cases and wrong elsewhere, each in
// a way that a prover must look for, and right ones beside them.
#include "engine/proof/proof.h"
#include "engine/proof/stamp.h"

#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

struct Case {
  const char *name, *numerics, *match, *rewrite, *model;
  const char* more = "";
};

RewriteProof proof_of(const Case& c) {
  const std::string tests = std::string("tests:\n  fires:\n    - |\n      ") + c.model + "\n";
  auto r = rule("seeded", rewrite_text(c.numerics, c.match, c.rewrite, c.more) + tests);
  ProofContext context;
  context.ops = &ops();
  context.target = &target();
  context.limits = &limits();
  context.rule_dirs = {rules_dir()};
  // A user's rule has 5 s; on a processor of half the speed, or with others beside it, that is 12.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  context.seconds = 60;  // every access is looked at
#else
  context.seconds = 12;
#endif
  return prove_rewrite(*r, context);
}

const Case kWrong[] = {
    {"a product of integers wraps", "exact", "y = Div(Mul(x, c!), c!)", "y = x",
     "g (int32[3] i) => (int32[3] o) <int32 c = {4}> { t = Mul(i, c) o = Div(t, c) }",
     "where:\n  - {id: factor, sound: \"is_int(x) and numel(c) == 1 and value(c) > 0 and "
     "same_shape(x, y)\", why: \"no\"}\n"},
    {"integers that a float cannot hold", "exact", "y = Cast<...>(Cast<to=f32>(x))", "y = x",
     "g (int64[3] i) => (int64[3] o) { t = Cast<to=1>(i) o = Cast<to=7>(t) }",
     "where:\n  - {id: back, sound: \"dtype(x) == dtype(y) and is_int(x)\", why: \"no\"}\n"},
    {"integers compared as floats", "exact", "y = Less(Cast<to=f32>(a), Cast<to=f32>(b))",
     "y = Less(a, b)",
     "g (int64[3] i, int64[3] j) => (bool[3] o) { a = Cast<to=1>(i) b = Cast<to=1>(j) o = Less(a, "
     "b) }",
     "where:\n  - {id: same, sound: \"dtype(a) == dtype(b) and is_int(a)\", why: \"no\"}\n"},
    {"NaN that was made 0", "reassociating", "p = Softmax<...>(x)\ny = Where(IsNaN(p), 0, p)",
     "y = Softmax(x)",
     "g (float[2,3] i) => (float[2,3] o) <float z = {0.0}> { p = Softmax(i) n = IsNaN(p) o = "
     "Where(n, z, p) }"},
    {"bounds that are reached", "exact", "y = Clip(x, lo!, hi!)", "y = x",
     "g (float[3] i) => (float[3] o) <float lo = {-100.0}, float hi = {100.0}> { o = Clip(i, lo, "
     "hi) }",
     "where:\n  - {id: far, sound: \"value(lo) <= -100 and value(hi) >= 100 and same_shape(x, "
     "y)\", why: \"no\"}\n"},
    {"a branch that seldom holds", "exact",
     "y = SpaceToDepth<blocksize=$b>(DepthToSpace<blocksize=$b, mode=$m>(x))", "y = x",
     "g (float[1,4,2,2] i) => (float[1,4,2,2] o) { t = DepthToSpace<blocksize=2, mode=\"DCR\">(i) "
     "o = SpaceToDepth<blocksize=2>(t) }",
     "where:\n  - {id: order, sound: \"m == 'DCR' or dim(x, 1) == b * b or b > 2\", why: "
     "\"no\"}\n"},
    {"sums of integers as long as they may be", "exact", "y = MatMulInteger(a, b)",
     "y = Cast<to=i32>(MatMul(Cast<to=f32>(a), Cast<to=f32>(b)))",
     "g (uint8[3,4] i, int8[4,2] j) => (int32[3,2] o) { o = MatMulInteger(i, j) }",
     "where:\n  - {id: short, sound: \"dim(a, -1) <= 1024\", why: \"no\"}\nonce: true\n"},
    {"axes behind those that are asked about", "exact",
     "y = Transpose<perm=$p>(Transpose<perm=$p>(x))", "y = x",
     "g (float[2,2,2] i) => (float[2,2,2] o) { t = Transpose<perm=[1,0,2]>(i) o = "
     "Transpose<perm=[1,0,2]>(t) }",
     "where:\n  - {id: twice, sound: \"all(k in range(0, 5): k >= rank(x) or p[p[k]] == k)\", "
     "why: \"no\"}\n  - {id: same, sound: \"same_shape(x, y)\", why: \"no\"}\n"},
    {"an axis that is right for rank 2 only", "exact",
     "y = Transpose<perm=$p>(Softmax<axis=-1>(Transpose<perm=$p>(x)))", "y = Softmax<axis=0>(x)",
     "g (float[2,3] i) => (float[2,3] o) { t = Transpose<perm=[1,0]>(i) s = Softmax<axis=-1>(t) o "
     "= Transpose<perm=[1,0]>(s) }"},
    {"a row taken for a column", "reassociating", "y = Mul(MatMul(a, W!), s!)",
     "W2 = Mul(Transpose<perm=[1,0]>(W), s)\n  y = MatMul(a, Transpose<perm=[1,0]>(W2))",
     "g (float[2,3] i) => (float[2,3] o) <float[3,3] W = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, "
     "9.0}, float[1] s = {2.0}> { t = MatMul(i, W) o = Mul(t, s) }",
     "where:\n  - {id: matrix, sound: \"rank(W) == 2 and numel(s) in [1, dim(W, 1)] and rank(s) <= "
     "2 and same_shape(y, y)\", why: \"no\"}\n"},
    {"whatever its coordinates are", "exact",
     "y = Resize<mode=\"nearest\", ...>(Resize<mode=\"nearest\", ...>(x, , s!), , s!)",
     "y = Resize<mode=\"nearest\", nearest_mode=\"floor\", "
     "coordinate_transformation_mode=\"asymmetric\">(x, , Mul(s, s))",
     "g (float[1,1,2,2] i) => (float[1,1,8,8] o) <float[4] s = {1.0, 1.0, 2.0, 2.0}> { t = "
     "Resize<mode=\"nearest\", nearest_mode=\"floor\", "
     "coordinate_transformation_mode=\"asymmetric\">(i, , s) "
     "o = Resize<mode=\"nearest\", nearest_mode=\"floor\", "
     "coordinate_transformation_mode=\"asymmetric\">(t, , s) }"},
    {"a producer that the pattern does not hold", "exact", "y = Relu(x)", "y = x",
     "g (float[3] i) => (float[3] o) { t = Relu(i) o = Relu(t) }",
     "where:\n  - {id: positive, sound: \"producer_op(x) in ['Relu', 'Clip', 'Sigmoid']\", why: "
     "\"no\"}\n"},
    {"a factor that underflows", "reassociating", "y = Mul(x, c!)", "y = Mul(x, 0)",
     "g (float[3] i) => (float[3] o) <float c = {1e-30}> { o = Mul(i, c) }",
     "once: true\nwhere:\n  - {id: small, sound: \"numel(c) == 1 and rank(c) == 0 and "
     "abs(value(c)) < 1e-25 and is_float(x)\", why: \"no\"}\n"},
    {"a type that the operator does not take", "exact", "y = Max(x, x)",
     "y = MaxPool<kernel_shape=[1]>(x)", "g (float[1,2,3] i) => (float[1,2,3] o) { o = Max(i, i) }",
     "once: true\nwhere:\n  - {id: rows, sound: \"rank(x) == 3\", why: \"no\"}\n"},
    {"a type of 8 bits that the operator does not take", "exact",
     "y = Slice(DequantizeLinear<axis=1, block_size=0, ...>(x, k!), s!, e!)",
     "y = DequantizeLinear(Slice(x, s, e), k)",
     "g (int8[4] i) => (float[2] o) <float k = {0.5}, int64[1] s = {1}, int64[1] e = {3}> { t = "
     "DequantizeLinear(i, k) o = Slice(t, s, e) }",
     "once: true\nwhere:\n  - {id: one, sound: \"numel(k) == 1 and rank(k) == 0 and dtype(k) == "
     "f32\", why: \"no\"}\n"},
    {"an axis that is right for large matrices only", "exact", "y = ReduceMax<keepdims=0>(x, a!)",
     "y = ReduceMax<keepdims=0>(x, {[1]})",
     "g (float[2,64] i) => (float[2] o) <int64[1] a = {1}> { o = ReduceMax<keepdims=0>(i, a) }",
     "once: true\nwhere:\n  - {id: large, sound: \"rank(x) == 2 and dim(x, 1) >= 64 and numel(a) "
     "== 1\", why: \"no\"}\n"},
    {"NaN that a comparison kept out", "reassociating", "y = Where(Greater(a, b), a, b)",
     "y = Max(a, b)",
     "g (float[3] i, float[3] j) => (float[3] o) { c = Greater(i, j) o = Where(c, i, j) }"},
    {"a guard against NaN", "reassociating", "y = Where(IsNaN(x), c!, x)", "y = x",
     "g (float[3] i) => (float[3] o) <float c = {0.0}> { p = Relu(i) n = IsNaN(p) o = Where(n, c, "
     "p) }",
     "where:\n  - {id: same_shape, sound: \"same_shape(x, y)\", why: \"no\"}\n"},
    {"what lies outside of a region", "exact",
     "y = Relu([z] Resize<mode=\"nearest\", ...>(x, roi?!, s!))", "y = z<...z>(Relu(x), roi, s)",
     "g (float[1,1,2,2] i) => (float[1,1,4,4] o) <float[4] s = {1.0, 1.0, 2.0, 2.0}> { t = "
     "Resize<mode=\"nearest\">(i, , s) o = Relu(t) }",
     "once: true\n"},
    {"bounds of a sum", "reassociating", "y = Clip(Add(x, c!), lo!, hi!)",
     "y = Add(Clip(x, lo, hi), c)",
     "g (float[3] i) => (float[3] o) <float c = {0.0}, float lo = {-9.0}, float hi = {9.0}> { t = "
     "Add(i, c) o = Clip(t, lo, hi) }"},
    {"filters cut out of groups", "reassociating",
     "[conv] t = Conv<...>(x, W!)\ny = Slice(t, s!, e!, 1)",
     "y = conv<...conv>(x, Slice(W, s, e, Constant<value_ints=[0]>()))",
     "g (float[1,2,3,3] i) => (float[1,1,3,3] o) <float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}, "
     "int64[1] s = {1}, int64[1] e = {2}, int64[1] a = {1}> { t = Conv(i, W) o = Slice(t, s, e, a) "
     "}",
     "types: [f32]\n"},
    {"halves that become even numbers", "reassociating", "y = Round(Mul(x, c!))",
     "y = Floor(Add(Mul(x, c), CastLike({0.5}, x)))",
     "g (float[3] i) => (float[3] o) <float c = {0.3}> { t = Mul(i, c) o = Round(t) }"},
    {"two starts far behind the end", "exact", "y = Slice(Slice(x, s!, e!, ax!), b!, f!, ax!)",
     "y = Slice(x, Add(s, b), {[if values(f)[0] > 1000000 then values(e)[0] else "
     "min(values(e)[0], values(s)[0] + values(f)[0])]}, ax)",
     "g (float[8] i) => (float[2] o) <int64[1] s = {1}, int64[1] e = {6}, int64[1] a = {0}, "
     "int64[1] b = {1}, int64[1] f = {3}> { t = Slice(i, s, e, a) o = Slice(t, b, f, a) }",
     "where:\n  - {id: one, sound: \"count(values(ax)) == 1 and dtype(s) == i64 and min(s) >= 0 "
     "and "
     "min(b) >= 0 and min(f) >= 0 and min(e) >= 0\", why: \"no\"}\n"},
    {"a sum of more bytes than 32 bits hold", "exact",
     "[r] s = ReduceSum<...>(Cast<to=i32>(x), a!)\n  y = Cast<to=i64>(s)",
     "y = r<...r>(Cast<to=i64>(x), a)",
     "g (uint8[2,7] i) => (int64[2,1] o) <int64[1] a = {1}> { c = Cast<to=6>(i) s = ReduceSum(c, "
     "a) o = Cast<to=7>(s) }",
     "where:\n  - {id: bytes, sound: \"dtype(x) == u8\", why: \"no\"}\n"},
    {"pads that the size of the result overrules", "reassociating",
     "[d] t = ConvTranspose<kernel_shape=$k, strides=$s, dilations=$q, auto_pad=\"NOTSET\", "
     "group=$g, output_padding=$o, ...>(x, w)\n  y = Slice(t, b!, e!, a!)",
     "y = d<...d, pads={[1, 1]}>(x, w)",
     "g (float[1,1,4] i, float[1,1,3] w) => (float[1,1,4] o) <int64[1] b = {1}, int64[1] e = {-1}, "
     "int64[1] a = {2}> { t = ConvTranspose(i, w) o = Slice(t, b, e, a) }",
     "where:\n  - {id: crop, sound: \"rank(x) == 3 and values(b) == [1] and values(e) == [-1] and "
     "values(a) == [2] and dim(t, 2) > 2 and all(v in attr(d, 'pads') ?? [0, 0]: v == 0)\", why: "
     "\"no\"}\n"},
};

const Case kRight[] = {
    // In f16, too: a product of constants that becomes 0 is declined (D9).
    {"a product that is rounded, in another order", "reassociating",
     "y = Round(Mul(Mul(x, a!), b!))", "y = Round(Mul(x, Mul(a, b)))",
     "g (float[3] i) => (float[3] o) <float a = {0.3}, float b = {1.5}> { s = Mul(i, a) t = Mul(s, "
     "b) o = Round(t) }",
     "types: [f16, f32, f64]\n"},
    {"two negations", "exact", "y = Neg(Neg(x))", "y = x",
     "g (float[2,3] i) => (float[2,3] o) { t = Neg(i) o = Neg(t) }"},
    {"a sum in another order", "reassociating", "y = Add(Add(x, a), b)", "y = Add(x, Add(a, b))",
     "g (float[3] i, float[3] j, float[3] k) => (float[3] o) { t = Add(i, j) o = Add(t, k) }",
     "types: [f32, f16, bf16, f64]\nonce: true\n"},
    {"a greatest of greatest", "signed_zero", "y = Max(Max(x, a), b)", "y = Max(x, a, b)",
     "g (float[3] i, float[3] j, float[3] k) => (float[3] o) { t = Max(i, j) o = Max(t, k) }"},
    {"a shift of what a Softmax reads", "reassociating", "y = Softmax<axis=-1>(Sub(x, m!))",
     "y = Softmax<axis=-1>(x)",
     "g (float[2,3] i) => (float[2,3] o) <float[2,1] m = {1.0, 2.0}> { t = Sub(i, m) o = "
     "Softmax<axis=-1>(t) }",
     "where:\n  - {id: row, sound: \"same_shape(x, y) and finite(m) and rank(m) > 0 and dim(m, -1) "
     "== 1\", why: \"no\"}\n"},
    {"a transposed product", "reassociating", "y = Transpose<perm=[1, 0]>(MatMul(a, b))",
     "y = MatMul(Transpose<perm=[1, 0]>(b), Transpose<perm=[1, 0]>(a))",
     "g (float[2,3] i, float[3,4] j) => (float[4,2] o) { t = MatMul(i, j) o = "
     "Transpose<perm=[1,0]>(t) }",
     "where:\n  - {id: matrices, sound: \"rank(a) == 2 and rank(b) == 2\", why: \"no\"}\nonce: "
     "true\n"},
    {"a double of a half", "reassociating", "y = Mul(Mul(x, 0.5), 2)", "y = x",
     "g (float[3] i) => (float[3] o) <float h = {0.5}, float d = {2.0}> { t = Mul(i, h) o = Mul(t, "
     "d) }"},
};

}  // namespace

TEST_CASE("wrong rewrites that hold in their cases are disproved, with an example") {
  // A sixth, by turns, as tests/support/harness.py does; all with --full.
  const size_t step = std::getenv("FERRULE_TEST_FULL") ? 1 : 6;
  for (size_t k = std::hash<std::string_view>{}(engine_semantics()) % step; k < std::size(kWrong);
       k += step) {
    const Case& c = kWrong[k];
    const RewriteProof p = proof_of(c);
    const std::string what = c.name;
    CHECK_MESSAGE(!p.wrong.empty(), what << ": " << p.graphs << " graphs, " << p.fired << " fired, "
                                         << p.instances << " instances");
    CHECK_MESSAGE(p.example.find(") => (") != std::string::npos, what << ": " << p.example);
  }
}

TEST_CASE("the weakest promise that holds is reported") {
  const Case sum{
      "a sum in another order",
      "exact",
      "y = Add(Add(x, a), b)",
      "y = Add(x, Add(a, b))",
      "g (float[3] i, float[3] j, float[3] k) => (float[3] o) { t = Add(i, j) o = Add(t, k) }",
      "types: [f32, f16, bf16, f64]\nonce: true\n"};
  const RewriteProof p = proof_of(sum);
  CHECK_FALSE(p.wrong.empty());
  CHECK(p.needed == Numerics::reassociating);
}

TEST_CASE("right rewrites are proved") {
  for (const Case& c : kRight) {
    const RewriteProof p = proof_of(c);
    const std::string what =
        std::string(c.name) + ": " + (p.wrong.empty() ? "" : p.wrong[0] + "\n" + p.example);
    CHECK_MESSAGE(p.wrong.empty(), what);
    CHECK_MESSAGE(p.instances >= 200, what);
  }
}
