// The condition language: parsing, printing, three-valued evaluation, what decided, holes in
// messages.
#include <doctest/doctest.h>

#include "engine/rule/expr.h"
#include "engine/rule/pattern.h"
#include "engine/rule/vocabulary.h"
#include "engine/target/target.h"

using namespace ferrule;

namespace {

/// x f32[N,64,H,H] input, W f32[32,64,3,3] constant, eps f32 constant, t = Conv(x, W), y = Relu(t).
struct World {
  Graph g;
  ValueId x, w, eps, ones, t, y;
  NodeId conv, relu;
  Bindings b;
  Target target;
  Semantics ops;
  Let let;
  EvalContext ctx{g, b, ops, let, &target};

  World() {
    Dim n = Dim::symbol("N"), h = Dim::symbol("H");
    x = g.add_input("x", Type{DType::f32, Shape{n, 64, h, h}});
    w = g.add_constant("W", Tensor::allocate(DType::f32, {32, 64, 3, 3}).first);
    eps = g.add_constant("eps", Tensor::of_f32({}, {1e-5f}));
    ones = g.add_constant("ones", Tensor::of_f32({3}, {1, 1, 1}));
    t = g.add_value("t", Type{DType::f32, Shape{n, 32, h, h}});
    y = g.add_value("y", Type{DType::f32, Shape{n, 32, h, h}});
    Node c;
    c.op = "Conv", c.name = "Conv_0", c.inputs = {x, w}, c.outputs = {t};
    c.attrs.set("pads", std::vector<int64_t>{1, 1, 1, 1});
    c.attrs.set("group", int64_t{1});
    conv = g.add_node(std::move(c));
    Node r;
    r.op = "Relu", r.name = "Relu_1", r.inputs = {t}, r.outputs = {y};
    relu = g.add_node(std::move(r));
    g.add_output(y);
    b.values = {{"x", x}, {"W", w}, {"eps", eps},    {"ones", ones},
                {"t", t}, {"y", y}, {"B", ValueId{}}};
    b.nodes = {{"conv", conv}, {"act", NodeId{}}};
    b.node_lists = {{"tail", {relu}}, {"none_at_all", {}}};
    b.attrs = {{"perm", std::vector<int64_t>{0, 2, 1}}, {"axis", int64_t{-1}}};
    b.dims = {{"C", Dim(64)}, {"N", Dim::symbol("N")}};
    b.tags = {"erf"};
    target.device = "cpu", target.isa = {"avx2"}, target.cores = 2;
  }
  Val val(std::string_view text) {
    auto e = parse_expression(text, Place{"test", 1, 1});
    REQUIRE_MESSAGE(e.has_value(), text);
    return evaluate(**e, ctx);
  }
  std::string show(std::string_view text) { return str(val(text), g); }
  std::string truth(std::string_view text) {
    auto e = parse_expression(text, Place{"test", 1, 1});
    REQUIRE_MESSAGE(e.has_value(), text);
    switch (evaluate_condition(**e, ctx)) {
      case Truth::yes:
        return "yes";
      case Truth::no:
        return "no";
      default:
        return "unknown";
    }
  }
  std::string detail(std::string_view text) {
    auto e = parse_expression(text, Place{"test", 1, 1});
    REQUIRE_MESSAGE(e.has_value(), text);
    std::string d;
    evaluate_condition(**e, ctx, &d);
    return d;
  }
};

std::string refused(std::string_view text) {
  auto e = parse_expression(text, Place{"f.yaml", 3, 5});
  REQUIRE_MESSAGE(!e.has_value(), text);
  return e.error().place + ": " + e.error().message +
         (e.error().hint.empty() ? "" : " (" + e.error().hint + ")");
}

}  // namespace

TEST_CASE("the range of integer types") {
  World w;
  CHECK(w.show("[lowest(i8), highest(i8), lowest(u8), highest(u8)]") == "[-128, 127, 0, 255]");
  CHECK(w.show("[lowest(i16), highest(u16), highest(u32), lowest(i4), highest(u4)]") ==
        "[-32768, 65535, 4294967295, -8, 15]");
  CHECK(w.show("[lowest(i64), highest(i64)]") == "[-9223372036854775808, 9223372036854775807]");
  CHECK(w.truth("highest(u64) > 0") == "unknown");
  CHECK(w.truth("lowest(x) < 0") == "unknown");  // f32
}

TEST_CASE("arithmetic") {
  World w;
  CHECK(w.show("1 + 2 * 3") == "7");
  CHECK(w.show("(1 + 2) * 3") == "9");
  CHECK(w.show("7 // 2") == "3");
  CHECK(w.show("-7 // 2") == "-4");
  CHECK(w.show("-7 mod 2") == "1");
  CHECK(w.show("8 / 2") == "4");
  CHECK(w.show("7 / 2") == "3.5");
  CHECK(w.show("1 / 0") == "?");
  CHECK(w.show("9223372036854775807 + 1") == "?");
  CHECK(w.show("-9223372036854775807 - 2") == "?");
  CHECK(w.show("2 - -3") == "5");
  CHECK(w.show("[1, 2] + [3]") == "[1, 2, 3]");
  CHECK(w.show("N * 2 + 1") == "2*N+1");
  CHECK(w.show("N * 4 / 2") == "2*N");
  CHECK(w.show("eps * 1e5") == "0.999999975");
  CHECK(w.show("x + 1") == "?");
  CHECK(w.show("if C == 64 then 1 else 2") == "1");
}

TEST_CASE("three-valued logic") {
  World w;
  CHECK(w.truth("C == 64") == "yes");
  CHECK(w.truth("N == 64") == "unknown");
  CHECK(w.truth("N == N") == "yes");
  CHECK(w.truth("N >= 0") == "yes");
  CHECK(w.truth("N == 64 and C == 63") == "no");
  CHECK(w.truth("C == 63 and N == 64") == "no");
  CHECK(w.truth("N == 64 or C == 64") == "yes");
  CHECK(w.truth("N == 64 or C == 63") == "unknown");
  CHECK(w.truth("not N == 64") == "unknown");
  CHECK(w.truth("N == 64 implies C == 64") == "yes");
  CHECK(w.truth("C == 64 implies N == 64") == "unknown");
  CHECK(w.truth("not (C == 63) and true") == "yes");
  CHECK(w.truth("all(i in [1, 2, 3]: i < 3)") == "no");
  CHECK(w.truth("all(i in [1, 2]: i < 3)") == "yes");
  CHECK(w.truth("any(i in [1, N]: i == 7)") == "unknown");
  CHECK(w.truth("all(i in [5, N]: i == 7)") == "no");
  CHECK(w.show("count(i in [1, 2, 3]: i > 1)") == "2");
  CHECK(w.show("sum(i in [1, 2, 3]: i * i)") == "14");
  CHECK(w.truth("C") == "unknown");
}

TEST_CASE("an integer of u64 that i64 does not hold is not known") {
  World w;
  const int64_t big[] = {std::numeric_limits<int64_t>::min(), 3}, most[] = {-1};
  w.b.values["big"] = w.g.add_constant("big", Tensor::of_ints(DType::u64, {2}, big));
  w.b.values["most"] = w.g.add_constant("most", Tensor::of_ints(DType::u64, {}, most));
  CHECK(w.truth("value(most) <= 0") == "unknown");
  CHECK(w.truth("values(big)[0] < 3") == "unknown");
  CHECK(w.truth("values(big)[1] == 3") == "yes");
  CHECK(w.truth("equals(most, -1)") == "no");
}

TEST_CASE("absent operands") {
  World w;
  CHECK(w.truth("absent(B)") == "yes");
  CHECK(w.truth("present(conv) and absent(act)") == "yes");
  CHECK(w.truth("absent(B) or const(B)") == "yes");
  CHECK(w.truth("const(B)") == "unknown");
  CHECK(w.show("value(B) ?? 1") == "1");
  CHECK(w.show("value(eps) ?? 1") == "1e-05");
  CHECK(w.show("attr(conv, 'dilations') ?? [1, 1]") == "[1, 1]");
  CHECK(w.truth("B == 1") == "unknown");
}

TEST_CASE("shapes and broadcasting") {
  World w;
  CHECK(w.show("shape(x)") == "[N, 64, H, H]");
  CHECK(w.truth("shape(x) ~ '[_, C, S, S]'") == "yes");
  CHECK(w.truth("shape(x) ~ '[_, 63, ...]'") == "no");
  CHECK(w.truth("shape(x) ~ '[..., 5]'") == "unknown");
  CHECK(w.truth("shape(x) ~ '[..., 64]'") == "unknown");
  CHECK(w.truth("rank(x) == 4 and dim(x, -3) == C") == "yes");
  CHECK(w.truth("same_shape(t, y)") == "yes");
  CHECK(w.truth("same_shape(x, y)") == "no");
  CHECK(w.truth("static(W) and not static(x)") == "yes");
  CHECK(w.show("reshape_target([2, N, 3])") == "[2, -1, 3]");
  CHECK(w.show("reshape_target(x)") == "?");
  CHECK(w.show("reshape_target([2, 0])") == "?");
  CHECK(w.show("numel(W)") == "18432");
  CHECK(w.show("bytes(x)") == "256*H*H*N");
  CHECK(w.show("bcast(y, t)") == "none");
  CHECK(w.show("bcast(eps, t)") == "scalar");
  CHECK(w.show("bcast([32, 1, 1], t)") == "channel");
  CHECK(w.show("bcast([1, 32, 1, 1], t)") == "channel");
  CHECK(w.show("bcast([2, 1, 1], t)") == "impossible");
  CHECK(w.show("bcast([1, 2, 1, 1], [1, 2, 3])") == "impossible");
  CHECK(w.show("bcast([8], [4, 8])") == "row");
  CHECK(w.show("bcast([1, 8, 9], [4, 8, 9])") == "batch");
  CHECK(w.show("bcast([4, 1], [4, 8])") == "general");
  CHECK(w.truth("bcast(ones, t) in {none, scalar, channel}") == "unknown");  // H may be 3
  CHECK(w.truth("broadcasts_to([32, 1, 1], t)") == "yes");
  CHECK(w.truth("broadcasts_to([1, 1, 1, 1, 1], t)") == "no");
  CHECK(w.truth("raises_rank([1, 1, 1, 1, 1], t)") == "yes");
  CHECK(w.truth("dtype(x) in [f16, f32]") == "yes");
  CHECK(w.truth("is_float(dtype(x))") == "yes");
  CHECK(w.truth("widens(f16, f32) and not widens(f32, f16) and not widens(i32, f32)") == "yes");
  CHECK(w.truth("widens(bf16, f16) or widens(f16, bf16)") == "no");
}

TEST_CASE("constants") {
  World w;
  CHECK(w.truth("const(W)") == "yes");
  CHECK(w.truth("const(x)") == "no");
  CHECK(w.truth("eps == 1e-5") == "no");         // f32 against a double
  CHECK(w.truth("equals(eps, 1e-5)") == "yes");  // compared in the constant's own type
  CHECK(w.truth("near(eps, 1e-5)") == "yes");
  CHECK(w.truth("near(eps, 1.1e-5)") == "no");
  CHECK(w.truth("uniform(ones) and equals(ones, 1)") == "yes");
  CHECK(w.truth("power_of_two(ones) and power_of_two(-8) and power_of_two(0.25)") == "yes");
  CHECK(w.truth("power_of_two(eps) or power_of_two(0) or power_of_two(6)") == "no");
  const int64_t two53 = int64_t{1} << 53;  // in f64 its neighbours are itself
  for (const auto& [number, is] :
       {std::pair{two53, "yes"}, {two53 + 1, "no"}, {-two53, "yes"}, {-two53 - 1, "no"}}) {
    const std::vector<int64_t> one{number};
    const std::string name = fmt::format("i{}", number);
    w.b.values["whole"] =
        w.g.add_constant(name, Tensor::of<int64_t>(DType::i64, {}, std::span(one)));
    CHECK(w.truth("power_of_two(whole)") == is);
    CHECK(w.truth("power_of_two(value(whole))") == is);
  }
  CHECK(w.show("values(ones)") == "[1, 1, 1]");
  CHECK(w.show("max(ones)") == "1");
  CHECK(w.show("min(3, 1, 2)") == "1");
  CHECK(w.show("max([N, N + 1])") == "N+1");
  CHECK(w.truth("value(ones) == 1") == "unknown");
  CHECK(w.truth("covers([2, 0, 1])") == "yes");
  CHECK(w.truth("covers([2, 0, 2])") == "no");
  CHECK(w.show("range(2, 5)") == "[2, 3, 4]");
  CHECK(w.show("range(5, 2)") == "[]");
  for (const char* long_one :
       {"range(0, 70000)", "range(-9223372036854775807, 9223372036854775807)"}) {
    const Val all = w.val(long_one);
    const auto* unknown = std::get_if<Val::Unknown>(&all.v);
    REQUIRE(unknown);
    CHECK(unknown->fact == "a range of at most 65536 integers");
  }
  CHECK(w.show("slice([1, 2, 3, 4], 1, -1)") == "[2, 3]");
  CHECK(w.show("[5, 6, 7][-1]") == "7");
  CHECK(w.show("[5, 6, 7][3]") == "?");
}

TEST_CASE("nodes") {
  World w;
  CHECK(w.show("op(conv)") == "Conv");
  CHECK(w.truth("op(t) == 'Conv'") == "yes");
  CHECK(w.show("out_channels(conv)") == "32");
  CHECK(w.show("kernel_size(conv)") == "[3, 3]");
  CHECK(w.show("attr(conv, 'pads')") == "[1, 1, 1, 1]");
  CHECK(w.show("pads_sum(attr(conv, 'pads'), [0, 0, 1, 2, 0, 0, 3, 4])") == "[2, 3, 4, 5]");
  CHECK(w.truth("is_depthwise(conv)") == "no");
  CHECK(w.truth("has_attr(conv, 'pads') and not has_attr(conv, 'perm')") == "yes");
  CHECK(w.show("perm_compose(perm, perm)") == "[0, 1, 2]");
  CHECK(w.show("perm_compose([1, 2, 0], [0, 2, 1])") == "[1, 0, 2]");
  CHECK(w.show("perm_inverse([1, 2, 0])") == "[2, 0, 1]");
  CHECK(w.truth("is_identity_perm(perm_compose(perm, perm_inverse(perm)))") == "yes");
  CHECK(w.truth("swaps_last_two(perm)") == "yes");
  CHECK(w.show("axes_norm(axis, rank(x))") == "3");
  CHECK(w.show("uses(t)") == "1");
  CHECK(w.show("uses(y)") == "1");
  CHECK(w.truth("is_output(y) and not is_output(t) and is_input(x)") == "yes");
  CHECK(w.truth("users_all(t, 'Relu|Clip')") == "yes");
  CHECK(w.truth("users_all(y, 'Relu')") == "no");
  CHECK(w.truth("depends(y, x)") == "no");  // x is made by no node
  CHECK(w.truth("depends(y, t)") == "yes");
  CHECK(w.truth("depends(t, y)") == "no");
  CHECK(w.truth("independent([t, y])") == "no");
  CHECK(w.truth("name(conv) ~ 'Conv_*'") == "yes");
  CHECK(w.show("saved_bytes([conv, tail])") == "256*H*H*N");
  CHECK(w.truth("tag('erf') and not tag('tanh')") == "yes");
  CHECK(w.truth("device == cpu and isa('avx2') and not isa('avx512f')") == "yes");
  CHECK(w.truth("profile == ferrule") == "yes");
  CHECK(w.truth("has_kernel('pool', u8)") == "no");
  w.target.contracts["pool"].types = {DType::f32, DType::u8};
  CHECK(w.truth("has_kernel('pool', u8)") == "yes");
  CHECK(w.truth("has_kernel('pool', dtype(x)) and not has_kernel('conv', dtype(x))") == "yes");
  CHECK(w.truth("has_form('pool', 'dilated')") == "no");
  w.target.contracts["pool"].forms = {"dilated"};
  CHECK(w.truth("has_form('pool', 'dilated') and not has_form('conv', 'dilated')") == "yes");
  w.target.profile = "tensorrt";
  CHECK(w.truth("profile != tensorrt or dtype(x) in [f16, i8]") == "no");
  w.ctx.target = nullptr;
  CHECK(w.truth("device == cpu") == "unknown");
}

TEST_CASE("what decided") {
  World w;
  CHECK(w.detail("C == out_channels(conv)") == "C = 64, out_channels(conv) = 32");
  CHECK(w.detail("C == 64 and rank(x) == 3") == "rank(x) = 4");
  CHECK(w.detail("all(i in [1, 7]: i < 3)") == "i = 7");
  CHECK(w.detail("const(x)") == "x = \"x\" f32[N,64,H,H], const(x) = false");
  CHECK(w.detail("N == 64") == "whether N == 64");
  CHECK(w.detail("value(x) == 1") == "the value of \"x\", which is not a constant");
}

TEST_CASE("holes") {
  World w;
  CHECK(interpolate("{conv} + {tail}", w.ctx) == "Conv_0 + Relu_1");
  CHECK(interpolate("{conv} + {act}", w.ctx) == "Conv_0");
  CHECK(interpolate("{conv} + {none_at_all}", w.ctx) == "Conv_0");
  CHECK(interpolate("fused({tail})", w.ctx) == "fused(Relu_1)");
  CHECK(interpolate("{W} is used by {uses(W)} nodes, {bytes(W)} bytes", w.ctx) ==
        "W is used by 1 nodes, 73728 bytes");
  CHECK(interpolate("{C in {1, 64}} {dim(x, 9)}", w.ctx) == "true ?");
  CHECK(interpolate("open {C", w.ctx) == "open {C");
}

TEST_CASE("printing is parsed back to the same") {
  for (std::string_view text : {"a + b * c",
                                "(a + b) * c",
                                "a - (b - c)",
                                "not (a and b)",
                                "not a and b",
                                "a implies b implies c",
                                "(a implies b) implies c",
                                "a ?? b ?? 1",
                                "(a ?? b) + 1",
                                "-a",
                                "-(a + 1)",
                                "[1, -2, 2.5, 1e-05, inf]",
                                "all(v in xs: v > 0 and v < n)",
                                "if a then b else c",
                                "(if a then b else c) + 1",
                                "x[1][2]",
                                "(a + b)[0]",
                                "a not in [1, 2]",
                                "not a in [1]",
                                "shape(x) ~ '[B, _, ...]'",
                                "a == (b == c)",
                                "2 - -3"}) {
    auto e = parse_expression(text, Place{});
    REQUIRE_MESSAGE(e.has_value(), text);
    std::string once = to_text(**e);
    auto again = parse_expression(once, Place{});
    REQUIRE_MESSAGE(again.has_value(), once);
    CHECK(to_text(**again) == once);
    CHECK(once == text);
  }
}

TEST_CASE("errors have a place and a hint") {
  CHECK(refused("rnak(x) == 4") ==
        "f.yaml:3:5: there is no function rnak (did you mean \"rank\"?)");
  CHECK(refused("rank(x) = 4") ==
        "f.yaml:3:13: found \"=\", expected the end of the expression (equality is ==)");
  CHECK(refused("rank(x, 1) == 4") == "f.yaml:3:5: 2 arguments for rank(x: shape) -> int");
  CHECK(refused("a < b < c") == "f.yaml:3:11: comparisons do not chain (write a < b and b < c)");
  CHECK(refused("(a") == "f.yaml:3:7: the expression ends where \")\" should follow");
  CHECK(refused("") == "f.yaml:3:5: an empty expression");
  CHECK(refused("all(xs)") == "f.yaml:3:5: all needs a variable (all(v in list: condition))");
  CHECK(refused("a && b") ==
        "f.yaml:3:7: found \"&\", expected the end of the expression (write and, or)");
  CHECK(refused("'open") == "f.yaml:3:5: found \"'open\", expected a value");
  CHECK(refused("\x01") == "f.yaml:3:5: found \"\\x01\", expected a value");
  CHECK(refused(std::string(500, '(')).find("nested deeper") != std::string::npos);
  CHECK(refused("99999999999999999999") ==
        "f.yaml:3:5: found \"99999999999999999999\", expected a value");
}

TEST_CASE("every vocabulary entry is documented once") {
  std::set<std::string_view> names;
  for (const VocabularyEntry& e : vocabulary()) {
    CHECK_MESSAGE(names.insert(e.name).second, e.name);
    CHECK_MESSAGE(!e.doc.empty(), e.name);
  }
  CHECK(names.contains("bcast"));
}

TEST_CASE("no condition runs for long") {
  // Loops in loops and lists that double end as unknown; a chain of operators has a length.
  World w;
  CHECK(w.truth("all(a in range(0, 60000): all(b in range(0, 60000): a + b >= 0))") == "unknown");
  std::string joined = "[1, 2]";
  for (int k = 0; k < 6; ++k) joined = "(" + joined + " + " + joined + ")";
  CHECK(w.show("count(" + joined + ")") == "128");
  std::string chain = "1";
  for (int k = 0; k < 2000; ++k) chain += " + 1";
  CHECK(refused(chain).find("more than 1000 operators") != std::string::npos);
}
