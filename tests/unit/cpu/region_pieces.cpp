// Regions that move elements, as one kernel: random chains of movements and pointwise operators, in
// random layouts and element sizes, against the interpreter bit by bit; and what must be refused or
// cut.
#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/contract/region_pieces.h"
#include "engine/interpreter/interpreter.h"
#include "tests/unit/codegen/chain_cases.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

using ferrule::test::Chain;
using ferrule::test::grow;
using ferrule::test::sample;

std::vector<Tensor> interpreted(const Graph& g, const std::vector<Tensor>& inputs) {
  Limits limits;
  InterpreterOptions options;
  options.ops = &operators();
  options.limits = &limits;
  auto want = interpret(g, inputs, options);
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : render(want.error())));
  return *want;
}

/// Runs the nodes as one kernel, operands laid out as `layouts` says by turns. False: refused.
bool check_pieces(Chain& c, const std::vector<ValueId>& results, std::mt19937& random,
                  size_t* pieces = nullptr, std::string* refused = nullptr) {
  for (ValueId v : results) c.g.add_output(v);
  auto region = lower_pieces(operators(), c.g, c.nodes, results);
  if (!region) {
    REQUIRE(region.error().not_applicable());
    if (refused) *refused = region.error().reason();
    return false;
  }
  for (const Program& p : region->programs) REQUIRE(verify(p).has_value());
  if (pieces) *pieces = region->pieces.size();
  std::vector<Tensor> inputs;
  for (ValueId v : c.g.inputs())
    inputs.push_back(sample(c.g.value(v).type.dtype, c.dims(v), random));
  const std::vector<Tensor> want = interpreted(c.g, inputs);
  auto layout = [&](const Dims& d) {
    return d.size() >= 3 && d.size() <= 5 && random() % 2 ? Layout::channels_last : Layout::plain;
  };
  Harness h("Pieces");
  h.ops = &operators();
  h.target = &host();
  h.call.region = &*region;
  for (ValueId v : region->inputs) {
    auto at = std::ranges::find(c.g.inputs(), v) - c.g.inputs().begin();
    const Tensor& t = c.g.constant(v) ? *c.g.constant(v) : inputs[static_cast<size_t>(at)];
    h.input(t, layout(t.dims()));
  }
  for (const Tensor& t : want) h.output(t.dtype(), t.dims(), layout(t.dims()));
  auto kernel = h.make(make_pieces);
  REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
  REQUIRE((*kernel)->run().has_value());
  for (size_t k = 0; k < want.size(); ++k)
    CHECK_MESSAGE(h.result(k).identical(want[k]), pieces_text(*region));
  return true;
}

}  // namespace

TEST_CASE("random chains of movements and pointwise operators, as one kernel") {
  std::mt19937 random(11);
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const DType types[] = {DType::f32, DType::f32, DType::i8, DType::f16, DType::i64};
  int run = 0, refused = 0;
  for (int round = 0; round < 250; ++round) {
    CAPTURE(round);
    Chain c;
    const DType type = types[round % 5];
    Dims d;
    for (int64_t k = pick(1, 4); k > 0; --k) d.push_back(pick(1, round % 25 == 0 ? 40 : 8));
    ValueId v = c.input(type, d);
    std::vector<ValueId> made;
    for (int64_t k = pick(1, 5); k > 0; --k) {
      v = grow(c, v, type, random);
      int64_t count = 1;
      for (int64_t n : c.dims(v)) count *= n;
      if (count > 100000) break;
      if (!c.nodes.empty()) made.push_back(v);
    }
    if (c.nodes.empty()) continue;
    std::vector<ValueId> results{v};
    if (made.size() > 1 && made[0] != v && pick(0, 2) == 0)
      results.insert(results.begin(), made[0]);
    (check_pieces(c, results, random) ? run : refused)++;
  }
  CHECK(run > 200);
  MESSAGE(run << " regions run, " << refused << " refused");
}

TEST_CASE("Resize to the nearest pixel by whole and broken factors, in every mode") {
  std::mt19937 random(5);
  for (const char* coordinates :
       {"half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"})
    for (const char* rounding : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"})
      for (const Dims& to : std::vector<Dims>{{1, 3, 8, 10}, {1, 3, 2, 5}, {1, 3, 6, 7}}) {
        Chain c;
        const ValueId x = c.input(DType::f32, {1, 3, 4, 5});
        ValueId y = c.node("Resize", {x, {}, {}, c.ints(to)},
                           {{"mode", std::string("nearest")},
                            {"coordinate_transformation_mode", std::string(coordinates)},
                            {"nearest_mode", std::string(rounding)}});
        y = c.node("Add", {y, c.input(DType::f32, to)});
        CHECK(check_pieces(c, {y}, random));
      }
}

TEST_CASE("what comes in one piece, and what in several") {
  std::mt19937 random(3);
  size_t pieces = 0;
  SUBCASE("a shuffle of channels between two layouts") {
    Chain c;
    ValueId v = c.input(DType::f32, {1, 12, 5, 7});
    v = c.node("Reshape", {v, c.ints({1, 3, 4, 5, 7})}, {{"allowzero", int64_t{0}}});
    v = c.node("Transpose", {v}, {{"perm", Dims{0, 2, 1, 3, 4}}});
    v = c.node("Reshape", {v, c.ints({1, 12, 5, 7})}, {{"allowzero", int64_t{0}}});
    REQUIRE(check_pieces(c, {v}, random, &pieces));
    CHECK(pieces == 1);
  }
  SUBCASE("two results of a Split are one piece each; a border is one a side") {
    Chain c;
    const ValueId x = c.input(DType::f32, {1, 6, 4, 4});
    auto parts = c.several("Split", {x, c.ints({2, 4})}, {{"axis", int64_t{1}}}, 2);
    ValueId a = c.node("Relu", {parts[0]});
    ValueId b = c.node("Pad", {parts[1], c.ints({0, 0, 1, 1, 0, 0, 1, 1})},
                       {{"mode", std::string("constant")}});
    REQUIRE(check_pieces(c, {a, b}, random, &pieces));
    CHECK(pieces == 1 + 5);
  }
  SUBCASE("larger ones, split over threads") {
    Chain c;
    ValueId v = c.input(DType::f32, {1, 32, 60, 60});
    v = c.node("Relu", {v});
    v = c.node("Transpose", {v}, {{"perm", Dims{0, 2, 3, 1}}});
    v = c.node("Concat", {v, c.input(DType::f32, {1, 60, 60, 8})}, {{"axis", int64_t{3}}});
    REQUIRE(check_pieces(c, {v}, random, &pieces));
    CHECK(pieces == 2);
  }
  SUBCASE("nothing at all") {
    Chain c;
    ValueId v = c.input(DType::f32, {2, 0, 3});
    v = c.node("Transpose", {v}, {{"perm", Dims{2, 0, 1}}});
    REQUIRE(check_pieces(c, {v}, random, &pieces));
    CHECK(pieces == 0);
  }
}

TEST_CASE("regions that are refused, with the reason") {
  std::mt19937 random(4);
  std::string why;
  SUBCASE("an axis that is split where it was not merged") {
    Chain c;
    ValueId v = c.input(DType::f32, {4, 6});
    v = c.node("Transpose", {v}, {{"perm", Dims{1, 0}}});
    v = c.node("Reshape", {v, c.ints({8, 3})}, {{"allowzero", int64_t{0}}});
    CHECK_FALSE(check_pieces(c, {v}, random, nullptr, &why));
    CHECK(why.find("does not split its axes where they were merged") != std::string::npos);
  }
  SUBCASE("too many pieces") {
    Chain c;
    Dims indices;
    for (int64_t k = 0; k < 200; ++k) indices.push_back(k * k % 97);
    const ValueId v =
        c.node("Gather", {c.input(DType::f32, {97, 2}), c.ints(indices)}, {{"axis", int64_t{0}}});
    CHECK_FALSE(check_pieces(c, {v}, random, nullptr, &why));
    CHECK(why.find("more than 64 pieces") != std::string::npos);
  }
}

}  // namespace ferrule::cpu::test
