#include "engine/contract/epilogue.h"

#include <doctest/doctest.h>

#include <cctype>
#include <map>
#include <set>

#include "engine/semantics/program_builder.h"
#include "tests/unit/codegen/helpers.h"
#include "tests/unit/codegen/post_op_meaning.h"

using namespace ferrule;

namespace {

using Constants = std::map<char, double>;

/// A pattern as the table writes it, as a program over inputs x and y.
class PatternProgram {
 public:
  PatternProgram(std::string_view pattern, const Constants& constants)
      : rest_(pattern), constants_(constants) {}
  Program take() {
    x_ = b_.input(DType::f32, "x"), y_ = b_.input(DType::f32, "y");
    b_.output(value());
    return b_.take();
  }

 private:
  uint32_t value() {
    const std::string word(rest_.substr(0, rest_.find_first_of("(),")));
    rest_.remove_prefix(word.size());
    if (rest_.starts_with('(')) return call(word);
    if (word == "x") return x_;
    if (word == "y") return y_;
    const bool letter = std::isalpha(static_cast<unsigned char>(word[0]));
    return b_.constant(DType::f32, letter ? constants_.at(word[0]) : std::stod(word), 0);
  }
  uint32_t call(const std::string& name) {
    std::vector<uint32_t> args;
    while (rest_[0] != ')') {
      rest_.remove_prefix(1);
      args.push_back(value());
    }
    rest_.remove_prefix(1);
    if (name == "clip") return op(Prim::min, {op(Prim::max, {args[0], args[1]}), args[2]});
    for (int k = 0; k <= static_cast<int>(Prim::cast); ++k)
      if (const auto p = static_cast<Prim>(k); info(p).id == name) return op(p, args);
    return op(Prim::rint, args);  // round
  }
  uint32_t op(Prim p, const std::vector<uint32_t>& args) {
    const DType type = info(p).cls == PrimInfo::Class::cmp ? DType::boolean : DType::f32;
    if (args.size() == 1) return b_.op(p, type, {args[0]});
    if (args.size() == 2) return b_.op(p, type, {args[0], args[1]});
    return b_.op(p, type, {args[0], args[1], args[2]});
  }

  std::string_view rest_;
  const Constants& constants_;
  ProgramBuilder b_;
  uint32_t x_ = 0, y_ = 0;
};
Program epilogue_program(std::string_view pattern, const Constants& constants) {
  return PatternProgram(pattern, constants).take();
}

std::optional<std::vector<PostOp>> ops_of(std::string_view pattern, const Constants& constants,
                                          Deviations allowed = Deviations::all) {
  return to_post_ops(epilogue_program(pattern, constants), 0, allowed);
}

/// Constants with which a row's parameters hold.
Constants fitting(std::string_view pattern) {
  if (pattern.find("tanh(mul(s") != std::string_view::npos)
    return {{'h', 0.5}, {'s', 0.7978845608}, {'c', 0.044715}};
  if (pattern.find('h') != std::string_view::npos &&
      pattern.find("add(x,a)") != std::string_view::npos)
    return {{'a', 3}, {'h', 6}, {'s', 1.0 / 6}};
  return {{'a', 0.125}, {'b', 0.75}};
}

std::vector<std::string> names(const std::optional<std::vector<PostOp>>& ops) {
  std::vector<std::string> out;
  if (!ops) return {"nothing"};
  for (const PostOp& op : *ops) out.push_back(op.alg);
  return out;
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("every row of the epilogue table computes its formula") {
  std::set<std::string> seen;
  for (std::string_view pattern : epilogue_patterns()) {
    CAPTURE(pattern);
    Program p = epilogue_program(pattern, fitting(pattern));
    auto ops = to_post_ops(p, 0, Deviations::all);
    REQUIRE(ops);
    REQUIRE(ops->size() == 1);
    seen.insert(ops->at(0).alg);
    for (double x :
         {-30.0, -4.0, -3.0, -1.5, -0.3, -0.0, 0.0, 0.2, 0.5, 1.0, 2.5, 3.0, 7.0, 20.0}) {
      if (x < 0 && (ops->at(0).alg == "log" || ops->at(0).alg == "pow" || ops->at(0).alg == "sqrt"))
        continue;
      std::vector<Scalar> scratch;
      Scalar in[2] = {{x, 0}, {1.75, 0}}, out{};
      evaluate(p, in, &out, scratch, true);
      double got = apply_post_op(ops->at(0), x, 1.75);
      if (got != out.f) CHECK(got == doctest::Approx(out.f).epsilon(1e-6));
      if (out.f == 0 && !ops->at(0).deviation.any())
        CHECK(std::signbit(got) == std::signbit(out.f));
    }
  }
  for (const Meaning& m : kMeanings) CHECK_MESSAGE(seen.count(std::string(m.alg)), m.alg);
}

TEST_CASE("HardSwish as exporters spell it, SiLU, relu6") {
  const double sixth = static_cast<float>(1.0 / 6);
  for (const char* pattern :
       {"div(mul(x,clip(add(x,a),0,h)),h)", "mul(x,div(clip(add(x,a),0,h),h))",
        "mul(mul(x,clip(add(x,a),0,h)),s)", "mul(clip(add(a,x),0,h),mul(s,x))"}) {
    auto ops = ops_of(pattern, {{'a', 3}, {'h', 6}, {'s', sixth}});
    REQUIRE(names(ops) == Names{"hardswish"});
    CHECK(ops->at(0).alpha == doctest::Approx(1.0 / 6));
    CHECK(ops->at(0).beta == doctest::Approx(0.5));
  }
  CHECK(names(ops_of("mul(mul(x,clip(add(x,a),0,h)),s)", {{'a', 3}, {'h', 6}, {'s', 0.2}})) !=
        Names{"hardswish"});
  CHECK(names(ops_of("mul(sigmoid(x),x)", {})) == Names{"swish"});
  auto relu6 = ops_of("clip(x,0,6)", {});
  REQUIRE(names(relu6) == Names{"clip"});
  CHECK(relu6->at(0).beta == 6);
  CHECK(names(ops_of("max(0,min(6,x))", {})) == Names{"clip"});
}

TEST_CASE("chains, operands, and what must not match") {
  CHECK(names(ops_of("max(add(x,y),0)", {})) == Names{"add", "relu"});
  CHECK(names(ops_of("add(max(x,0),y)", {})) == Names{"relu", "add"});
  CHECK(names(ops_of("add(mul(x,a),b)", {{'a', 2}, {'b', 3}})) == Names{"linear"});
  CHECK(names(ops_of("tanh(div(mul(y,x),a))", {{'a', 3}})) == Names{"mul", "linear", "tanh"});
  CHECK(ops_of("max(add(x,y),0)", {})->at(0).operand == 1);
  CHECK(ops_of("x", {})->empty());
  // y - x and y / x have no form; x is read twice; erf is never the library's; a step is missing.
  CHECK_FALSE(ops_of("sub(y,x)", {}));
  CHECK_FALSE(ops_of("div(y,x)", {}));
  CHECK_FALSE(ops_of("add(max(x,0),mul(x,y))", {}));
  CHECK_FALSE(ops_of("mul(mul(a,x),add(1,erf(div(x,b))))", {{'a', 0.5}, {'b', 1.41421356}}));
  CHECK_FALSE(ops_of("sin(max(x,0))", {}));
}

TEST_CASE("rows are taken with no more than the deviations that are allowed") {
  CHECK_FALSE(ops_of("max(x,0)", {}, Deviations::none));
  CHECK_FALSE(ops_of("mul(x,sigmoid(x))", {}, Deviations::none));
  CHECK(names(ops_of("add(abs(x),y)", {}, Deviations::none)) == Names{"abs", "add"});
  for (const char* hides :
       {"max(x,0)", "clip(x,0,6)", "max(x,y)", "min(x,y)", "exp(x)", "clip(add(mul(a,x),b),0,1)"})
    CHECK_FALSE(ops_of(hides, {{'a', 0.2}, {'b', 0.5}}, Deviations::rounding));
  for (const char* keeps : {"mul(x,sigmoid(x))", "tanh(x)", "select(lt(x,0),mul(a,x),x)",
                            "mul(x,clip(add(mul(a,x),b),0,1))"})
    CHECK(ops_of(keeps, {{'a', 0.2}, {'b', 0.5}}, Deviations::rounding));
  CHECK(text(ops_of("max(x,0)", {})->at(0).deviation.nan) == "NaN may become 0");
  CHECK(text(ops_of("clip(x,0,6)", {})->at(0).deviation.nan) == "NaN may become a bound");
  CHECK(ops_of("max(x,0)", {})->at(0).deviation.rounding.empty());
  CHECK_FALSE(ops_of("add(x,y)", {})->at(0).deviation.any());
}

TEST_CASE("f16 storage is widened and narrowed around the epilogue; other types are not taken") {
  for (DType t : {DType::f16, DType::bf16, DType::f64, DType::i32}) {
    ProgramBuilder b;
    DType c = compute_type(t);
    uint32_t x = b.cast(b.input(t), c), y = b.cast(b.input(t), c);
    b.output(b.cast(b.op(Prim::max, c, {b.op(Prim::add, c, {x, y}), b.constant(c, 0, 0)}), t));
    auto ops = to_post_ops(b.take(), 0, Deviations::all);
    CHECK(names(ops) == (c == DType::f32 ? Names{"add", "relu"} : Names{"nothing"}));
  }
}
