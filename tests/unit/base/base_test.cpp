#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/base/applicable.h"
#include "engine/base/diagnostics.h"
#include "engine/base/dtype.h"
#include "engine/base/join.h"
#include "engine/base/limits.h"

using namespace ferrule;

TEST_CASE("counts in texts") {
  CHECK(counted(0, "layer") == "0 layers");
  CHECK(counted(size_t{1}, "layer") == "1 layer");
  CHECK(counted(-1, "more tensor") == "-1 more tensors");
}

TEST_CASE("dtype: names go there and back") {
  for (int i = 1; i <= 23; ++i) {
    DType t = static_cast<DType>(i);
    CHECK(parse_dtype(name(t)) == t);
  }
  CHECK(parse_dtype("float") == DType::f32);
  CHECK(parse_dtype("int64") == DType::i64);
  CHECK(parse_dtype("bool") == DType::boolean);
  CHECK(parse_dtype("nope") == std::nullopt);
  CHECK(size_bytes(DType::i4, 3) == 2);
  CHECK(size_bytes(DType::f16, 3) == 6);
  CHECK(compute_type(DType::bf16) == DType::f32);
  CHECK(compute_type(DType::f64) == DType::f64);
  CHECK(compute_type(DType::i8) == DType::i8);
}

TEST_CASE("dtype: half precision, every code") {
  for (uint32_t i = 0; i < 65536; ++i) {
    auto h = static_cast<uint16_t>(i);
    float f = f16_to_float(h);
    if (std::isnan(f))
      CHECK(std::isnan(f16_to_float(float_to_f16(f))));
    else
      REQUIRE(float_to_f16(f) == h);
    float b = bf16_to_float(h);
    if (std::isnan(b))
      CHECK(std::isnan(bf16_to_float(float_to_bf16(b))));
    else
      REQUIRE(float_to_bf16(b) == h);
  }
}

TEST_CASE("dtype: half precision rounds to nearest even") {
  CHECK(float_to_f16(65519.0f) == 0x7bff);
  CHECK(float_to_f16(65520.0f) == 0x7c00);
  CHECK(float_to_f16(1.0f + 0x1p-11f) == 0x3c00);      // tie to even
  CHECK(float_to_f16(1.0f + 3 * 0x1p-11f) == 0x3c02);  // tie to even, up
  CHECK(float_to_f16(std::nextafter(1.0f + 0x1p-11f, 2.0f)) == 0x3c01);
  CHECK(float_to_f16(0x1p-25f) == 0);  // half of the smallest: tie to zero
  CHECK(float_to_f16(std::nextafter(0x1p-25f, 1.0f)) == 1);
  CHECK(float_to_f16(-0.0f) == 0x8000);
  CHECK(float_to_bf16(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(float_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("escape: nothing that a terminal acts on gets through") {
  CHECK(escape("conv_1/Größe") == "conv_1/Größe");
  CHECK(escape("a\nb\x1b[31m") == "a\\x0Ab\\x1B[31m");
  CHECK(escape(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(escape("\xff\xc0\x80") == "\\xFF\\xC0\\x80");
  CHECK(escape("\u202egnp") == "\\xE2\\x80\\xAEgnp");
  CHECK(escape("\xed\xa0\x80") == "\\xED\\xA0\\x80");  // a surrogate is no UTF-8
  CHECK(escape(std::string(300, 'x'), 10) == std::string(10, 'x') + "…");
  CHECK(escape(std::string(100000000, 'x')).size() < 300);
}

TEST_CASE("diagnostics: text, hint and exit code come from the table") {
  auto e = error(Code::limit_exceeded, "graph \"g\"", "nodes", 5, 4).value();
  CHECK(e.message == "nodes is 5, more than the limit 4");
  CHECK(render(e) ==
        "error[limit_exceeded]: graph \"g\": nodes is 5, more than the limit 4\nhint: raise it "
        "with --limit");
  CHECK(exit_code(e.code) == Exit::limit);
  auto r = error(Code::rule_invalid, "a.yaml:3:1", "key x is unknown", "did you mean y?").value();
  CHECK(r.hint == "did you mean y?");
  CHECK(r.message == "key x is unknown");
  CHECK(code_name(Code::graph_cycle) == "graph_cycle");
}

TEST_CASE("applicable: only required() makes an error of what is not") {
  static_assert(!std::is_constructible_v<Error, NotApplicable>);
  static_assert(!std::is_constructible_v<Error, Refusal>);
  static_assert(!std::is_constructible_v<Status, tl::unexpected<NotApplicable>>);
  static_assert(!std::is_constructible_v<Status, tl::unexpected<Refusal>>);
  static_assert(!std::is_constructible_v<Result<std::string>, Applicable<std::string>>);
  static_assert(std::is_convertible_v<Result<std::string>, Applicable<std::string>>);

  auto declines = [](bool fails) -> Applicable<std::string> {
    if (fails) return error(Code::library_failed, "layer", "oneDNN", "status 3");
    return not_applicable("layer", "Conv", "no kernel");
  };
  auto asked = [&](bool fails) -> Applicable<> {
    FERRULE_ASSIGN(std::string s, declines(fails));
    return {};
  };
  const auto no = asked(false), failed = asked(true);
  REQUIRE_FALSE(no);
  CHECK(no.error().not_applicable());
  CHECK(no.error().error() == nullptr);
  CHECK(no.error().place() == "layer");
  CHECK(no.error().reason() == "operator Conv cannot run here: no kernel");
  REQUIRE_FALSE(failed);
  CHECK_FALSE(failed.error().not_applicable());
  CHECK(failed.error().reason() == "oneDNN failed: status 3");

  CHECK(render(required(no).error()) ==
        "error[unsupported_operator]: layer: operator Conv cannot run here: no kernel");
  CHECK(required(failed).error().code == Code::library_failed);
  CHECK(required(Applicable<int>(3)) == 3);
}

TEST_CASE("limits: by name, with a suggestion") {
  Limits l;
  CHECK(set_limit(l, "nodes=5"));
  CHECK(l.nodes == 5);
  auto wrong = set_limit(l, "node=5");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message.find("\"nodes\"") != std::string::npos);
  CHECK_FALSE(set_limit(l, "nodes"));
  CHECK_FALSE(set_limit(l, "nodes=-1"));
  CHECK_FALSE(set_limit(l, "nodes=5x"));
  CHECK_FALSE(set_limit(l, "nodes=99999999999999999999"));
  CHECK(l.nodes == 5);
}
