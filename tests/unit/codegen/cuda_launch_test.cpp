// Launches of every kind as CUDA C++ on the host, by the one way that compile and the backend take:
// random shapes, layouts, element types and broadcasts against the interpreter, nothing written
// beside the results.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "codegen/cuda/nvrtc.h"
#include "engine/base/minifloat.h"
#include "tests/unit/codegen/chain_cases.h"
#include "tests/unit/codegen/launch_cases.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

std::vector<Tensor> samples(const Graph& g, std::mt19937& rng) {
  std::vector<Tensor> out;
  for (ValueId v : g.inputs())
    out.push_back(sample(g.value(v).type.dtype, *constant_shape(*g.value(v).type.shape), rng));
  return out;
}

/// All nodes as one launch in pieces. False: they are not one.
bool add_pieces(LaunchCases& cases, Chain& c, const std::vector<ValueId>& results) {
  for (ValueId v : results) c.g.add_output(v);
  auto region = lower_pieces(operators(), c.g, c.nodes, results);
  if (!region) return false;
  auto inputs = samples(c.g, cases.rng);
  cases
      .add(std::move(c.g), std::move(inputs),
           [&](const Graph&, Launch& l) {
             l.kind = Launch::Kind::generated;
             l.inputs = region->inputs, l.outputs = region->outputs;
             l.region = std::move(*region);
           })
      .exact = true;
  return true;
}

/// Reads `x` in its own type, computes in one that has operators, and writes `type` again.
ValueId computed(RowGraph& r, ValueId x, DType type, std::mt19937& rng) {
  const auto to = [](DType t) {
    return std::map<std::string, Attr>{{"to", static_cast<int64_t>(t)}, {"saturate", int64_t{1}}};
  };
  const bool narrow = is_float(type) && size_bits(type) == 8;
  const DType wide = narrow ? DType::f32 : type;
  const Dims d = r.dims(x);
  auto operand = [&] {
    const ValueId v = r.input(random_of(type, broadcastable(rng, d), rng));
    return narrow ? r.node("Cast", {v}, to(wide)) : v;
  };
  ValueId y = narrow ? r.node("Cast", {x}, to(wide)) : x;
  if (type == DType::boolean) return r.node(rng() % 2 ? "And" : "Xor", {y, operand()});
  y = r.node("Add", {y, operand()});
  if (rng() % 2) y = r.node("Mul", {y, operand()});
  if (is_float(type)) y = r.node(rng() % 2 ? "Sigmoid" : "Abs", {y});
  return narrow ? r.node("Cast", {y}, to(type)) : y;
}

Tensor of_doubles(DType type, const std::vector<double>& values) {
  auto [t, bytes] = Tensor::allocate(type, {static_cast<int64_t>(values.size())});
  const size_t size = static_cast<size_t>(size_bits(type)) / 8;
  for (size_t k = 0; k < values.size(); ++k)
    std::memcpy(static_cast<char*>(bytes) + k * size, Tensor::scalar(type, values[k]).data(), size);
  return t;
}

}  // namespace

TEST_CASE("launches of regions in pieces equal the interpreter, element by element") {
  if (HostKernels::missing()) return;
  LaunchCases cases(17);
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(cases.rng);
  };
  const DType types[] = {DType::f32,  DType::i8,  DType::f16, DType::i64,
                         DType::bf16, DType::f32, DType::f64};
  int refused = 0;
  for (int round = 0; round < 130; ++round) {
    Chain c;
    const DType type = types[round % 7];
    Dims d;
    for (int64_t k = pick(1, 4); k > 0; --k)
      d.push_back(pick(0, 2) ? pick(1, 8) : 8 * pick(1, round % 9 == 0 ? 5 : 2));
    ValueId v = c.input(type, d);
    std::vector<ValueId> made;
    for (int64_t k = pick(1, 5); k > 0; --k) {
      v = grow(c, v, type, cases.rng);
      int64_t count = 1;
      for (int64_t n : c.dims(v)) count *= n;
      if (count > 30000) break;
      if (!c.nodes.empty()) made.push_back(v);
    }
    if (c.nodes.empty()) continue;
    std::vector<ValueId> results{v};
    if (made.size() > 1 && made[0] != v && pick(0, 2) == 0)
      results.insert(results.begin(), made[0]);
    refused += !add_pieces(cases, c, results);
  }
  for (const char* coordinates : {"half_pixel", "asymmetric", "align_corners"})  // nearest pixels
    for (const Dims& to : std::vector<Dims>{{1, 8, 8, 10}, {1, 8, 6, 7}}) {
      Chain c;
      ValueId y = c.node("Resize", {c.input(DType::f32, {1, 8, 4, 5}), {}, {}, c.ints(to)},
                         {{"mode", std::string("nearest")},
                          {"coordinate_transformation_mode", std::string(coordinates)},
                          {"nearest_mode", std::string("floor")}});
      y = c.node("Relu", {y});
      CHECK(add_pieces(cases, c, {y}));
    }
  {  // so many that their places do not fit an argument block
    Chain c;
    std::vector<ValueId> parts;
    for (int64_t k = 0; k < 60; ++k)
      parts.push_back(c.node("Relu", {c.input(DType::f32, {3, 5, 1 + k % 7, 4})}));
    CHECK(add_pieces(cases, c, {c.node("Concat", parts, {{"axis", int64_t{2}}})}));
  }
  {  // nothing
    Chain c;
    CHECK(add_pieces(
        cases, c,
        {c.node("Transpose", {c.input(DType::f32, {2, 0, 3})}, {{"perm", Dims{2, 0, 1}}})}));
  }
  for (int round = 0; round < 12; ++round) {  // turned in shared memory
    Chain c;
    const ValueId x = c.input(round % 4 ? types[round % 7] : DType::f8e5m2,
                              {pick(1, 3), pick(8, 50), pick(8, 50)});
    CHECK(add_pieces(
        cases, c,
        {c.node("Transpose", {x}, {{"perm", round % 2 ? Dims{0, 2, 1} : Dims{2, 1, 0}}})}));
  }
  CHECK(refused < 30);
  CHECK(cases.kinds["pieces"] > 90);
  CHECK(cases.kinds["transpose"] > 5);
  cases.run();
}

/// Every number of an 8-bit type, what lies half between two of them and beside that, what is too
/// large, and no number.
std::vector<double> edges_of(DType type) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> out{0.0, 1e30, kInfinity, std::nan("")};
  for (uint8_t code = 0; code < mini_format(type).max; ++code) {
    const double low = decode_mini(type, code),
                 high = decode_mini(type, static_cast<uint8_t>(code + 1)), half = (low + high) / 2;
    const auto narrow = static_cast<float>(half);
    out.insert(out.end(), {high, half, double{std::nextafter(narrow, 0.0f)},
                           double{std::nextafter(narrow, 1e30f)}});
  }
  const double largest = decode_mini(type, mini_format(type).max);
  for (double factor : {1.01, 1.0357, 1.07, 1.1, 1.125, 1.2, 2.0}) out.push_back(largest * factor);
  const size_t positive = out.size();
  for (size_t k = 0; k < positive; ++k) out.push_back(-out[k]);
  return out;
}

TEST_CASE("launches over elements, rows, permutations and indices equal the interpreter") {
  if (HostKernels::missing()) return;
  LaunchCases cases(18);
  std::mt19937& rng = cases.rng;
  const std::vector<DType> types{DType::f32,      DType::f64,    DType::f16,    DType::bf16,
                                 DType::f8e4m3fn, DType::f8e5m2, DType::i8,     DType::u8,
                                 DType::i16,      DType::u16,    DType::i32,    DType::u32,
                                 DType::i64,      DType::u64,    DType::boolean};
  for (DType type : types)
    for (int round = 0; round < 5; ++round) {
      RowGraph r(type);
      const ValueId x = r.input(random_of(type, random_dims(rng, 1 + rng() % 5), rng));
      r.graph.add_output(computed(r, x, type, rng));
      cases.add(std::move(r.graph), std::move(r.tensors), one_region).exact = !is_float(type);
    }
  for (DType type : types)
    for (int round = 0; round < 3; ++round) {
      RowGraph r(type);
      Dims d = random_dims(rng, 2 + rng() % 3), perm(d.size());
      std::iota(perm.begin(), perm.end(), 0);
      std::ranges::shuffle(perm, rng);
      const ValueId x = r.input(random_of(type, d, rng));
      r.graph.add_output(round ? r.node("Transpose", {x}, {{"perm", perm}})
                               : r.node("Identity", {x}));
      cases.add(std::move(r.graph), std::move(r.tensors), copy_of_node).exact = true;
    }
  for (DType type : types)
    for (DType wide : {DType::i32, DType::i64}) {
      RowGraph r(type);
      const Dims d = random_dims(rng, 1 + rng() % 4);
      const size_t axis = rng() % d.size();
      Tensor index = Tensor::allocate(wide, random_dims(rng, rng() % 3)).first;
      for (int64_t k = 0; k < index.numel(); ++k) {
        const int64_t i =
            static_cast<int64_t>(rng() % static_cast<uint64_t>(2 * d[axis])) - d[axis];
        const auto narrow = static_cast<int32_t>(i);
        auto* to = static_cast<char*>(const_cast<void*>(index.data()));
        if (wide == DType::i32)
          std::memcpy(to + 4 * k, &narrow, 4);
        else
          std::memcpy(to + 8 * k, &i, 8);
      }
      const ValueId x = r.input(random_of(type, d, rng));
      r.graph.add_output(r.node("Gather", {x, r.input(std::move(index))},
                                {{"axis", static_cast<int64_t>(axis) -
                                              (rng() % 2 ? static_cast<int64_t>(d.size()) : 0)}}));
      cases.add(std::move(r.graph), std::move(r.tensors), copy_of_node).exact = true;
    }
  for (const auto* ops : {&kFloatRows, &kAnyRows})
    for (const std::string& op : *ops)
      for (DType type : {DType::f32, DType::f16}) {
        RowGraph r(type);
        random_region(r, op, rng);
        cases.add(std::move(r.graph), std::move(r.tensors), one_row_region);
      }
  for (DType type :
       {DType::f8e4m3fn, DType::f8e5m2})  // read from 8 bits, written to them, computed in f32
    for (const std::string op : {"Softmax", "ReduceMax", "ReduceMean", "ReduceL2"}) {
      const auto to = [](DType t) {
        return std::map<std::string, Attr>{{"to", static_cast<int64_t>(t)},
                                           {"saturate", int64_t{1}}};
      };
      RowGraph r(type);
      const ValueId x = r.node(
          "Cast", {r.input(random_of(type, random_dims(rng, 1 + rng() % 4), rng))}, to(DType::f32));
      r.graph.add_output(r.node("Cast", {row_operator(r, x, op, rng)}, to(type)));
      cases.add(std::move(r.graph), std::move(r.tensors), one_row_region);
    }
  for (DType type :
       {DType::f8e4m3fn, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e5m2fnuz})  // rounded to 8 bits
    for (DType from : {DType::f32, DType::f64})
      for (int64_t saturate : {0, 1}) {
        RowGraph r(from);
        const std::vector<double> edges = edges_of(type);
        r.graph.add_output(r.node("Cast", {r.input(of_doubles(from, edges))},
                                  {{"to", static_cast<int64_t>(type)}, {"saturate", saturate}}));
        cases.add(std::move(r.graph), std::move(r.tensors), one_region).exact = true;
      }
  for (DType type : {DType::f32, DType::f16,
                     DType::bf16})  // a factor and an addend a channel, whatever lies around them
    for (const Dims& d : {Dims{2, 8, 5, 3}, Dims{3, 5}, Dims{1, 16, 4}}) {
      RowGraph r(type);
      std::vector<ValueId> in{r.input(random_of(type, d, rng))};
      for (int k = 0; k < 3; ++k) in.push_back(r.input(random_of(type, {d[1]}, rng)));
      std::vector<double> variance;
      for (int64_t k = 0; k < d[1]; ++k)
        variance.push_back(0.5 * static_cast<double>(1 + rng() % 8));
      in.push_back(r.input(of_doubles(type, variance)));
      r.graph.add_output(r.node("BatchNormalization", in, {{"epsilon", 0.25}}));
      cases.add(std::move(r.graph), std::move(r.tensors), call_of_node);
    }
  for (const char* kind : {"pointwise", "rows", "transpose", "copy", "gather"})
    CHECK_MESSAGE(cases.kinds[kind] > 4, kind);
  cases.run();
}

TEST_CASE(
    "few long rows are spread over several blocks, and every launch leaves the counters as it "
    "found them") {
  if (HostKernels::missing()) return;
  LaunchCases cases(19);
  std::map<bool, int> spread;
  struct Form {
    Dims dims, axes;
    bool long_rows;
  };
  const std::vector<Form> forms{{{1, 33000}, {1}, true}, {{3, 20011}, {1}, true},
                                {{18004}, {0}, true},    {{5, 4, 4000}, {0, 2}, true},
                                {{600, 40}, {0}, true},  {{100, 200}, {1}, false},
                                {{2, 4000}, {1}, false}};
  size_t turn = 0;
  for (const Form& f : forms) {
    ++turn;
    for (const std::string op :
         {"ReduceSum", "ReduceMax", "ReduceL2", "ReduceMean", "ReduceProd", "Softmax"}) {
      if (++turn % 2) continue;  // the next form has the others
      const bool rounded = op == "ReduceL2" || op == "Softmax";
      const DType type =
          op == "ReduceProd"
              ? DType::i64
              : std::array{DType::f32, DType::f16, rounded ? DType::f64 : DType::i32}[turn / 2 % 3];
      RowGraph r(type);
      const ValueId x = r.input(random_of(type, f.dims, cases.rng));
      if (op == "Softmax")
        r.graph.add_output(r.node(op, {x}, {{"axis", f.axes.back()}}));
      else
        r.graph.add_output(
            r.node("Abs", {r.node(op, {x, r.axes(f.axes)},
                                  {{"keepdims", static_cast<int64_t>(cases.rng() % 2)},
                                   {"noop_with_empty_axes", int64_t{0}}})}));
      const bool cut = cases.add(std::move(r.graph), std::move(r.tensors), one_row_region)
                           .planned.scratch_bytes > 0;
      CHECK(cut == (f.long_rows && op != "Softmax"));
      ++spread[cut];
    }
  }
  CHECK(spread[true] >= 10);
  cases.run();
}

namespace {

void add_sum(LaunchCases& cases, const Dims& dims, int64_t axis, DType type) {
  cases.every_shape = false;  // only the built-in one is surely spread
  RowGraph r(type);
  r.graph.add_output(r.node(type == DType::f16 ? "ReduceMax" : "ReduceSum",
                            {r.input(random_of(type, dims, cases.rng)), r.axes({axis})},
                            {{"keepdims", int64_t{0}}, {"noop_with_empty_axes", int64_t{0}}}));
  CHECK(cases.add(std::move(r.graph), std::move(r.tensors), one_row_region).planned.scratch_bytes);
}

}  // namespace

TEST_CASE("rows spread over blocks that run at the same time, and what would be wrong with them") {
  if (HostKernels::missing()) return;
  {
    LaunchCases cases(23, races());
    add_sum(cases, {1, 16400}, 1, DType::f32);
    add_sum(cases, {2, 16385}, 1, DType::f16);
    add_sum(cases, {515, 34}, 0, DType::i32);  // side by side
    cases.run();
  }
  for (const bool beside : {false, true})
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {"__threadfence();  // hands on", "// hands on"},
             {"slices - 1;\n    __threadfence();", "slices - 1;"},
             {"atomicInc((u32*)a.scratch + block, (u32)a.slices - 1)",
              "((u32*)a.scratch)[block]++"},
             {"atomicInc((u32*)a.scratch + block, (u32)a.slices - 1)",
              "atomicAdd((u32*)a.scratch + block, 1u)"}}) {  // the counter is not left at zero
      CAPTURE(from);
      CAPTURE(to);
      LaunchCases cases(24, 2);
      cases.mutation = {from, to};
      add_sum(cases, beside ? Dims{515, 34} : Dims{1, 16400}, beside ? 0 : 1, DType::f32);
      const std::string wrong = cases.wrong();
      CHECK_MESSAGE(wrong.starts_with("a race: ") != to.starts_with("atomicAdd"), wrong);
      CHECK(wrong != "");
    }
}

TEST_CASE("few very long rows whose elements follow their reductions are several launches") {
  if (HostKernels::missing()) return;
  LaunchCases cases(20);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  // Rows in turn: numbers; some slices of -inf alone; all -inf; one +inf; one NaN; as low as can
  // be; rising.
  auto filled = [&](DType t, const Dims& d, int64_t axis) {
    Tensor x = random_of(t, d, cases.rng);
    const auto size = static_cast<size_t>(size_bits(t)) / 8;
    const int64_t length = d[static_cast<size_t>(axis)];
    for (int64_t k = 0; k < x.numel(); ++k) {
      const int64_t e = axis == 1 ? k % d[1] : k / d[1], row = axis == 1 ? k / d[1] : k % d[1];
      double v = x.at_f64(k);
      if (row % 7 == 1 && e < length / 2) v = -kInf;
      if (row % 7 == 2) v = -kInf;
      if (row % 7 == 3 && e == length / 3) v = kInf;
      if (row % 7 == 4 && e == length - 1) v = std::nan("");
      if (row % 7 == 5) v = t == DType::f16 ? -65504 : -3e38;
      if (row % 7 == 6) v = static_cast<double>(e) * 60 / static_cast<double>(length);
      std::memcpy(static_cast<char*>(const_cast<void*>(x.data())) + static_cast<size_t>(k) * size,
                  Tensor::scalar(t, v).data(), size);
    }
    return x;
  };
  std::map<int, int> passes;
  auto add = [&](RowGraph r) {
    const LaunchCase& c = cases.add(std::move(r.graph), std::move(r.tensors), one_row_region);
    CHECK(c.planned.scratch_bytes > 0);
    CHECK(c.planned.shape.find('/') != std::string::npos);
    ++passes[c.planned.passes];
  };
  for (const char* op : {"Softmax", "LogSoftmax"})
    for (DType t : {DType::f32, DType::f64, DType::f16})
      for (int64_t axis : {1, 0}) {
        if (axis == 1 && (t == DType::f64 || (t == DType::f16) != (op[0] == 'L'))) continue;
        RowGraph r(t);
        r.graph.add_output(
            r.node(op, {r.input(filled(t, axis == 1 ? Dims{2, 65537} : Dims{2100, 7}, axis))},
                   {{"axis", axis}}));
        add(std::move(r));
      }
  {  // three
    RowGraph r(DType::f16);
    r.graph.add_output(
        r.node("LayerNormalization",
               {r.input(random_of(r.type, {1, 70000}, cases.rng)),
                r.input(random_of(r.type, {70000}, cases.rng))},
               {{"axis", int64_t{1}}, {"epsilon", 1e-3}, {"stash_type", int64_t{1}}}));
    add(std::move(r));
  }
  {  // a result of the rows beside one of the elements
    RowGraph r(DType::f32);
    const ValueId x = r.input(random_of(DType::f32, {1, 66000}, cases.rng));
    const ValueId most = r.node("ReduceMax", {x, r.axes({1})},
                                {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{0}}});
    r.graph.add_output(r.node("Sigmoid", {r.node("Sub", {x, most})}));
    r.graph.add_output(r.node("Abs", {most}));
    add(std::move(r));
  }
  {  // a reduction behind a reduction, and nothing but the row's result
    RowGraph r(DType::f32);
    const std::map<std::string, Attr> kept{{"keepdims", int64_t{1}},
                                           {"noop_with_empty_axes", int64_t{0}}};
    const ValueId x = r.input(random_of(DType::f32, {1, 65536}, cases.rng));
    const ValueId apart =
        r.node("Abs", {r.node("Sub", {x, r.node("ReduceMean", {x, r.axes({1})}, kept)})});
    r.graph.add_output(r.node("Add", {r.node("ReduceMean", {apart, r.axes({1})}, kept),
                                      r.input(random_of(DType::f32, {1, 1}, cases.rng))}));
    add(std::move(r));
  }
  CHECK(passes[2] == 9);
  CHECK(passes[3] == 2);
  {  // long, and not long enough
    RowGraph r(DType::f32);
    r.graph.add_output(r.node("Softmax", {r.input(random_of(DType::f32, {2, 30000}, cases.rng))},
                              {{"axis", int64_t{1}}}));
    const LaunchCase& c = cases.add(std::move(r.graph), std::move(r.tensors), one_row_region);
    CHECK(c.planned.passes == 1);
    CHECK(c.planned.shapes.back().find('/') != std::string::npos);
  }
  cases.run();
}

TEST_CASE("an index out of range is told of, and the next run may be right again") {
  if (HostKernels::missing()) return;
  RowGraph r(DType::f32);
  const ValueId x = r.input(Tensor::of_f32({3, 2}, {0, 1, 2, 3, 4, 5}));
  const ValueId i = r.input(Tensor::of_i64({4}, {0, -1, 7, 1}));
  r.graph.add_output(r.node("Gather", {x, i}, {{"axis", int64_t{0}}}));
  Launch l;
  l.graph = &r.graph;
  copy_of_node(r.graph, l);
  const std::vector<CudaOperand> operands{
      {DType::f32, {3, 2}, {2, 1}}, {DType::i64, {4}, {1}}, {DType::f32, {4, 2}, {2, 1}}};
  auto planned = plan_cuda_launch(l, operands, "kernel", "", true);
  REQUIRE(planned.has_value());
  HostKernels kernels;
  const size_t id = kernels.add(planned->source, "kernel");
  REQUIRE(kernels.compile().empty());
  alignas(16) float data[6] = {0, 1, 2, 3, 4, 5}, result[8];
  alignas(16) int64_t index[4] = {0, -1, 7, 1};
  alignas(16) char scratch[64] = {};
  REQUIRE(planned->scratch_bytes <= 64);
  const std::vector<uint64_t> at{
      reinterpret_cast<uint64_t>(data), reinterpret_cast<uint64_t>(index),
      reinterpret_cast<uint64_t>(result), reinterpret_cast<uint64_t>(scratch)};
  REQUIRE(kernels.launch(id, planned->arguments(at), {1}, {256}).empty());
  CHECK(planned->complaint(scratch) == "index 7 is out of range for axis 0 of size 3");
  CHECK(result[2] == 4);
  CHECK(result[7] == 3);
  std::ranges::fill(scratch, char{0});
  index[2] = -3;
  REQUIRE(kernels.launch(id, planned->arguments(at), {1}, {256}).empty());
  CHECK(planned->complaint(scratch).empty());
  CHECK(result[5] == 1);
}

TEST_CASE("one of many indices out of range is told of by blocks that run at the same time") {
  if (HostKernels::missing()) return;
  constexpr int64_t kCount = 2000;
  RowGraph r(DType::f32);
  const ValueId x = r.input(Tensor::of_f32({3, 2}, {0, 1, 2, 3, 4, 5}));
  std::vector<int64_t> index(kCount, 1);
  for (int64_t k = 0; k < kCount; k += 7) index[static_cast<size_t>(k)] = 100 + k;
  r.graph.add_output(
      r.node("Gather", {x, r.input(Tensor::of_i64({kCount}, index))}, {{"axis", int64_t{0}}}));
  Launch l;
  l.graph = &r.graph;
  copy_of_node(r.graph, l);
  const std::vector<CudaOperand> operands{
      {DType::f32, {3, 2}, {2, 1}}, {DType::i64, {kCount}, {1}}, {DType::f32, {kCount, 2}, {2, 1}}};
  auto planned = plan_cuda_launch(l, operands, "kernel", "", true);
  REQUIRE(planned.has_value());
  REQUIRE(planned->blocks > 4);
  std::string unordered = planned->source;
  const std::string claimed = "if (atomicCAS(&a.fault->set, 0, 1) == 0) ";
  REQUIRE(unordered.find(claimed) != std::string::npos);
  unordered.replace(unordered.find(claimed), claimed.size(), "a.fault->set = 1; ");
  HostKernels kernels(true);
  const size_t id = kernels.add(planned->source, "kernel"),
               wrong = kernels.add(unordered, "kernel");
  REQUIRE(kernels.compile() == "");
  alignas(16) float data[6] = {0, 1, 2, 3, 4, 5};
  std::vector<float> result(2 * kCount);
  alignas(16) char scratch[64];
  const std::vector<uint64_t> at{
      reinterpret_cast<uint64_t>(data), reinterpret_cast<uint64_t>(index.data()),
      reinterpret_cast<uint64_t>(result.data()), reinterpret_cast<uint64_t>(scratch)};
  auto launch = [&](size_t kernel) {
    std::ranges::fill(scratch, char{0});
    return kernels.launch(kernel, planned->arguments(at), {static_cast<unsigned>(planned->blocks)},
                          {static_cast<unsigned>(planned->threads_x)});
  };
  for (int k = 0; k < races(); ++k) {
    REQUIRE(launch(id) == "");
    const std::string told = planned->complaint(scratch);
    REQUIRE_MESSAGE(told.ends_with(" is out of range for axis 0 of size 3"), told);
    REQUIRE((std::stoll(told.substr(6)) - 100) % 7 == 0);
    REQUIRE(result[2] == 2);
  }
  CHECK(launch(wrong).starts_with("a race: "));
}

TEST_CASE("launches that have no kernel are refused with the reason") {
  RowGraph r(DType::f32);
  const ValueId x = r.input(Tensor::of_f32({4}, {0, 1, 2, 3})),
                i = r.input(Tensor::of_i64({1}, {1}));
  r.graph.add_output(r.node("Slice", {x, i, i}));
  Launch slice;
  slice.graph = &r.graph;
  copy_of_node(r.graph, slice);
  CHECK_FALSE(cuda_generated(slice));
  const CudaOperand f{DType::f32, {4}, {1}}, k{DType::i64, {1}, {1}};
  auto planned = plan_cuda_launch(slice, std::vector<CudaOperand>{f, k, k, f}, "kernel", "", true);
  REQUIRE_FALSE(planned.has_value());
  CHECK(planned.error().not_applicable());
  CHECK(planned.error().reason().find("known only when it runs") != std::string::npos);
  RowGraph g(DType::f32);
  g.graph.add_output(g.node(
      "Gather", {g.input(Tensor::of_f32({4}, {0, 1, 2, 3})), g.input(Tensor::of_i64({1}, {1}))},
      {{"axis", int64_t{0}}}));
  Launch gather;
  gather.graph = &g.graph;
  copy_of_node(g.graph, gather);
  for (DType t : {DType::u4, DType::complex128})
    CHECK_FALSE(
        plan_cuda_launch(gather, std::vector<CudaOperand>{{t, {4}, {1}}, k, k}, "kernel", "", true)
            .has_value());
  CHECK(
      plan_cuda_launch(gather, std::vector<CudaOperand>{f, k, k}, "kernel", "", true).has_value());
}

TEST_CASE("kernels of regions in pieces compile without a spill or a stack") {
  if (const auto info = nvrtc_info(); !info) {
    MESSAGE("skipped, NVRTC is not there: " << info.error().message);
    return;
  }
  LaunchCases cases(3);
  for (int parts : {3, 60})
    for (const char* target : {"sm_75", "sm_90"}) {
      Chain c;
      std::vector<ValueId> all;
      for (int64_t k = 0; k < parts; ++k)
        all.push_back(c.node("Sigmoid", {c.input(DType::f16, {8, 16 + k % 3, 28, 28})}));
      REQUIRE(add_pieces(cases, c, {c.node("Concat", all, {{"axis", int64_t{1}}})}));
      const CudaLaunch& l = cases.last().planned;
      CHECK((l.source.find("const Piece pieces[") != std::string::npos) == (parts == 60));
      auto cubin = compile_cuda(l.source, "kernel", target);
      REQUIRE_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error())));
      CHECK(cubin->spill_bytes == 0);
      CHECK(cubin->stack_bytes == 0);
    }
}
