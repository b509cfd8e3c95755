// The selection kernel on the host: softmax and its logarithms, largest and smallest, one to all of
// a row, short and long rows, equal elements, NaN and infinities, against the interpreter: the same
// indices, values within the tolerance.
#include "codegen/cuda/topk.h"

#include <cmath>
#include <limits>

#include "tests/unit/codegen/launch_cases.h"
#include "tests/unit/codegen/rule_groups.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

struct TopkForm {
  std::string ops;  ///< "s" Softmax, "l" LogSoftmax, "sl" the logarithm of the former
  DType type;
  Dims dims;
  int64_t k;
  bool largest = true, equals = false, extremes = false;
};

/// A softmax's rows, of whole numbers where many are to be equal.
Tensor scores(const TopkForm& f, std::mt19937& rng) {
  Tensor t = random_of(f.type, f.dims, rng);
  const auto size = static_cast<size_t>(size_bits(f.type)) / 8;
  const double inf = std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k < t.numel(); ++k) {
    Tensor v;
    if (f.equals) v = Tensor::scalar(f.type, static_cast<double>(rng() % 5));
    if (f.extremes && rng() % 9 == 0)
      v = Tensor::scalar(f.type, std::array{std::nan(""), inf, -inf, 0.0}[rng() % 4]);
    if (v.numel() == 1 && v.data())
      std::memcpy(static_cast<char*>(const_cast<void*>(t.data())) + static_cast<size_t>(k) * size,
                  v.data(), size);
  }
  return t;
}

void add(LaunchCases& cases, const TopkForm& f) {
  RowGraph r(f.type);
  ValueId at = r.input(scores(f, cases.rng));
  at = r.node(f.ops[0] == 's' ? "Softmax" : "LogSoftmax", {at}, {{"axis", int64_t{-1}}});
  if (f.ops == "sl") at = r.node("Log", {at});
  Node top;
  top.op = "TopK";
  top.name = "top";
  top.inputs = {at, r.graph.add_constant("k", Tensor::of_i64({1}, {f.k}))};
  top.attrs.set("axis", Attr(int64_t{-1}));
  top.attrs.set("largest", Attr(static_cast<int64_t>(f.largest)));
  top.outputs = {r.graph.add_value("values"), r.graph.add_value("indices")};
  const std::vector<ValueId> outputs = top.outputs;
  const NodeId id = r.graph.add_node(std::move(top));
  const auto inferred = infer(operators(), r.graph, id);
  REQUIRE_MESSAGE(inferred.has_value(), (inferred ? "" : render(inferred.error())));
  for (ValueId v : outputs) r.graph.add_output(v);
  cases.add(std::move(r.graph), std::move(r.tensors), [&](const Graph& g, Launch& l) {
    l.kind = Launch::Kind::library;
    l.work = Work::softmax_topk;
    const Node& group = group_by("softmax_topk", g, "sm_80");
    l.roles = group.roles.get();
    l.inputs = group.inputs, l.outputs = group.outputs;
  });
}

}  // namespace

TEST_CASE("selections of a softmax equal the interpreter's") {
  if (HostKernels::missing()) return;
  LaunchCases cases(61);
  for (const std::string ops : {"s", "l", "sl"})
    for (const TopkForm& f :
         {TopkForm{ops, DType::f32, {3, 7}, 3}, TopkForm{ops, DType::f32, {2, 3, 40}, 40},
          TopkForm{ops, DType::f32, {2, 1000}, 5}, TopkForm{ops, DType::f32, {1, 5000}, 17, false},
          TopkForm{ops, DType::f32, {9}, 1}, TopkForm{ops, DType::f32, {4, 50}, 6, true, true},
          TopkForm{ops, DType::f32, {3, 70}, 9, false, true},
          TopkForm{ops, DType::f32, {6, 12}, 4, true, false, true},
          TopkForm{ops, DType::f32, {6, 12}, 4, false, false, true},
          TopkForm{ops, DType::f16, {4, 33}, 5, true, true},
          TopkForm{ops, DType::bf16, {4, 300}, 64, true, true},
          TopkForm{ops, DType::f32, {2, 5}, 0}, TopkForm{ops, DType::f32, {0, 5}, 2}})
      add(cases, f);
  CHECK(cases.kinds["selection"] == 39);
  cases.run();
}

TEST_CASE("selections equal the interpreter's where blocks run at the same time") {
  if (HostKernels::missing()) return;
  LaunchCases cases(63, 1);
  add(cases, {"s", DType::f32, {4, 50}, 6, true, true});
  add(cases, {"sl", DType::f16, {3, 1000}, 5});
  cases.run();
}

TEST_CASE("selection kernels compile without a spill") {
  LaunchCases cases(62);
  for (const TopkForm& f :
       {TopkForm{"s", DType::f32, {3, 20}, 3}, TopkForm{"l", DType::f16, {3, 1000}, 3},
        TopkForm{"sl", DType::bf16, {1, 50000}, 30, false}})
    add(cases, f);
  check_compiles(cases);
}
