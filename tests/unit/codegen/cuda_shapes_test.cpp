// Launches in every shape that `ferrule tune` may choose, as CUDA C++ on the host against the
// interpreter; what the problems of a tuning file are called; and that every shape compiles.
#include "codegen/cuda/shape.h"

#include <algorithm>
#include <cmath>

#include "tests/unit/codegen/launch_cases.h"
#include "tests/unit/codegen/rule_groups.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

void in_pieces(const Graph& g, Launch& l) {
  auto region = lower_pieces(operators(), g, g.order(), std::vector(g.outputs()));
  REQUIRE_MESSAGE(region.has_value(), (region ? "" : region.error().reason()));
  l.kind = Launch::Kind::generated;
  l.inputs = region->inputs, l.outputs = region->outputs;
  l.region = std::move(*region);
}

void attention(const Graph& g, Launch& l) {
  l.kind = Launch::Kind::library;
  l.work = Work::attention;
  const Node& group = group_by("attention", g);
  l.roles = group.roles.get();
  l.inputs = group.inputs, l.outputs = group.outputs;
}

using Lower = void (*)(const Graph&, Launch&);
using Attributes = std::map<std::string, Attr>;
const Attributes kKept{{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{0}}};

/// A launch of every kind and form, large enough that there is something to choose.
void add_all(LaunchCases& cases) {
  std::mt19937& rng = cases.rng;
  auto add = [&](DType type, Lower lower, const std::function<ValueId(RowGraph&)>& build) {
    RowGraph r(type);
    r.graph.add_output(build(r));
    cases.add(std::move(r.graph), std::move(r.tensors), lower);
  };
  auto input = [&](RowGraph& r, const Dims& d) { return r.input(random_of(r.type, d, rng)); };
  // One walk with a ragged end; rows with operands of every access; elements one by one; pieces of
  // two forms.
  add(DType::f32, one_region, [&](RowGraph& r) { return r.node("Sigmoid", {input(r, {9001})}); });
  add(DType::f16, one_region, [&](RowGraph& r) {
    const ValueId x = r.node("Mul", {input(r, {40, 33, 24}), input(r, {33, 1})});
    return r.node("Relu", {r.node("Add", {x, r.node("Mul", {input(r, {24}), input(r, {1})})})});
  });
  add(DType::i64, one_region,
      [&](RowGraph& r) { return r.node("Add", {input(r, {33, 71}), input(r, {33, 1})}); });
  add(DType::boolean, one_region,
      [&](RowGraph& r) { return r.node("And", {input(r, {70, 333}), input(r, {70, 1})}); });
  add(DType::f32, in_pieces, [&](RowGraph& r) {
    return r.node("Concat", {r.node("Relu", {input(r, {3, 50, 28})}), input(r, {3, 31, 28})},
                  {{"axis", int64_t{1}}});
  });
  add(DType::u8, in_pieces, [&](RowGraph& r) {
    return r.node("Concat",
                  {input(r, {40, 77}), r.node("Sub", {input(r, {40, 35}), input(r, {40, 35})})},
                  {{"axis", int64_t{1}}});
  });
  add(DType::f16, copy_of_node, [&](RowGraph& r) {
    return r.node("Transpose", {input(r, {70, 101})}, {{"perm", Dims{1, 0}}});
  });
  add(DType::f32, copy_of_node, [&](RowGraph& r) {
    return r.node("Gather",
                  {input(r, {50, 41}), r.input(Tensor::of_i64({30}, std::vector<int64_t>(30, 7)))},
                  {{"axis", int64_t{0}}});
  });
  // Rows in a warp, in a block, walked and in registers, side by side, spread over blocks, and such
  // as might be.
  add(DType::f32, one_row_region, [&](RowGraph& r) {
    return r.node("Softmax", {input(r, {37, 130})}, {{"axis", int64_t{1}}});
  });
  add(DType::f16, one_row_region, [&](RowGraph& r) {
    return r.node("LayerNormalization", {input(r, {7, 3072}), input(r, {3072}), input(r, {3072})},
                  {{"axis", int64_t{1}}, {"epsilon", 1e-3}, {"stash_type", int64_t{1}}});
  });
  add(DType::f32, one_row_region, [&](RowGraph& r) {
    return r.node("Softmax", {input(r, {2, 9001})}, {{"axis", int64_t{1}}});
  });
  add(DType::f32, one_row_region, [&](RowGraph& r) {
    return r.node("LogSoftmax", {input(r, {90, 70})}, {{"axis", int64_t{0}}});
  });
  for (const Dims& d : {Dims{7, 768}, Dims{1, 140000}})  // a sum that is a result, too
    add(DType::f32, one_row_region, [&](RowGraph& r) {
      const ValueId s = r.node("Add", {input(r, d), input(r, d)});
      r.graph.add_output(s);
      return r.node("RMSNormalization", {s, input(r, {d[1]})},
                    {{"axis", int64_t{1}}, {"epsilon", 1e-3}, {"stash_type", int64_t{1}}});
    });
  for (const Dims& d : {Dims{1, 60000}, Dims{1, 9000}})
    add(DType::f32, one_row_region,
        [&](RowGraph& r) { return r.node("ReduceL2", {input(r, d), r.axes({1})}, kKept); });
  add(DType::i32, one_row_region,
      [&](RowGraph& r) { return r.node("ReduceSum", {input(r, {2000, 11}), r.axes({0})}, kKept); });
  // What threads have an element each, and the kernels with numbers of their own.
  add(DType::f32, call_of_node, [&](RowGraph& r) {
    return r.node("MaxPool", {input(r, {2, 8, 19, 21})}, {{"kernel_shape", Dims{3, 3}}});
  });
  add(DType::f32, call_of_node, [&](RowGraph& r) {
    return r.node("Resize",
                  {input(r, {1, 6, 9, 8}),
                   {},
                   {},
                   r.graph.add_constant("sizes", Tensor::of_i64({4}, {1, 6, 18, 16}))},
                  {{"mode", std::string("linear")},
                   {"coordinate_transformation_mode", std::string("half_pixel")}});
  });
  for (const int64_t size : {24, 64, 100})
    add(DType::f32, attention, [&](RowGraph& r) {
      const ValueId scale = r.graph.add_constant(
          "scale", Tensor::scalar(DType::f32, 1 / std::sqrt(static_cast<double>(size))));
      const ValueId scores = r.node(
          "Mul", {r.node("MatMul", {input(r, {2, 150, size}), input(r, {2, size, 37})}), scale});
      return r.node("MatMul", {r.node("Softmax", {scores}, {{"axis", int64_t{-1}}}),
                               input(r, {2, 37, size})});
    });
}

}  // namespace

TEST_CASE("launches equal the interpreter in every shape") {
  if (HostKernels::missing()) return;
  LaunchCases cases(71);
  cases.cores = 2;
  cases.every_shape = true;
  add_all(cases);
  for (const std::string shape :
       {"pointwise threads256", "pointwise threads128", "pointwise threads512",
        "pointwise threads256x2", "pointwise threads128x4", "pieces threads128x2",
        "transpose tile8x64", "transpose tile4x32", "gather threads128", "rows warp32",
        "rows block256", "rows columns16x32", "rows block1024", "pool threads512",
        "resize threads128", "attention queries16", "attention queries128"})
    CHECK_MESSAGE(cases.shapes.contains(shape), shape);
  CHECK(std::ranges::count_if(cases.shapes, [](const std::string& s) {
          return s.find("block") != s.npos && s.find('/') != s.npos;
        }) >= 4);
  CHECK(std::ranges::any_of(cases.shapes, [](const std::string& s) {
    return s.find("columns") != s.npos && s.find('/') != s.npos;
  }));
  std::set<std::string> problems;
  for (const LaunchCase& c : cases.all()) {
    problems.insert(c.planned.problem);
    CHECK(c.planned.shapes.size() <= 9);
    CHECK(c.planned.shapes[0] == c.planned.shape);
    CHECK_MESSAGE(c.planned.shapes.size() > 1, c.planned.problem);
  }
  CHECK(problems.size() == cases.all().size());
  cases.run();
}

TEST_CASE("launches of every kind equal the interpreter where blocks run at the same time") {
  if (HostKernels::missing()) return;
  LaunchCases cases(72, std::getenv("FERRULE_TEST_FULL") ? 20 : 1);
  cases.cores = 2;
  add_all(cases);
  cases.run();
}

TEST_CASE("a problem's text has what the speed depends on, and neither names nor the shape") {
  RowGraph r(DType::f32);
  const ValueId x = r.input(random_of(DType::f32, {64, 96}, *std::make_unique<std::mt19937>(1)));
  r.graph.add_output(r.node("Exp", {x}));
  Launch l;
  l.graph = &r.graph;
  one_region(r.graph, l);
  auto plan = [&](Dims dims, Dims strides, std::string_view entry, std::string_view comment,
                  bool aligned, const std::string& shape = {}) {
    const std::vector<CudaOperand> operands(2, {DType::f32, std::move(dims), std::move(strides)});
    auto planned = plan_cuda_launch(l, operands, entry, comment, aligned, 4,
                                    [&](const std::string&) { return shape; });
    REQUIRE(planned.has_value());
    return std::move(*planned);
  };
  const CudaLaunch usual = plan({64, 96}, {96, 1}, "kernel", "", true);
  CHECK(usual.problem.starts_with("generated pointwise "));
  CHECK(usual.problem.ends_with(" f32:64x96:96.1 f32:64x96:96.1 aligned"));
  CHECK(plan({64, 96}, {96, 1}, "ferrule_7_layer", "rule r, nodes a b", true).problem ==
        usual.problem);
  const CudaLaunch other = plan({64, 96}, {96, 1}, "kernel", "", true, "threads128x2");
  CHECK(other.shape == "threads128x2");
  CHECK(other.problem == usual.problem);
  CHECK(other.threads_x == 128);
  CHECK(other.blocks == 6);
  CHECK(plan({64, 96}, {96, 1}, "kernel", "", true, "threads13").shape == usual.shape);
  for (const CudaLaunch& different :
       {plan({64, 96}, {96, 1}, "kernel", "", false), plan({96, 64}, {64, 1}, "kernel", "", true),
        plan({64, 96}, {128, 1}, "kernel", "", true)})
    CHECK(different.problem != usual.problem);
  // The programs count, the operands' names do not.
  RowGraph s(DType::f32);
  s.graph.add_output(s.node(
      "Tanh", {s.input(random_of(DType::f32, {64, 96}, *std::make_unique<std::mt19937>(1)))}));
  l = Launch();
  l.graph = &s.graph;
  one_region(s.graph, l);
  CHECK(plan({64, 96}, {96, 1}, "kernel", "", true).problem != usual.problem);
  CHECK(usual.problem.find("x0") == std::string::npos);
}

TEST_CASE("every shape compiles") {
  if (const auto info = nvrtc_info(); !info) {
    MESSAGE("skipped, NVRTC is not there: " << info.error().message);
    return;
  }
  LaunchCases cases(72);
  cases.cores = 2;
  cases.every_shape = true;
  add_all(cases);
  for (const char* op : {"Softmax", "MeanVarianceNormalization"}) {  // several launches
    RowGraph r(DType::f16);
    const ValueId x = r.input(random_of(r.type, {1, 70000}, cases.rng));
    r.graph.add_output(op[0] == 'S' ? r.node(op, {x}, {{"axis", int64_t{1}}})
                                    : r.node(op, {x}, {{"axes", Dims{1}}}));
    cases.add(std::move(r.graph), std::move(r.tensors), one_row_region);
    CHECK(cases.last().planned.passes == (op[0] == 'S' ? 2 : 3));
  }
  // NVRTC takes a third of a second for one: each shape of each kind once, with FERRULE_TEST_FULL
  // for several targets.
  const bool full = std::getenv("FERRULE_TEST_FULL");
  std::set<std::string> seen;
  std::map<std::string, int> registers;
  for (const LaunchCase& c : cases.all())
    for (const auto& [l, id] : c.shapes)
      for (const char* target : {"sm_90", "sm_75", "sm_80", "sm_120"}) {
        if ((!full && target != std::string("sm_90")) ||
            !seen.insert(fmt::format("{} {} {} {}", l.kind, l.shape, l.passes, target)).second)
          continue;
        auto cubin = compile_cuda(l.source, "kernel", target);
        REQUIRE_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error())));
        const std::string what = fmt::format("{} {} for {}", l.kind, l.shape, target);
        CHECK_MESSAGE(cubin->spill_bytes == 0, what);
        CHECK_MESSAGE(cubin->stack_bytes == 0, what);
        CHECK_MESSAGE(cubin->shared_bytes <= 48 << 10, what);
        if (l.kind == "pointwise") registers.try_emplace(l.shape, cubin->registers);
      }
  // What several packs are for: all of them are read before the first is needed.
  CHECK(registers["threads256x2"] >= registers["threads256"] + 4);
  CHECK(registers["threads256x4"] >= registers["threads256"] + 12);
}
