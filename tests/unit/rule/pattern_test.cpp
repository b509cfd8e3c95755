// The pattern language: what parses, how it prints, what is bound, blocks, errors with their place.
#include <doctest/doctest.h>

#include "engine/rule/pattern_parse.h"
#include "tests/unit/rule/same.h"

using namespace ferrule;

namespace {

Pattern parsed(std::string_view text, const Blocks& blocks = {}) {
  auto p = parse_pattern(text, Place{"f.yaml", 10, 5}, blocks);
  REQUIRE_MESSAGE(p.has_value(), (p ? "" : p.error().place + ": " + p.error().message), text);
  return *p;
}
Pattern replaced(std::string_view text) {
  auto p = parse_replacement(text, Place{"f.yaml", 10, 5});
  REQUIRE_MESSAGE(p.has_value(), (p ? "" : p.error().place + ": " + p.error().message), text);
  return *p;
}
std::string message(std::string_view text, bool replacement = false, const Blocks& blocks = {}) {
  Place at{"f.yaml", 10, 5};
  auto p = replacement ? parse_replacement(text, at) : parse_pattern(text, at, blocks);
  REQUIRE_MESSAGE(!p.has_value(), text);
  return p.error().place + ": " + p.error().message +
         (p.error().hint.empty() ? "" : " (" + p.error().hint + ")");
}
std::string show(const BoundNames& names) {
  std::string s;
  for (const auto& [n, b] : names)
    s += (s.empty() ? "" : " ") + n + ":" + std::string(name(b.kind)) + (b.inner ? "*" : "") +
         (b.maybe_absent ? "?" : "");
  return s;
}

constexpr std::string_view kForms[] = {
    "y = Relu(x)\n",
    "[conv] t = {Conv|ConvTranspose}<...>(x, W!, B?)\ny = Relu(t)\n",
    "y = {Conv|@group.conv|@activation}<group=1, axis=$a, ...>(x, rest...)\n",
    "y = com.microsoft::Gelu(x)\n",
    "y = Mul(x, ~0.5)\n",
    "y = Mul(~0.044715(1e-05), Pow(x, 3))\n",
    "y = Clip(x, -1, inf)\n",
    "y = Clip(x, , hi!)\n",
    "y = Mul(x, (#erf Erf(x) | #tanh Tanh(x)))\n",
    "y = (Mul(x, x) | Pow(x, ~2))\n",
    "y = ([m] Mul(x, s) | [d] Div(x, s))\n",
    "y = Relu?(Conv<...>(x, W![O, _, 3, 3])[N, O, ...])\n",
    "vals, idx = TopK<axis=$b, ...>(x, k?!)\n",
    "vals, _ = TopK<...>(x[..., N], k!)\n",
    "ys... = Split<axis=$a>(x)\n",
    "y = Pad<mode=\"constant\", pads=[0, -1, 2], alpha=0.5, names=[\"a\", \"b\"], scales=[1.0, "
    "2.5]>(x, p!)\n",
    "y = @pointwise(a, b)\n",
};

}  // namespace

TEST_CASE("every form parses, prints and parses back to the same") {
  for (std::string_view text : kForms) {
    Pattern p = parsed(text);
    CHECK(to_text(p) == text);
    CHECK(same(p, parsed(to_text(p))));
  }
}

TEST_CASE("patterns that differ are not the same") {
  for (std::string_view a : kForms)
    for (std::string_view b : kForms) CHECK(same(parsed(a), parsed(b)) == (a == b));
  CHECK(!same(parsed("y = Mul(x, ~0.5)"), parsed("y = Mul(x, 0.5)")));
  CHECK(!same(parsed("y = Mul(x, W!)"), parsed("y = Mul(x, W?)")));
  CHECK(!same(parsed("y = A<a=1>(x)"), parsed("y = A<a=1.0>(x)")));
  CHECK(!same(parsed("y = A<a=1>(x)"), parsed("y = A<a=1, ...>(x)")));
  CHECK(!same(parsed("y = A(x[B, C])"), parsed("y = A(x[B, D])")));
}

TEST_CASE("replacements") {
  for (std::string_view text :
       {"y = x\n",
        "k = Div(gamma, Sqrt(Add(var, {eps})))\ny = conv<...conv, pads={pads_sum(p, q)}>(x, k)\n",
        "y = Op<a=1, b=$a>(x, 0.5)\n", "B2 = Mul((B ?? 0), k)\ny = Conv(x, W, B2)\n",
        "ys... = Split<axis=-1>(x)\n", "y = Constant<value_ints={[-1] + repeat(1, 2)}>()\n",
        "y = f<...f>(x, rest...)\n"}) {
    Pattern p = replaced(text);
    CHECK(to_text(p, true) == text);
    CHECK(same(p, replaced(to_text(p, true))));
  }
  CHECK(same(replaced("y = Add(B ?? 0, k)"), replaced("y = Add((B ?? 0), k)")));
  Pattern copied = replaced("y = conv<...conv, group=2>(x)");
  const PatternExpr& call = *copied.root().expr;
  CHECK(call.ops == std::vector<std::string>{"conv"});
  CHECK(call.copy_attrs == "conv");
  CHECK(!call.any_attrs);
}

TEST_CASE("layout is free") {
  Pattern a = parsed(
      "h = Add(x,\n        ~1)   # a comment\n\n# another\ny = Mul(h, x)\n  | Div(h,\n x)  \n");
  CHECK(to_text(a) == "h = Add(x, ~1)\ny = (Mul(h, x) | Div(h, x))\n");
  CHECK(to_text(parsed("[m] y = Mul(a, b) | Div(a, b)")) ==
        "y = ([m] Mul(a, b) | [m] Div(a, b))\n");
  CHECK(to_text(parsed("y = (#a Abs(x)\n  | #b Neg(x))")) == "y = (#a Abs(x) | #b Neg(x))\n");
  CHECK(to_text(parsed("y = Abs(x) #b Neg(x)")) == "y = Abs(x)\n");
}

TEST_CASE("what is bound, and whether it may be absent") {
  CHECK(show(bound_names(parsed("[conv] t = Conv<axis=$a, ...>(x, W![O, I], B?)\ny = Relu(t)"))) ==
        "B:value? I:size O:size W:value a:attribute conv:node* t:value* x:value y:value*");
  CHECK(show(bound_names(parsed("y = (#m Mul(x, s!) | #d Div(x, d!))"))) ==
        "#d:tag? #m:tag? d:value? s:value? x:value y:value*");
  CHECK(show(bound_names(parsed("y = Mul(x, s) | Div(x, s)"))) == "s:value x:value y:value*");
  CHECK(show(bound_names(parsed("y = [act] Relu?(Add(x, xs...))"))) ==
        "act:node*? x:value xs:list y:value*");
  CHECK(show(bound_names(parsed("y = [m] Mul?(Abs(x), k!)"))) ==
        "k:value? m:node*? x:value y:value*");
  // A line that only one alternative uses is bound with it.
  CHECK(show(bound_names(parsed("c = [p] Pow(x, k)\ny = Tanh(c) | Erf(x)"))) ==
        "c:value*? k:value? p:node*? x:value y:value*");
  CHECK(show(bound_names(parsed("c = Pow(x, k)\ny = Tanh(c) | Erf(c)"))) ==
        "c:value* k:value x:value y:value*");
}

TEST_CASE("blocks expand hygienically") {
  Blocks blocks;
  auto add = [&](std::string_view head, std::string_view body) {
    auto b = parse_block(head, Place{"b.yaml", 1, 1}, body, Place{"b.yaml", 1, 12}, blocks);
    REQUIRE_MESSAGE(b.has_value(), body);
    blocks[b->first] = b->second;
  };
  add("square(x)", "(Mul(x, x) | [p] Pow(x, ~2))");
  add("variance(x)",
      "m = ReduceMean<...>(x, axes)\nd = Sub(x, m)\nReduceMean<...>(square(d), axes)");
  CHECK(to_text(parsed("y = Sqrt(square(a))", blocks)) ==
        "y = Sqrt((Mul(a, a) | [square.x1.p] Pow(a, ~2)))\n");
  // An operand that is a call becomes one value, read twice.
  CHECK(to_text(parsed("y = square(Add(a, b))", blocks)) ==
        "square.x1.x = Add(a, b)\ny = (Mul(square.x1.x, square.x1.x) | [square.x1.p] "
        "Pow(square.x1.x, ~2))\n");
  Pattern v = parsed("y = Sqrt(variance(x))", blocks);
  CHECK(same(v, parsed(to_text(v))));
  CHECK(show(bound_names(v)).find(" m:") == std::string::npos);
  CHECK(to_text(parsed("y = Add(square?(a), square(a))", blocks)).find("square.x2.p") !=
        std::string::npos);
  CHECK(message("y = square(a, b)", false, blocks) ==
        "f.yaml:10:9: block square takes 1 operand, not 2");
  CHECK(message("y = sqare(a)", false, blocks) ==
        "f.yaml:10:9: sqare is neither an operator nor a block (did you mean \"square\"?)");
}

TEST_CASE("errors have a place in the file and a hint") {
  CHECK(message("y = Relu(x") == "f.yaml:10:15: the text ends where \",\" or \")\" should follow");
  CHECK(message("t = Conv(x, W)\ny = Relu(t u)") ==
        "f.yaml:11:16: found \"u\", expected \",\" or \")\"");
  CHECK(message("y Relu(x)") == "f.yaml:10:11: found \"(\", expected \"=\"");
  CHECK(message("y = Conv:c(x)") ==
        "f.yaml:10:13: found \":\", expected the end of the line (a label stands in front: [conv] "
        "t = Conv(…))");
  CHECK(message("t = Abs(x)\ny = Relu(x)") ==
        "f.yaml:10:5: no later line uses this one's result (a pattern is connected; the last line "
        "is its root)");
  CHECK(message("y = Relu(t)\nt = Abs(x)") ==
        "f.yaml:10:14: t is used before the line that makes it (order the lines from inputs to "
        "outputs)");
  CHECK(message("t = Abs(x)\nt = Relu(t)") == "f.yaml:11:5: t is the result of two lines");
  CHECK(message("[a] t = Abs(x)\n[a] y = Abs(t)") == "f.yaml:11:13: label a is given to two nodes");
  CHECK(message("[A] y = Abs(x)") ==
        "f.yaml:10:6: label A begins with a capital (labels are lower case, so that none looks "
        "like an operator)");
  CHECK(message("t = Abs(x)\ny = Relu(t!)") ==
        "f.yaml:11:14: t is made by a line above, so it has no marks");
  CHECK(message("y = x") == "f.yaml:10:9: the last line is not an operator");
  CHECK(message("y = Op<a=b>(x)") ==
        "f.yaml:10:14: b is not an attribute's value (strings are quoted; $name binds; "
        "{expression})");
  CHECK(message("y = Op<a=1, a=2>(x)") == "f.yaml:10:17: attribute a is given twice");
  CHECK(message("y = Op(x[B, !])") ==
        "f.yaml:10:13: not a shape pattern (sizes are names, numbers, _ and one ...: [B, H, 64], "
        "[..., M, N])");
  CHECK(message("y = Op<a={rnak(x)}>(x)") ==
        "f.yaml:10:15: there is no function rnak (did you mean \"rank\"?)");
  CHECK(message("") == "f.yaml:10:5: an empty pattern (a line is: result = Operator(operands))");
  CHECK(message("y = Mul(x, ~0.5)", true) == "f.yaml:10:17: a replacement's numbers are exact");
  CHECK(message("y = Mul(x, a) | Div(x, a)", true) ==
        "f.yaml:10:19: a replacement has no alternatives (write x ?? y for: x if present, else y)");
  CHECK(message(std::string("y = ") + std::string(3000, '(')).find("nested deeper") !=
        std::string::npos);
  std::string chain = "x";
  for (int k = 0; k < 3000; ++k) chain += ", x";
  CHECK(message("y = Sum(" + chain + ")").find("more than 2000 nodes") != std::string::npos);
}

TEST_CASE("operator sets") {
  std::vector<std::string> ops, classes;
  CHECK(parse_op_set("{Add|@activation|@group.conv|a.b::C}", {}, ops, classes));
  CHECK(ops == std::vector<std::string>{"Add", "group.conv", "a.b::C"});
  CHECK(classes == std::vector<std::string>{"activation"});
  CHECK(!parse_op_set("Add|Mul", {}, ops, classes));
  CHECK(!parse_op_set("", {}, ops, classes));
}
