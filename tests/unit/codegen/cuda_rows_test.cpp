// Row kernels of CUDA C++ on the host: every row operator on random shapes, axes, element types and
// layouts, by every kind of team, against the interpreter; sums against double.
#include "codegen/cuda/rows.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <set>

#include "codegen/cuda/nvrtc.h"
#include "engine/base/tolerance.h"
#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/plan/plan.h"
#include "tests/unit/codegen/helpers.h"
#include "tests/unit/codegen/host_kernels.h"
#include "tests/unit/codegen/row_cases.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

/// A tensor's elements in the order of other strides, and back.
std::vector<char> laid_out(const Tensor& t, const std::vector<int64_t>& strides, bool back,
                           std::vector<char> memory = {}) {
  const size_t size = static_cast<size_t>(size_bits(t.dtype()) / 8);
  memory.resize(std::max<size_t>(static_cast<size_t>(t.bytes()), 16));
  auto* own = static_cast<char*>(const_cast<void*>(t.data()));
  std::vector<int64_t> i(t.dims().size());
  for (int64_t k = 0; k < t.numel(); ++k) {
    int64_t rest = k, at = 0;
    for (size_t a = i.size(); a-- > 0; rest /= t.dims()[a]) at += rest % t.dims()[a] * strides[a];
    char* there = memory.data() + static_cast<size_t>(at) * size;
    if (back)
      std::memcpy(own + static_cast<size_t>(k) * size, there, size);
    else
      std::memcpy(there, own + static_cast<size_t>(k) * size, size);
  }
  return memory;
}

/// One region with its kernel; made first, run when all are compiled.
struct RowCase {
  RowGraph r;
  RowRegion region;
  CudaRowPlan plan;
  std::vector<Layout> layouts;  ///< of the operands
  size_t id = 0;
  std::string what;

  std::vector<int64_t> dims(size_t k) const {
    return r.dims(k < region.inputs.size() ? region.inputs[k].value
                                           : region.outputs[k - region.inputs.size()].value);
  }
};

class RowCases {
 public:
  /// The graph's nodes as one kernel; operands of three axes or more in random layouts.
  RowCase& add(RowGraph graph, std::mt19937& rng, bool aligned) {
    auto region = lower_rows(operators(), graph.graph, graph.graph.order(),
                             std::vector(graph.graph.outputs()));
    REQUIRE_MESSAGE(region.has_value(), (region ? "" : region.error().reason()));
    RowCase& c = cases_.emplace_back(RowCase{std::move(graph), std::move(*region), {}, {}, 0, {}});
    std::vector<RowLayout> operands;
    for (size_t k = 0; k < c.region.inputs.size() + c.region.outputs.size(); ++k) {
      const std::vector<int64_t> d = c.dims(k);
      c.layouts.push_back(d.size() >= 3 && d.size() <= 5 && rng() % 2 ? Layout::channels_last
                                                                      : Layout::plain);
      operands.push_back({d, strides_of(d, c.layouts.back())});
    }
    auto plan = plan_cuda_rows(c.region, operands, aligned);
    REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().reason()));
    c.plan = std::move(*plan);
    c.plan.kernel.wide_index = rng() % 4 == 0;
    auto source = cuda_row_source(c.plan.kernel, "kernel", "");
    REQUIRE_MESSAGE(source.has_value(), (source ? "" : render(source.error())));
    c.id = kernels_.add(*source, "kernel");
    return c;
  }

  void run() {
    const std::string problem = kernels_.compile();
    REQUIRE_MESSAGE(problem.empty(), problem);
    for (RowCase& c : cases_) {
      CAPTURE(c.what);
      CAPTURE(to_text(c.plan.kernel.staged));
      CAPTURE(static_cast<int>(c.plan.kernel.team));
      CAPTURE(c.plan.kernel.vector);
      CAPTURE(c.plan.kernel.items);
      const auto got = results(c);
      InterpreterOptions options;
      options.ops = &operators();
      auto want = interpret(c.r.graph, c.r.tensors, options);
      REQUIRE_MESSAGE(want.has_value(), (want ? "" : render(want.error())));
      REQUIRE(got.size() == want->size());
      for (size_t k = 0; k < got.size(); ++k) {
        const Difference d = compare(got[k], (*want)[k], model_tolerance(got[k].dtype()));
        CHECK_MESSAGE(d.ok, d.text);
      }
    }
  }

  std::vector<Tensor> results(const RowCase& c) const {
    std::vector<std::vector<char>> memory;
    std::vector<Tensor> out;
    std::vector<void*> pointers;
    for (size_t k = 0; k < c.layouts.size(); ++k) {
      const std::vector<int64_t> d = c.dims(k), strides = strides_of(d, c.layouts[k]);
      if (k < c.region.inputs.size()) {
        const auto& inputs = c.r.graph.inputs();
        const auto at = std::ranges::find(inputs, c.region.inputs[k].value) - inputs.begin();
        memory.push_back(laid_out(c.r.tensors[static_cast<size_t>(at)], strides, false));
      } else {
        const DType t =
            c.r.graph.value(c.region.outputs[k - c.region.inputs.size()].value).type.dtype;
        out.push_back(Tensor::allocate(t, d).first);
        memory.emplace_back(std::max<size_t>(static_cast<size_t>(out.back().bytes()), 16),
                            char{0x7f});
      }
    }
    for (auto& m : memory) pointers.push_back(m.data());
    const auto [x, y] = CudaRowGeometry::block(c.plan.kernel);
    const auto blocks = static_cast<unsigned>(c.plan.geometry.blocks(c.plan.kernel));
    const std::string problem =
        kernels_.launch(c.id, cuda_row_arguments(c.plan.kernel, c.plan.geometry, pointers),
                        {blocks, 1, 1}, {static_cast<unsigned>(x), static_cast<unsigned>(y), 1});
    CHECK_MESSAGE(problem.empty(), problem);
    for (size_t k = 0; k < out.size(); ++k) {
      const size_t operand = c.region.inputs.size() + k;
      laid_out(out[k], strides_of(c.dims(operand), c.layouts[operand]), true, memory[operand]);
    }
    return out;
  }

  std::vector<RowCase>& all() { return cases_; }

 private:
  std::vector<RowCase> cases_;
  HostKernels kernels_;
};

}  // namespace

TEST_CASE("CUDA row kernels equal the interpreter") {
  if (HostKernels::missing()) return;
  std::mt19937 rng(31);
  RowCases cases;
  for (const auto* ops : {&kFloatRows, &kAnyRows})
    for (const std::string& op : *ops)
      for (DType type : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
        RowGraph r(type);
        random_region(r, op, rng);
        cases.add(std::move(r), rng, rng() % 2).what = op + " of " + std::string(name(type));
      }
  for (DType type : {DType::i8, DType::u8, DType::i16, DType::u16, DType::i32, DType::u32,
                     DType::i64, DType::u64})
    for (const std::string& op : kAnyRows) {
      RowGraph r(type);
      r.graph.add_output(
          row_operator(r, r.input(random_of(type, random_dims(rng, 1 + rng() % 4), rng)), op, rng));
      cases.add(std::move(r), rng, rng() % 2).what = op + " of " + std::string(name(type));
    }
  // Rows of every length class: in registers of a warp, of a block, walked, and side by side.
  for (int64_t length : {1, 7, 64, 1024, 1028, 5000, 20000, 40001}) {
    RowGraph r(DType::f32);
    r.graph.add_output(r.node("Softmax", {r.input(random_of(DType::f32, {3, length}, rng))},
                              {{"axis", int64_t{-1}}}));
    cases.add(std::move(r), rng, true).what = fmt::format("Softmax of {}", length);
    RowGraph c(DType::f32);
    c.graph.add_output(c.node(
        "Softmax", {c.input(random_of(DType::f32, {std::min<int64_t>(length, 300), 37}, rng))},
        {{"axis", int64_t{0}}}));
    cases.add(std::move(c), rng, true).what = fmt::format("Softmax of columns of {}", length);
  }
  // What is normalised is a further result, which later stages find in registers or read back.
  for (DType t : {DType::f32, DType::f16})
    for (const Dims& d : std::vector<Dims>{{3, 1}, {3, 7}, {3, 768}, {2, 40000}, {5, 64, 3, 4}})
      for (int64_t axis : {int64_t{1}, int64_t{-1}}) {
        RowGraph r(t);
        const ValueId s =
            r.node("Add", {r.input(random_of(t, d, rng)), r.input(random_of(t, d, rng))});
        r.graph.add_output(s);
        r.graph.add_output(r.node("Softmax", {s}, {{"axis", axis}}));
        cases.add(std::move(r), rng, true).what = fmt::format("Add and Softmax of {}", name(t));
      }
  std::set<std::tuple<CudaTeam, bool, bool>> forms;
  for (const RowCase& c : cases.all())
    forms.emplace(c.plan.kernel.team, c.plan.kernel.items > 0, c.plan.kernel.vector > 1);
  CHECK(forms.size() >=
        7);  // columns; warp and block, walked and kept, whole vectors and single elements
  cases.run();
}

TEST_CASE(
    "CUDA row kernels: a maximum and its sum of exponentials are one pass where the row is not "
    "kept") {
  if (HostKernels::missing()) return;
  std::mt19937 rng(47);
  RowCases cases;
  constexpr double kInf = std::numeric_limits<double>::infinity(),
                   kNan = std::numeric_limits<double>::quiet_NaN();
  // Rows of one block each: numbers as they come; rising ones, where every element is a new
  // maximum; all -inf; -inf among numbers; one +inf; one NaN; all as low as can be; and far apart.
  auto filled = [&](DType t, const Dims& d, bool along_rows) {
    auto [tensor, bytes] = Tensor::allocate(t, d);
    const int64_t length = along_rows ? d[1] : d[0], rows = along_rows ? d[0] : d[1];
    const double low = t == DType::f16 ? -65504 : t == DType::f64 ? -1e300 : -3e38;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t e = 0; e < length; ++e) {
        double v = std::uniform_real_distribution<double>(-3, 3)(rng);
        switch (r % 8) {
          case 1:
            v = static_cast<double>(e) * 30 / static_cast<double>(length);
            break;
          case 2:
            v = -kInf;
            break;
          case 3:
            v = e % 3 && e != 1 ? -kInf : v;
            break;
          case 4:
            v = e == length / 2 ? kInf : v;
            break;
          case 5:
            v = e == length - 1 ? kNan : v;
            break;
          case 6:
            v = low;
            break;
          case 7:
            v *= 10000;
            break;
          default:
            break;
        }
        const Tensor one = Tensor::scalar(t, v);
        const int64_t at = along_rows ? r * length + e : e * rows + r;
        std::memcpy(static_cast<char*>(bytes) + at * size_bits(t) / 8, one.data(),
                    static_cast<size_t>(size_bits(t)) / 8);
      }
    return tensor;
  };
  size_t online = 0;
  for (const char* op : {"Softmax", "LogSoftmax", "ReduceLogSumExp"})
    for (DType t : {DType::f32, DType::f64, DType::f16, DType::bf16})
      for (bool along_rows : {true, false}) {
        RowGraph r(t);
        const ValueId x =
            r.input(filled(t, along_rows ? Dims{8, 9001} : Dims{203, 40}, along_rows));
        const int64_t axis = along_rows ? 1 : 0;
        r.graph.add_output(
            op[0] == 'R' ? r.node(op, {x, r.axes({axis})},
                                  {{"keepdims", int64_t{0}}, {"noop_with_empty_axes", int64_t{0}}})
                         : r.node(op, {x}, {{"axis", axis}}));
        RowCase& c = cases.add(std::move(r), rng, true);
        c.what = fmt::format("{} of {}, {}", op, name(t), along_rows ? "rows" : "columns");
        online += c.plan.kernel.online.has_value();
        CHECK_MESSAGE(c.plan.kernel.online.has_value(), c.what);
      }
  CHECK(online == 24);
  // Neighbours in front of it belong to both stages; a row in registers needs no second reading.
  RowGraph added(DType::f32);
  const ValueId sum = added.node("Add", {added.input(random_of(DType::f32, {3, 40000}, rng)),
                                         added.input(random_of(DType::f32, {40000}, rng))});
  added.graph.add_output(added.node("Softmax", {sum}, {{"axis", int64_t{-1}}}));
  CHECK(cases.add(std::move(added), rng, true).plan.kernel.online.has_value());
  RowGraph kept(DType::f32);
  kept.graph.add_output(kept.node("Softmax", {kept.input(random_of(DType::f32, {3, 500}, rng))},
                                  {{"axis", int64_t{-1}}}));
  CHECK_FALSE(cases.add(std::move(kept), rng, true).plan.kernel.online.has_value());
  // What looks alike and is not: the sum is of something else than the maximum is.
  RowGraph other(DType::f32);
  const ValueId z = other.input(random_of(DType::f32, {3, 40000}, rng));
  const ValueId top = other.node("ReduceMax", {z, other.axes({1})},
                                 {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{0}}});
  const ValueId below = other.node("Exp", {other.node("Sub", {other.node("Abs", {z}), top})});
  other.graph.add_output(
      other.node("ReduceSum", {below, other.axes({1})},
                 {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{0}}}));
  CHECK_FALSE(cases.add(std::move(other), rng, true).plan.kernel.online.has_value());
  cases.run();
}

TEST_CASE("CUDA row kernels: sums of many numbers are nearly as good as in double") {
  if (HostKernels::missing()) return;
  RowCases cases;
  std::vector<double> want;
  std::mt19937 rng(23);
  for (int64_t n : {1000, 65537, 1000003}) {
    RowGraph r(DType::f32);
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = std::uniform_real_distribution<float>(0, 1)(rng);
    want.push_back(std::accumulate(v.begin(), v.end(), 0.0));
    r.graph.add_output(r.node("ReduceSum", {r.input(Tensor::of_f32({n}, v))},
                              {{"keepdims", int64_t{0}}, {"noop_with_empty_axes", int64_t{0}}}));
    cases.add(std::move(r), rng, true);
  }
  cases.run();
  for (size_t k = 0; k < want.size(); ++k)
    CHECK(std::fabs(cases.results(cases.all()[k])[0].at_f64(0) - want[k]) <= want[k] * 0x1p-22);
}

TEST_CASE("CUDA row kernels compile without a spill") {
  if (const auto info = nvrtc_info(); !info) {
    MESSAGE("skipped, NVRTC is not there: " << info.error().message);
    return;
  }
  // Each form for one of two targets, or for both with FERRULE_TEST_FULL: NVRTC takes half a second
  // for one.
  const bool full = std::getenv("FERRULE_TEST_FULL");
  int forms = 0;
  std::mt19937 rng(5);
  for (const char* op : {"Softmax", "LayerNormalization", "GroupNormalization", "ReduceMean"})
    for (const Dims& d : std::vector<Dims>{{64, 768}, {8, 32, 56, 56}, {4, 200000}})
      for (DType t : {DType::f32, DType::f16}) {
        if (op[0] == 'G' && d.size() < 3) continue;
        RowGraph r(t);
        r.graph.add_output(row_operator(r, r.input(random_of(t, d, rng)), op, rng));
        auto region =
            lower_rows(operators(), r.graph, r.graph.order(), std::vector(r.graph.outputs()));
        REQUIRE(region.has_value());
        std::vector<RowLayout> operands;
        for (const auto* list : {&region->inputs, &region->outputs})
          for (const RowOperand& o : *list)
            operands.push_back({r.dims(o.value), strides_of(r.dims(o.value), Layout::plain)});
        auto plan = plan_cuda_rows(*region, operands, true);
        REQUIRE(plan.has_value());
        auto source = cuda_row_source(plan->kernel, "kernel", "");
        REQUIRE(source.has_value());
        const int own = (forms + forms / 2) % 2;
        ++forms;
        for (int k = 0; k < 2; ++k) {
          if (!full && k != own) continue;
          const char* target = k ? "sm_90" : "sm_75";
          auto cubin = compile_cuda(*source, "kernel", target);
          REQUIRE_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error())));
          CHECK_MESSAGE(cubin->spill_bytes == 0, op, " ", target);
        }
      }
}
