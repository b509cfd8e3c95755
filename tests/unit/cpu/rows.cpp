// Row kernels against the interpreter: every row operator on random shapes, axes, element types and
// layouts, alone and with pointwise neighbours; long rows cut over threads; sums against double;
// special values.
#include <limits>
#include <numeric>

#include "engine/base/tolerance.h"
#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/semantics/row.h"
#include "runtime/parallel.h"
#include "tests/unit/codegen/row_cases.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

using ferrule::test::kAnyRows, ferrule::test::kFloatRows, ferrule::test::random_dims,
    ferrule::test::random_of, ferrule::test::random_region, ferrule::test::row_operator;

/// A graph whose nodes are one region, with the tensors of its inputs.
struct Region : ferrule::test::RowGraph {
  using RowGraph::RowGraph;

  std::string text;
  bool narrow = false;  ///< code for AVX2 whatever runs here
  /// Runs the region as one kernel, operands and results in these layouts where they have three
  /// axes or more. With a small cache nothing is kept in tiles.
  std::vector<Tensor> run(Layout in, Layout out, int64_t l2_bytes = 1 << 20) {
    auto region = lower_rows(operators(), graph, graph.order(), std::vector(graph.outputs()));
    REQUIRE_MESSAGE(region.has_value(), (region ? "" : region.error().reason()));
    Target target;
    target.name = narrow || !__builtin_cpu_supports("avx512bw") ? "cpu-avx2" : "cpu-avx512";
    target.l2_bytes = l2_bytes;
    Harness h("rows");
    h.ops = &operators();
    h.target = &target;
    h.call.rows = &*region;
    auto layout = [](const Dims& d, Layout l) {
      return d.size() >= 3 && d.size() <= 5 ? l : Layout::plain;
    };
    for (const RowOperand& o : region->inputs) {
      const auto at =
          std::find(graph.inputs().begin(), graph.inputs().end(), o.value) - graph.inputs().begin();
      const Tensor& t = tensors[static_cast<size_t>(at)];
      h.input(t, layout(t.dims(), in));
    }
    for (const RowOperand& o : region->outputs)
      h.output(graph.value(o.value).type.dtype, dims(o.value), layout(dims(o.value), out));
    std::vector<Tensor> results{h.run(make_rows, 0)};
    text = h.text;
    for (size_t k = 1; k < region->outputs.size(); ++k) results.push_back(h.result(k));
    return results;
  }
  void check(Layout in, Layout out, int64_t l2_bytes = 1 << 20) {
    InterpreterOptions options;
    options.ops = &operators();
    auto want = interpret(graph, tensors, options);
    REQUIRE_MESSAGE(want.has_value(), (want ? "" : render(want.error())));
    const auto got = run(in, out, l2_bytes);
    REQUIRE(got.size() == want->size());
    for (size_t k = 0; k < got.size(); ++k) {
      const Difference d = compare(got[k], (*want)[k], model_tolerance(got[k].dtype()));
      CHECK_MESSAGE(d.ok, d.text);
    }
  }
};

Layout any_layout(std::mt19937& rng) { return rng() % 2 ? Layout::plain : Layout::channels_last; }

}  // namespace

TEST_CASE("row operators on random shapes, axes, types and layouts, with neighbours") {
  std::mt19937 rng(7);
  for (const auto* ops : {&kFloatRows, &kAnyRows})
    for (const std::string& op : *ops)
      for (int round = 0; round < 10; ++round) {
        const DType type =
            std::vector{DType::f32, DType::f32, DType::f64, DType::f16, DType::bf16}[rng() % 5];
        Region r(type);
        random_region(r, op, rng);
        CAPTURE(op);
        CAPTURE(round);
        CAPTURE(static_cast<int>(type));
        const Layout in = any_layout(rng), out = any_layout(rng);
        CAPTURE(to_text(
            lower_rows(operators(), r.graph, r.graph.order(), std::vector(r.graph.outputs()))
                ->program));
        r.narrow = round % 2;
        r.check(in, out, rng() % 2 ? 1 << 20 : 64);
      }
}

TEST_CASE("reductions of integers wrap, divide and compare as the interpreter does") {
  std::mt19937 rng(11);
  for (DType type : {DType::i8, DType::u8, DType::i16, DType::u16, DType::i32, DType::u32,
                     DType::i64, DType::u64})
    for (const std::string& op : kAnyRows)
      for (int round = 0; round < 3; ++round) {
        Region r(type);
        const ValueId x = r.input(random_of(type, random_dims(rng, 1 + rng() % 4), rng));
        r.graph.add_output(row_operator(r, x, op, rng));
        CAPTURE(op);
        CAPTURE(static_cast<int>(type));
        r.narrow = round % 2;
        r.check(any_layout(rng), any_layout(rng));
      }
}

TEST_CASE("several row operators and two results in one kernel") {
  std::mt19937 rng(13);
  for (const Dims& d : std::vector<Dims>{{4, 7}, {3, 130}, {2, 5, 9, 11}}) {
    Region r(DType::f32);
    const Dims last{-1};
    const ValueId x = r.input(random_of(DType::f32, d, rng));
    const ValueId mean = r.node("ReduceMean", {x, r.axes(last)}, {{"keepdims", int64_t{1}}});
    const ValueId c = r.node("Sub", {x, mean});
    const ValueId v =
        r.node("ReduceMean", {r.node("Mul", {c, c}), r.axes(last)}, {{"keepdims", int64_t{1}}});
    const ValueId n = r.node("Div", {c, r.node("Sqrt", {v})});
    r.graph.add_output(n);
    r.graph.add_output(v);
    for (Layout l : {Layout::plain, Layout::channels_last}) r.check(l, l);
  }
}

/// The sum of two tensors and a norm of it, both wanted.
static void residual_norm(Region& r, const Dims& d, const char* op, std::mt19937& rng) {
  const ValueId s =
      r.node("Add", {r.input(random_of(r.type, d, rng)), r.input(random_of(r.type, d, rng))});
  r.graph.add_output(s);
  r.graph.add_output(r.node(op, {s, r.input(random_of(r.type, {d.back()}, rng))},
                            {{"axis", int64_t{-1}}, {"epsilon", 1e-3}}));
}

TEST_CASE("what is normalised is a further result: written once, and read back") {
  std::mt19937 rng(19);
  set_threads(2);
  for (const char* op : {"LayerNormalization", "RMSNormalization"}) {
    for (DType t : {DType::f32, DType::f64, DType::f16})
      for (const Dims& d : std::vector<Dims>{{1, 1}, {4, 7}, {3, 130}, {2, 5, 9, 11}, {40, 3}})
        for (Layout l : {Layout::plain, Layout::channels_last}) {
          Region r(t);
          residual_norm(r, d, op, rng);
          r.check(l, l);
        }
    Region cut(DType::f32);  // over threads
    residual_norm(cut, {1, 300001}, op, rng);
    cut.check(Layout::plain, Layout::plain);
    if (threads() > 1) CHECK(cut.text.ends_with(":sliced"));

    auto region =
        lower_rows(operators(), cut.graph, cut.graph.order(), std::vector(cut.graph.outputs()));
    REQUIRE(region.has_value());
    const RowSource sum{RowSource::Kind::result, 0}, skip{RowSource::Kind::operand, 1};
    const StagedRows rows = split_rows(*region, true);
    CHECK(rows.tiles.empty());
    for (size_t k = 0; k < rows.stages.size(); ++k) {
      const RowStage& s = rows.stages[k];
      CAPTURE(to_text(rows));
      CHECK(std::ranges::count(s.outputs, sum) == (k == 0));
      CHECK(std::ranges::count(s.inputs, skip) == (k == 0));
      CHECK(std::ranges::count(s.inputs, sum) == (k > 0 && s.elements));
    }
  }
}

TEST_CASE("a result lies over what nothing reads behind it") {
  std::mt19937 rng(29);
  for (DType t : {DType::f32, DType::f16}) {
    Region r(t);
    const Dims d{3, 8};
    const ValueId x = r.input(random_of(t, d, rng)), skip = r.input(random_of(t, d, rng)),
                  s = r.node("Add", {x, skip}),
                  y = r.node("Mul", {r.node("Softmax", {s}, {{"axis", int64_t{-1}}}), skip});
    r.graph.add_output(s);
    r.graph.add_output(y);
    auto region = lower_rows(operators(), r.graph, r.graph.order(), std::vector(r.graph.outputs()));
    REQUIRE(region.has_value());
    REQUIRE(region->inputs[0].value == x);
    CHECK(region->writes_over(0, 0));
    CHECK_FALSE(region->writes_over(1, 0));  // the factor is read at the end
    CHECK(region->writes_over(0, 1));
    CHECK(region->writes_over(1, 1));
  }
}

TEST_CASE("long rows are cut over threads") {
  std::mt19937 rng(17);
  set_threads(2);
  for (const char* op : {"ReduceSum", "Softmax", "ReduceMax", "LayerNormalization"})
    for (const Dims& d : std::vector<Dims>{{300001}, {1, 3, 70000}}) {
      Region r(DType::f32);
      const ValueId x = r.node("Mul", {r.input(random_of(DType::f32, d, rng)),
                                       r.input(random_of(DType::f32, {1}, rng))});
      if (op[0] == 'L') {
        r.graph.add_output(r.node(op, {x, r.input(random_of(DType::f32, {d.back()}, rng))},
                                  {{"axis", int64_t{-1}}}));
      } else if (op[0] == 'R') {
        r.graph.add_output(
            r.node(op, {x}, {{"keepdims", int64_t{0}}, {"noop_with_empty_axes", int64_t{0}}}));
      } else {
        r.graph.add_output(r.node(op, {x}, {{"axis", int64_t{-1}}}));
      }
      r.check(Layout::plain, Layout::plain);
      if (d.size() == 1 && threads() > 1) CHECK(r.text.ends_with(":sliced"));
    }
}

TEST_CASE("sums of many numbers are as good as in double") {
  for (int64_t n : {1000, 65537, 1000003}) {
    std::vector<float> v(static_cast<size_t>(n));
    std::mt19937 rng(23);
    for (float& x : v) x = std::uniform_real_distribution<float>(0, 1)(rng);
    Region r(DType::f32);
    r.graph.add_output(r.node("ReduceSum", {r.input(Tensor::of_f32({n}, v))},
                              {{"keepdims", int64_t{0}}, {"noop_with_empty_axes", int64_t{0}}}));
    const double want = std::accumulate(v.begin(), v.end(), 0.0);
    CHECK(std::fabs(r.run(Layout::plain, Layout::plain)[0].at_f64(0) - want) <=
          want * 0x1p-24);  // one rounding
  }
}

TEST_CASE("rows of nothing") {
  for (DType type : {DType::f32, DType::i32})
    for (const std::string& op : kAnyRows) {
      Region r(type);
      r.graph.add_output(r.node(op, {r.input(Tensor::allocate(type, {3, 0, 2}).first), r.axes({1})},
                                {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{0}}}));
      CAPTURE(op);
      r.check(Layout::plain, Layout::plain);
    }
  Region r(DType::f32);
  r.graph.add_output(r.node("Softmax", {r.input(Tensor::allocate(DType::f32, {0, 5}).first)},
                            {{"axis", int64_t{-1}}}));
  r.check(Layout::plain, Layout::plain);
}

TEST_CASE("softmax of short rows: infinities, differences beyond every exponent, NaN") {
  const float inf = std::numeric_limits<float>::infinity();
  for (int64_t copies : {1, 40}) {  // along the row, and across rows
    std::vector<float> values;
    for (int64_t k = 0; k < copies; ++k)
      values.insert(values.end(), {0, -inf, 0, 500, -500, 500, -90, 0, -95, 1, std::nanf(""), 2});
    Region r(DType::f32);
    r.graph.add_output(r.node("Softmax", {r.input(Tensor::of_f32({4 * copies, 3}, values))},
                              {{"axis", int64_t{-1}}}));
    const Tensor y = r.run(Layout::plain, Layout::plain)[0];
    auto v = y.as<float>().subspan(static_cast<size_t>(copies - 1) * 12);
    CHECK(v[0] == 0.5f);
    CHECK(v[1] == 0.0f);
    CHECK(v[4] == 0.0f);
    CHECK(v[5] == 0.5f);
    CHECK(v[6] == doctest::Approx(std::exp(-90.0)).epsilon(1e-5));
    CHECK(v[8] ==
          doctest::Approx(std::exp(-95.0)).epsilon(1e-2));  // below the smallest normal number
    CHECK(v[7] == 1.0f);
    for (size_t k = 9; k < 12; ++k) CHECK(std::isnan(v[k]));
  }
}

TEST_CASE("division by the norm of a row survives every size of it") {
  const float inf = std::numeric_limits<float>::infinity();
  for (float x : {1e-44f, 1e-40f, 1e-20f, 1.0f, 1e20f, 3e38f}) {
    Region r(DType::f32);
    r.graph.add_output(r.node("LpNormalization",
                              {r.input(Tensor::of_f32({1, 1}, std::vector<float>{x}))},
                              {{"axis", int64_t{-1}}, {"p", int64_t{1}}}));
    CAPTURE(x);
    CHECK(r.run(Layout::plain, Layout::plain)[0].at_f64(0) == doctest::Approx(1.0).epsilon(1e-6));
  }
  Region zero(DType::f32);
  zero.graph.add_output(zero.node(
      "LpNormalization", {zero.input(Tensor::of_f32({2, 2}, std::vector<float>{0, 0, inf, 1}))},
      {{"axis", int64_t{-1}}, {"p", int64_t{2}}}));
  const Tensor y = zero.run(Layout::plain, Layout::plain)[0];
  CHECK(y.at_f64(0) == 0);
  CHECK(std::isnan(y.at_f64(2)));
  CHECK(y.at_f64(3) == 0);
}

TEST_CASE("maximum and minimum keep NaN, wherever it is") {
  for (int64_t n : {3, 16, 40, 150})
    for (int64_t at : {int64_t{0}, n / 3, n - 2, n - 1}) {
      std::vector<float> v(static_cast<size_t>(n), 1.0f);
      v[static_cast<size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
      for (const char* op : {"ReduceMax", "ReduceMin"})
        for (const Dims& d : std::vector<Dims>{{1, n}, {n, 1}}) {
          Region r(DType::f32);
          r.graph.add_output(
              r.node(op, {r.input(Tensor::of_f32(d, v))}, {{"noop_with_empty_axes", int64_t{0}}}));
          CHECK(std::isnan(r.run(Layout::plain, Layout::plain)[0].at_f64(0)));
        }
    }
}

TEST_CASE("what is not one region of rows is refused with its reason") {
  auto why = [](Region& r) {
    auto region = lower_rows(operators(), r.graph, r.graph.order(), std::vector(r.graph.outputs()));
    REQUIRE_FALSE(region.has_value());
    return region.error().reason();
  };
  std::mt19937 rng(1);
  Region two(DType::f32);
  const ValueId p =
      two.node("Softmax", {two.input(random_of(DType::f32, {4, 4}, rng))}, {{"axis", int64_t{0}}});
  two.graph.add_output(two.node("Softmax", {p}, {{"axis", int64_t{1}}}));
  CHECK(why(two).find("other axes") != std::string::npos);
  Region squeezed(DType::f32);
  const ValueId x = squeezed.input(random_of(DType::f32, {4, 4}, rng));
  const ValueId s = squeezed.node("ReduceSum", {x, squeezed.axes({1})}, {{"keepdims", int64_t{0}}});
  squeezed.graph.add_output(squeezed.node("Mul", {x, s}));
  CHECK(why(squeezed).find("lost its axes") != std::string::npos);
}

}  // namespace ferrule::cpu::test
