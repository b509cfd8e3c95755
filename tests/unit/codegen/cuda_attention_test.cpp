// The attention kernel of CUDA C++ on the host: heads of many sizes, transposes around the
// products, masks and batch axes that broadcast, rows that are masked altogether, every element
// type, against the interpreter node by node.
#include "codegen/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "codegen/cuda/nvrtc.h"
#include "codegen/program/role_formula.h"
#include "engine/base/tolerance.h"
#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/plan/plan.h"
#include "tests/unit/codegen/host_kernels.h"
#include "tests/unit/codegen/row_cases.h"
#include "tests/unit/codegen/rule_groups.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

struct AttentionForm {
  DType type = DType::f32;
  Dims batch = {};  ///< of the scores
  int64_t queries = 1, keys = 1, size = 1, width = 1;
  std::optional<Dims> mask = {};  ///< its dims
  bool turned = false;            ///< operands and result come with heads behind the sequence
  bool safe = false, divided = false, scaled = true;
  bool one_head_of_keys = false;  ///< keys and values broadcast over the first batch axis
  double hidden = 0;              ///< share of the mask that is minus infinity
  double odd = 0;                 ///< share of the values that are NaN or infinite
  bool guarded = false;           ///< weights are 0 where all keys are masked; queries are odd, too
  std::optional<Dims> keep = {};  ///< of truth values that choose the mask, or 0, or minus infinity
  std::optional<double> fill = {};  ///< or what else scores are, where there are none of `keep`
  bool late = false;                ///< the mask is added behind these
  bool hides = false;               ///< and the weights there are 0
  double cap = 0, v_scale = 1;
};

/// `value` in the place of about this share of its elements.
void strew(const Tensor& t, double value, double share, std::mt19937& rng) {
  const Tensor one = Tensor::scalar(t.dtype(), value);
  const auto size = static_cast<size_t>(size_bits(t.dtype())) / 8;
  for (int64_t i = 0; i < t.numel(); ++i)
    if (std::uniform_real_distribution<double>(0, 1)(rng) < share)
      std::memcpy(static_cast<char*>(const_cast<void*>(t.data())) + static_cast<size_t>(i) * size,
                  one.data(), size);
}

Dims joined(Dims batch, int64_t rows, int64_t columns) {
  batch.insert(batch.end(), {rows, columns});
  return batch;
}

/// With the axes of `perm` put in order by a Transpose, the value has dims `d`.
ValueId behind(RowGraph& r, std::mt19937& rng, const Dims& d, const std::vector<int64_t>& perm) {
  Dims own(d.size());
  for (size_t k = 0; k < d.size(); ++k) own[static_cast<size_t>(perm[k])] = d[k];
  const ValueId x = r.input(random_of(r.type, own, rng));
  return r.node("Transpose", {x}, {{"perm", perm}});
}

RowGraph graph_of(const AttentionForm& f, std::mt19937& rng) {
  RowGraph r(f.type);
  Dims few = f.batch;
  if (f.one_head_of_keys) few[0] = 1;
  auto operand = [&](const Dims& d) {
    if (!f.turned || d.size() != 4) return r.input(random_of(f.type, d, rng));
    return behind(r, rng, d, {0, 2, 1, 3});
  };
  auto make_odd = [&] {
    if (f.odd > 0)
      for (const double value :
           {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
        strew(r.tensors.back(), value, f.odd, rng);
  };
  const ValueId q = operand(joined(f.batch, f.queries, f.size));
  if (f.guarded) make_odd();
  const ValueId k = f.turned && f.batch.size() == 2
                        ? behind(r, rng, joined(few, f.size, f.keys), {0, 2, 3, 1})
                        : r.input(random_of(f.type, joined(few, f.size, f.keys), rng));
  const ValueId v = operand(joined(few, f.keys, f.width));
  make_odd();
  ValueId at = r.node("MatMul", {q, k});
  if (f.scaled) {
    const double scale = 1 / std::sqrt(static_cast<double>(f.size));
    const ValueId c =
        r.graph.add_constant("scale", Tensor::scalar(f.type, f.divided ? 1 / scale : scale));
    at = r.node(f.divided ? "Div" : "Mul", {at, c});
  }
  ValueId mask;
  if (f.mask) {
    Tensor m = random_of(f.type, *f.mask, rng);
    strew(m, -std::numeric_limits<double>::infinity(), f.hidden, rng);
    mask = r.input(m);
  }
  auto number = [&](const char* name, double x) {
    return r.graph.add_constant(name, Tensor::scalar(f.type, x));
  };
  const double low = -std::numeric_limits<double>::infinity();
  if (f.cap > 0) {
    at = r.node("Tanh", {r.node("Div", {at, number("cap", f.cap)})});
    at = r.node("Mul", {at, number("height", f.cap)});
  }
  ValueId kept;
  if (f.keep && f.fill) {
    Tensor keep = random_of(DType::boolean, *f.keep, rng);
    strew(keep, 0, f.hidden, rng);
    kept = r.input(keep);
    if (mask && !f.late) at = r.node("Add", {at, std::exchange(mask, ValueId{})});
    at = r.node("Where", {kept, at, number("fill", *f.fill)});
  } else if (f.keep) {
    Tensor keep = random_of(DType::boolean, *f.keep, rng);
    strew(keep, 0, f.hidden, rng);
    mask = r.node("Where",
                  {r.input(keep), f.mask ? mask : number("nothing", 0), number("least", low)});
  }
  if (mask) at = r.node("Add", {at, mask});
  at = r.node("Softmax", {at}, {{"axis", int64_t{-1}}});
  if (f.safe) {
    const ValueId nan = r.node("IsNaN", {at}),
                  zero = r.graph.add_constant("zero", Tensor::scalar(f.type, 0));
    at = r.node("Where", {nan, zero, at});
  }
  if (f.guarded) {
    const ValueId most = r.node("ReduceMax", {mask, r.axes({-1})}, {{"keepdims", int64_t{1}}}),
                  none = r.node("Equal", {most, number("low", low)});
    at = r.node("Where", {none, number("zero", 0), at});
  }
  if (f.hides) at = r.node("Where", {kept, at, number("zero", 0)});
  at = r.node("MatMul", {at, f.v_scale != 1 ? r.node("Mul", {v, number("gain", f.v_scale)}) : v});
  if (f.turned && f.batch.size() == 2)
    at = r.node("Transpose", {at}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  r.graph.add_output(at);
  return r;
}

AttentionForm guarded(AttentionForm f, double hidden, double odd, std::optional<Dims> keep = {}) {
  f.guarded = true, f.hidden = hidden, f.odd = odd, f.keep = std::move(keep);
  return f;
}

struct AttentionCase {
  RowGraph r;
  Attention a;
  CudaAttentionPlan plan;
  size_t id;
  std::string what;
  std::vector<ValueId> inputs = {};  ///< of the group
  ValueId result = {};
  const Tensor& tensor(const RoleTensor& role) const {
    return r.tensors[static_cast<size_t>(std::ranges::find(r.graph.inputs(), inputs[role.slot]) -
                                         r.graph.inputs().begin())];
  }
};

RowLayout layout(const RowGraph& r, ValueId v) {
  return {r.dims(v), strides_of(r.dims(v), Layout::plain)};
}

AttentionCase case_of(const AttentionForm& f, std::mt19937& rng, bool aligned,
                      HostKernels& kernels) {
  AttentionCase c{graph_of(f, rng), {}, {}, 0, {}};
  // Where cuDNN has attention, a mask that is chosen is a layer of its own.
  const Node& group = f.keep && !f.fill
                          ? group_by("attention_chosen", c.r.graph, "sm_75")
                          : group_by(f.hides ? "attention_hidden" : "attention", c.r.graph);
  c.a = attention_of(*group.roles);
  c.inputs = group.inputs, c.result = group.outputs[0];
  auto placed = [&](const RoleTensor& role) {
    return layout(c.r, role.result ? c.result : c.inputs[role.slot]);
  };
  RowLayout mask, keep;
  AttentionLayouts l{placed(c.a.q), placed(c.a.k), placed(c.a.v), placed(c.a.y)};
  if (c.a.mask) mask = placed(*c.a.mask), l.mask = &mask;
  if (c.a.keep) keep = placed(*c.a.keep), l.keep = &keep;
  std::optional<Program> cap;
  REQUIRE((c.a.cap != nullptr) == (f.cap > 0));
  if (c.a.cap) cap = *role_formula(operators(), *c.a.cap, "");
  auto plan = plan_cuda_attention(c.a, f.type, l, aligned, cap ? &*cap : nullptr);
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().reason()));
  c.plan = *plan;
  c.plan.kernel.wide_index = rng() % 4 == 0;
  c.id = kernels.add(cuda_attention_source(c.plan.kernel, "kernel", ""), "kernel");
  c.what = fmt::format("{} [{}] {} x {}, heads of {} and {}, vector {}", name(f.type),
                       fmt::join(f.batch, " "), f.queries, f.keys, f.size, f.width,
                       c.plan.kernel.vector);
  return c;
}

void check(const AttentionCase& c, const HostKernels& kernels) {
  CAPTURE(c.what);
  const Graph& g = c.r.graph;
  const Tensor y = Tensor::allocate(c.r.type, c.r.dims(c.result)).first;
  std::vector<void*> pointers;
  for (const RoleTensor* role : {&c.a.q, &c.a.k, &c.a.v})
    pointers.push_back(const_cast<void*>(c.tensor(*role).data()));
  pointers.push_back(const_cast<void*>(y.data()));
  for (const auto& role : {c.a.mask, c.a.keep})
    if (role) pointers.push_back(const_cast<void*>(c.tensor(*role).data()));
  const std::string problem =
      kernels.launch(c.id, cuda_attention_arguments(c.plan.kernel, c.plan.geometry, pointers),
                     {static_cast<unsigned>(c.plan.geometry.blocks(c.plan.kernel)), 1, 1},
                     {static_cast<unsigned>(c.plan.kernel.threads()), 1, 1});
  REQUIRE_MESSAGE(problem.empty(), problem);
  InterpreterOptions options;
  options.ops = &operators();
  auto want = interpret(g, c.r.tensors, options);
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : render(want.error())));
  if (c.r.type == DType::f32) {
    const Difference d = compare(y, (*want)[0], model_tolerance(c.r.type));
    CHECK_MESSAGE(d.ok, d.text);
    return;
  }
  // The nodes round the scores to half precision, the kernel does not: f64 tells who is nearer.
  options.f64 = true;
  auto exact = interpret(g, c.r.tensors, options);
  REQUIRE_MESSAGE(exact.has_value(), (exact ? "" : render(exact.error())));
  double ours = 0, theirs = 0;
  for (int64_t i = 0; i < y.numel(); ++i) {
    const double e = (*exact)[0].at_f64(i), got = y.at_f64(i), other = (*want)[0].at_f64(i);
    REQUIRE(std::isfinite(e) == std::isfinite(got));
    if (!std::isfinite(e)) continue;
    ours += (got - e) * (got - e), theirs += (other - e) * (other - e);
  }
  CHECK(ours <= theirs);
}

}  // namespace

TEST_CASE(
    "scores that are capped, filled or masked last, weights that are hidden, values that are "
    "scaled") {
  if (HostKernels::missing()) return;
  std::mt19937 rng(7);
  std::vector<AttentionForm> forms;
  for (const DType type : {DType::f32, DType::f16})
    for (const double fill : {-3.0, -std::numeric_limits<double>::infinity()})
      for (const bool hides : {false, true}) {
        AttentionForm f{type, {2, 2}, 37, 70, 16, 24, Dims{2, 1, 37, 70}};
        f.keep = Dims{2, 1, 1, 70}, f.fill = fill, f.hides = hides, f.hidden = 0.3, f.late = !hides;
        forms.push_back(f);
        f.keep = Dims{37, 1}, f.late = false, f.cap = hides ? 0 : 2.5,
        f.odd = 0.01;  // queries without a key
        forms.push_back(f);
        f.keep = Dims{37, 70}, f.mask.reset(), f.v_scale = hides ? 1 : -1.5, f.cap = 0;
        forms.push_back(f);
      }
  AttentionForm plain{DType::f32, {3}, 5, 40, 8, 12, Dims{40}};
  plain.cap = 0.5, plain.v_scale = 3;
  forms.push_back(plain);
  HostKernels kernels;
  std::vector<AttentionCase> cases;
  for (const AttentionForm& f : forms) cases.push_back(case_of(f, rng, false, kernels));
  REQUIRE(kernels.compile() == "");
  for (const AttentionCase& c : cases) check(c, kernels);
}

TEST_CASE("the attention kernel equals its nodes, one by one") {
  if (HostKernels::missing()) return;
  std::mt19937 rng(5);
  const std::vector<AttentionForm> forms = {
      {DType::f32, {2, 3}, 5, 7, 8, 8, {}},
      {DType::f32, {}, 70, 65, 64, 64, Dims{70, 65}},
      {DType::f32, {2}, 33, 100, 16, 24, Dims{100}, false, false, true},
      {DType::f32, {2, 2}, 40, 33, 12, 20, Dims{2, 1, 1, 33}, true, true, false, true, false, 0.3},
      {DType::f32, {2, 2}, 9, 40, 32, 128, Dims{1, 1, 9, 40}, true, false, false, false},
      {DType::f32, {3, 2}, 6, 37, 7, 5, Dims{1, 2, 6, 1}, true},
      {DType::f32, {4, 1}, 34, 3, 80, 72, {}, false, false, true, true, true},
      {DType::f32,
       {1, 2},
       3,
       64,
       128,
       33,
       Dims{3, 64},
       false,
       true,
       false,
       true,
       false,
       1.0},  // every key masked: 0
      {DType::f32,
       {1, 2},
       3,
       40,
       4,
       4,
       Dims{3, 40},
       false,
       false,
       false,
       true,
       false,
       1.0},  // and NaN without the guard
      {DType::f32,
       {2, 2},
       40,
       33,
       12,
       20,
       Dims{2, 1, 40, 33},
       true,
       true,
       false,
       true,
       false,
       0.9,
       0.01},  // a weight of 0 times NaN
      guarded({DType::f32, {2, 2}, 40, 5, 12, 20, Dims{2, 1, 40, 5}, true}, 0.7, 0.02),
      guarded({DType::f32, {2, 2}, 70, 65, 32, 40, Dims{2, 1, 70, 1}}, 0.5, 0.001),
      guarded({DType::f32, {3}, 35, 70, 7, 5, Dims{70}}, 1.0, 0.01),
      guarded({DType::f32, {2}, 35, 66, 64, 64, Dims{35, 66}}, 0.98, 0),
      guarded({DType::f16, {2, 2}, 20, 5, 64, 64, Dims{2, 1, 20, 5}, true}, 0.7, 0.001),
      guarded({DType::bf16, {2}, 33, 40, 16, 24, Dims{33, 1}}, 0.5, 0),
      guarded({DType::f32, {2, 2}, 40, 5, 12, 20, {}, true}, 0.7, 0.02, Dims{2, 1, 40, 5}),
      guarded({DType::f32, {3}, 35, 70, 7, 5, Dims{70}}, 0.3, 0.001, Dims{3, 35, 1}),
      guarded({DType::f16, {2}, 33, 40, 16, 24, {}}, 0.3, 0, Dims{40}),
      {DType::f16, {2, 2}, 20, 50, 64, 64, Dims{2, 1, 20, 50}, true},
      {DType::f16, {1, 3}, 65, 31, 24, 40, {}, false, true},
      {DType::bf16,
       {2, 2},
       17,
       33,
       32,
       32,
       Dims{1, 1, 17, 33},
       true,
       true,
       false,
       true,
       false,
       0.5},
      {DType::bf16, {2}, 1, 90, 100, 96, {}},
  };
  HostKernels kernels;
  std::vector<AttentionCase> cases;
  for (const AttentionForm& f : forms)
    for (bool aligned : {true, false}) cases.push_back(case_of(f, rng, aligned, kernels));
  const std::string problem = kernels.compile();
  REQUIRE_MESSAGE(problem.empty(), problem);
  for (const AttentionCase& c : cases) check(c, kernels);
}

TEST_CASE(
    "the attention kernel reads whole packs where heads lie in them, and compiles without a "
    "spill") {
  std::mt19937 rng(6);
  HostKernels none;
  const AttentionCase turned =
      case_of({DType::f32, {2, 2}, 40, 33, 64, 64, {}, true}, rng, true, none);
  CHECK(turned.plan.kernel.vector == 4);
  CHECK(case_of({DType::f32, {2, 2}, 40, 33, 64, 64, {}, true}, rng, false, none)
            .plan.kernel.vector == 1);
  CHECK(case_of({DType::f32, {2, 2}, 40, 33, 64, 64, {}, false}, rng, true, none)
            .plan.kernel.vector == 1);  // keys side by side
  if (!nvrtc_info()) {
    MESSAGE("skipped, NVRTC is not installed");
    return;
  }
  for (const AttentionForm& f :
       {AttentionForm{DType::f32, {2, 2}, 40, 33, 64, 64, {}, true},
        AttentionForm{DType::f16, {2, 2}, 40, 33, 128, 128, Dims{40, 33}, true},
        AttentionForm{DType::bf16, {}, 40, 33, 72, 100, Dims{40, 33}, false, true},
        guarded({DType::f32, {}, 40, 33, 64, 64, Dims{40, 33}}, 0.5, 0)}) {
    const AttentionCase c = case_of(f, rng, true, none);
    auto cubin =
        compile_cuda(cuda_attention_source(c.plan.kernel, "kernel", ""), "kernel", "sm_90");
    REQUIRE_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error())));
    CAPTURE(cubin->log);
    CHECK(cubin->spill_bytes == 0);
  }
}
