// The tests inside rules, and proofs: right rules hold, seeded wrong ones are caught.
#include "engine/proof/proof.h"

#include "engine/proof/generate.h"
#include "engine/proof/hints.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

ProofContext proof_context() {
  ProofContext c;
  c.ops = &ops();
  c.target = &target();
  c.limits = &limits();
  c.rule_dirs = {rules_dir()};
  c.seconds = 20;
  return c;
}

std::shared_ptr<const Rule> relu_twice(const std::string& tests) {
  return rule("twice",
              "kind: rewrite\nphase: fold\nnumerics: exact\nmatch: |\n  y = "
              "Relu(Relu(x))\nrewrite: |\n  y = Relu(x)\n"
              "tests:\n  fires:\n    - |\n      g (float[2,3] i) => (float[2,3] o) { t = Relu(i) o "
              "= Relu(t) }\n" +
                  tests);
}

std::string failure(const RuleTestReport& r) {
  for (const CaseResult& c : r.cases)
    if (!c.passed) return c.name + ": " + c.text;
  return "";
}

std::string caught(const std::string& match, const std::string& rewrite, const std::string& model,
                   const std::string& more = "", const std::string& numerics = "exact",
                   double seconds = 5) {
  auto r = rule("seeded", "kind: rewrite\nphase: fold\nnumerics: " + numerics + "\n" + more +
                              "match: |\n  " + match + "\nrewrite: |\n  " + rewrite +
                              "\ntests:\n  fires:\n    - |\n      " + model + "\n");
  RuleTestReport t = run_rule_tests(*r, proof_context());
  if (!t.passed()) return "case";
  ProofContext context = proof_context();
  context.seconds = seconds;
  RewriteProof p = prove_rewrite(*r, context);
  return p.wrong.empty() ? "" : "proof";
}

}  // namespace

TEST_CASE("firing and holding cases, and edits") {
  CHECK(failure(run_rule_tests(
            *relu_twice(
                "  holds:\n    - {declined_by: D1, leak: t}\n    - {declined_by: D2, output: t}\n"),
            proof_context())) == "");
  CHECK(failure(run_rule_tests(*relu_twice("  holds:\n    - {declined_by: D2, leak: t}\n"),
                               proof_context()))
            .find("declined by D1") != std::string::npos);
  CHECK(failure(run_rule_tests(
                    *relu_twice("  holds:\n    - {declined_by: structure, dtype: {i: f64}}\n"),
                    proof_context()))
            .find("fires") != std::string::npos);
  CHECK(failure(run_rule_tests(*relu_twice("  holds:\n    - {declined_by: D1, leak: nothing}\n"),
                               proof_context()))
            .find("no value nothing") != std::string::npos);
  CHECK(
      failure(
          run_rule_tests(
              *relu_twice(
                  "  holds:\n    - {declined_by: structure, rewire: {node: t, slot: 0, to: i}}\n"),
              proof_context()))
          .find("fires") != std::string::npos);
}

TEST_CASE("expected results are compared by structure, not by names") {
  auto expect = [](const std::string& op) {
    return rule("e",
                "kind: rewrite\nphase: fold\nnumerics: exact\nmatch: |\n  y = "
                "Relu(Relu(x))\nrewrite: |\n  y = Relu(x)\n"
                "tests:\n  fires:\n    - model: |\n        g (float[2,3] i) => (float[2,3] o) { t "
                "= Relu(i) o = Relu(t) }\n"
                "      expect: |\n        h (float[2,3] a) => (float[2,3] b) { b = " +
                    op + "(a) }\n");
  };
  CHECK(failure(run_rule_tests(*expect("Relu"), proof_context())) == "");
  CHECK(failure(run_rule_tests(*expect("Neg"), proof_context())).find("instead of") !=
        std::string::npos);
}

TEST_CASE("seeded wrong rules are caught") {
  // Integer division truncates.
  CHECK(caught("y = Mul(Div(1, a), b)", "y = Div(b, a)",
               "g (float[3] i, float[3] j) => (float[3] o) <float one = {1.0}> { t = Div(one, i) o "
               "= Mul(t, j) }",
               "", "reassociating") != "");
  // -0 + 0 is +0.
  CHECK(caught("y = Add(x, 0)", "y = x",
               "g (float[3] i) => (float[3] o) <float z = {0.0}> { o = Add(i, z) }") != "");
  CHECK(caught("y = Add(x, 0)", "y = x",
               "g (float[3] i) => (float[3] o) <float z = {0.0}> { o = Add(i, z) }", "",
               "signed_zero") == "");
  // NaN and infinity.
  CHECK(caught("y = Sub(x, x)", "y = Mul(x, 0)",
               "g (float[3] i) => (float[3] o) { o = Sub(i, i) }") != "");
  // The order of operands.
  CHECK(caught("y = Neg(Sub(a, b))", "y = Sub(a, b)",
               "g (float[3] i, float[3] j) => (float[3] o) { t = Sub(i, j) o = Neg(t) }") ==
        "case");
  // An attribute that is not looked at.
  CHECK(caught("y = Relu(LeakyRelu<...>(x))", "y = Relu(x)",
               "g (float[3] i) => (float[3] o) { t = LeakyRelu(i) o = Relu(t) }") != "");
  // Broadcasting makes the result larger than x.
  CHECK(caught("y = Mul(x, c!)", "y = x",
               "g (float[3] i) => (float[3] o) <float[3] k = {1.0, 1.0, 1.0}> { o = Mul(i, k) }") !=
        "");
  // max(min) against min(max) when the bounds cross.
  CHECK(caught("y = Min(Max(x, lo!), hi!)", "y = Max(Min(x, hi), lo)",
               "g (float[3] i) => (float[3] o) <float lo = {0.0}, float hi = {1.0}> { t = Max(i, "
               "lo) o = Min(t, hi) }") != "");
}

TEST_CASE("conditions: killed, implied, open") {
  auto with = [](const std::string& where) {
    return rule("c",
                "kind: rewrite\nphase: fold\nnumerics: exact\nmatch: |\n  y = "
                "Transpose<perm=$p>(Transpose<perm=$q>(x))\nwhere:\n" +
                    where +
                    "rewrite: |\n  y = x\ntests:\n  fires:\n    - |\n      g (float[3,3] i) => "
                    "(float[3,3] o) "
                    "{ t = Transpose<perm=[1,0]>(i) o = Transpose<perm=[1,0]>(t) }\n");
  };
  RewriteProof p = prove_rewrite(
      *with("  - {id: inverse, sound: \"perm_inverse(p) == q\", why: \"no\"}\n"), proof_context());
  CHECK(p.wrong.empty());
  CHECK(p.fired > 0);
  REQUIRE(p.conditions.size() == 1);
  CHECK(p.conditions[0].state == ConditionProof::State::killed);
  RewriteProof q =
      prove_rewrite(*with("  - {id: inverse, sound: \"perm_inverse(p) == q\", why: \"no\"}\n"
                          "  - {id: useless, sound: \"dim(x, 0) == 3\", why: \"no\"}\n"),
                    proof_context());
  REQUIRE(q.conditions.size() == 2);
  CHECK(q.conditions[1].state == ConditionProof::State::open);
  CHECK_FALSE(q.holds());
  // Without it the replacement is no valid graph, or of a rank that the result is not known to
  // have: the engine sees both by itself.
  RewriteProof r = prove_rewrite(
      *rule("c",
            "kind: rewrite\nphase: fold\nnumerics: reassociating\nmatch: |\n  y = MatMul(Neg(a), "
            "b)\nwhere:\n"
            "  - {id: matrices, sound: \"rank(a) == 2 and rank(b) == 2\", why: \"no\"}\n"
            "rewrite: |\n  y = Gemm<alpha=-1.0>(a, b)\ntests:\n  fires:\n    - |\n      g "
            "(float[2,3] i, float[3,4] j) "
            "=> (float[2,4] o) { t = Neg(i) o = MatMul(t, j) }\n"),
      proof_context());
  REQUIRE(r.conditions.size() == 1);
  CHECK(r.conditions[0].state == ConditionProof::State::implied);
  CHECK(r.conditions[0].how.find("the engine declines anyway") != std::string::npos);
  CHECK(r.holds());
}

TEST_CASE("an open size of 1 broadcasts, where 2 is an error") {
  CHECK(caught(
            "y = Expand(x, Shape(z))", "y = Reshape(x, {shape(y)})",
            "g (float[4,3] i, float[4,3] j) => (float[4,3] o) { s = Shape(j) o = Expand(i, s) }") ==
        "proof");
}

TEST_CASE("the shipped rules pass their own cases") {
  std::array<std::string, 1> dirs{rules_dir()};
  RuleSet set = must(load_rules(dirs, ops(), {}, limits()));
  ProofContext c = proof_context();
  Target host = must(load_target(dirs, "cpu-avx2"));
  c.target = &host;
  for (const auto& r : set.rules) {
    RuleTestReport t = run_rule_tests(*r, c);
    INFO(r->id << ": " << failure(t));
    CHECK(t.passed());
  }
}

TEST_CASE("mistakes that only two changes at once bring to light") {
  // The group of a transposed convolution counts only where the weights have fewer columns as well.
  CHECK(caught("y = Mul(ConvTranspose<...>(x, W!), s![_, 1, 1])",
               "W2 = Mul(W, Reshape(s, {[1, -1, 1, 1]}))\n  y = ConvTranspose(x, W2)",
               "g (float[1,2,3,3] i) => (float[1,2,3,3] o) <float[2,2,1,1] W = {1.0, 2.0, 3.0, "
               "4.0}, float[2,1,1] s = {2.0, 3.0}> "
               "{ t = ConvTranspose(i, W) o = Mul(t, s) }",
               "", "reassociating") == "proof");
  // Operators that the pattern takes in one place, and what stands behind the match does not take.
  CHECK(caught("y = {Neg|BitwiseNot}({Neg|BitwiseNot}(x))", "y = x",
               "g (float[3] i) => (float[3] o) { t = Neg(i) u = Neg(t) o = Exp(u) }") == "proof");
  // A mode that was not asked for.
  CHECK(caught("y = Relu(Pad<...>(Relu(x), p!))", "y = Pad(Relu(x), p)",
               "g (float[2,3] i) => (float[2,3] o) <int64[4] p = {0, 1, 0, 1}> { a = Relu(i) b = "
               "Pad(a, p) o = Relu(b) }") == "proof");
}

TEST_CASE("questions about the target and names decide nothing in a proof") {
  for (const char* asks :
       {"cc >= 8.9", "device == gpu", "target ~ 'sm_*'", "cores > 12", "l2_bytes > 8388608",
        "isa('avx512f')", "not isa('avx512f')", "has_kernel('attention', f16)",
        "profile == tensorrt", "accepts_strided(y)", "name(c) ~ '/layer1/*'",
        "if device == gpu then rank(x) >= 0 else equal_const(c, d)",
        "device == gpu implies equal_const(c, d)", "not (cc == 0 and not equal_const(c, d))",
        "any(k in [1]: cores > 100)"}) {
    INFO(asks);
    CHECK(caught("y = Sub(Add(x, c!), d!)", "y = x",
                 "g (int32[3] i) => (int32[3] o) <int32 p = {3}, int32 q = {3}> { t = Add(i, p) o "
                 "= Sub(t, q) }",
                 fmt::format("types: [i32]\nwhere:\n  - {{id: size, sound: \"numel(c) == 1 and "
                             "same_shape(x, y)\", why: \"no\"}}\n  - {{id: asks, sound: \"({}) or "
                             "equal_const(c, d)\", why: \"no\"}}\n",
                             asks)
                     .c_str(),
                 "exact", 0.5) == "proof");
  }
  // A name of the pattern is not the target's, and two names that are the same are one value.
  ProofContext short_one = proof_context();
  short_one.seconds = 1;
  const auto right = [&](const char* cores) {
    return prove_rewrite(
               *rule("right",
                     fmt::format("kind: rewrite\nphase: fold\nnumerics: exact\ntypes: "
                                 "[i32]\nmatch: |\n  y = Sub(Add(x, cores!), "
                                 "d!)\nwhere:\n  - {{id: zero, sound: \"{}\", why: "
                                 "\"no\"}}\nrewrite: |\n  y = x\ntests:\n  fires:\n    - "
                                 "|\n      g (int32[3] i) => (int32[3] o) <int32 p = {{3}}> "
                                 "{{ t = Add(i, p) o = Sub(t, p) }}\n",
                                 cores)),
               short_one)
        .holds();
  };
  CHECK(right(
      "numel(cores) == 1 and numel(d) == 1 and rank(y) == rank(x) and equal_const(cores, d)"));
  CHECK(right("numel(cores) == 1 and rank(y) == rank(x) and name(cores) == name(d)"));
}

TEST_CASE("texts are compared, and have no least one") {
  const char* model =
      "g (string[2] i, string[2] j, string[2] k) => (string[2] o) { t = StringConcat(i, j) o = "
      "StringConcat(t, k) }";
  CHECK(caught("y = StringConcat(StringConcat(a, b), c)", "y = StringConcat(StringConcat(b, a), c)",
               model, "once: true\n", "exact", 1) != "");
  CHECK(
      caught("y = StringConcat(a, w!)", "y = StringConcat(w, a)",
             "g (string[2] i) => (string[2] o) <string[1] w = {\"b\"}> { o = StringConcat(i, w) }",
             "once: true\nwhere:\n  - {id: least, sound: \"min(w) < 0 or numel(w) > 0\", why: "
             "\"no\"}\n",
             "exact", 1) != "");
}

TEST_CASE("rounding is no mistake: f64 settles it") {
  CHECK(caught("y = Sub(Add(x, a!), b!)", "y = Add(x, Sub(a, b))",
               "g (float[3] i) => (float[3] o) <float a = {1000.0}, float b = {999.0}> { t = "
               "Add(i, a) o = Sub(t, b) }",
               "types: [f32]\n", "reassociating") != "case");
}

TEST_CASE("flags of drawn graphs say 0 or 1, each in its turn") {
  for (const char* match :
       {"y = ArgMax<...>(x)", "y = Mod<...>(x, b)", "y = ReduceSum<...>(x, a?!)"}) {
    auto r = rule("drawn", fmt::format("kind: rewrite\nphase: fold\nnumerics: exact\nmatch: |\n  "
                                       "[n] {}\nrewrite: |\n  y = x\n",
                                       match));
    const ProofContext context = proof_context();
    const Hints hints = hints_of(*r, {}, *context.ops);
    Generator generator(*r, context, hints);
    std::map<std::string, std::set<int64_t>> said;
    for (int n = 0; n < 600; ++n) {
      const auto g = generator.next();
      if (!g) continue;
      auto see = [&](const Graph& of) {
        for (NodeId id : of.order())
          for (const auto& [key, value] : of.node(id).attrs.items())
            if (!numbers_of(of.node(id).op.text(), key).empty())
              said[key].insert(std::get<int64_t>(value));
      };
      see(*g);
      MutationScope scope;
      for (const Mutation& m : mutations(*g, scope)) {
        auto changed = g->clone();
        m.apply(*changed);
        see(*changed);
      }
    }
    CHECK(!said.empty());
    const std::set<int64_t> both{0, 1};
    for (const auto& [key, values] : said) CHECK_MESSAGE(values == both, key);
  }
}
