// Hand-made graphs planned, lowered, prepared and run on the CPU backend, and compared with the
// interpreter.
#pragma once
#include "codegen/annotate_plan.h"
#include "engine/group/group.h"
#include "engine/interpreter/interpreter.h"
#include "engine/semantics/infer.h"
#include "runtime/cpu/executable.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu {
std::unique_ptr<Backend> make_cpu_backend();
}

namespace ferrule::cpu::test {

/// The target of the instructions that oneDNN uses here, with every contract that these tests use.
inline Target target() {
  Target t;
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa()),
             wide = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  t.name = (isa & wide) == wide ? "cpu-avx512" : "cpu-avx2";
  t.device = "cpu";
  t.notices_nan = true;
  t.l2_bytes = 1 << 20;
  for (const char* c : {"conv", "deconv", "gemm", "pool", "resize", "norm", "row_reduce", "copy",
                        "view", "pointwise", "conv_pool", "depthwise_pointwise"}) {
    ContractFacts f;
    f.types = {DType::f32, DType::i64, DType::f64, DType::i32};
    f.max_epilogue_ops = 8;
    f.max_operands = 4;
    f.generated_tail = true;
    t.contracts[c] = f;
  }
  for (const char* c : {"conv", "deconv", "gemm"})
    t.contracts[c].library = ferrule::Library::onednn;
  for (const char* c : {"conv", "conv_pool"}) t.contracts[c].most_plain_channels = 4;
  t.contracts["pointwise"].least_channels_last = 8;
  return t;
}

struct Model {
  Graph graph;
  int names = 0;
  ValueId input(const Dims& d) {
    return graph.add_input("x" + std::to_string(names++), {DType::f32, Shape(d.begin(), d.end())});
  }
  ValueId constant(Tensor t) {
    return graph.add_constant("c" + std::to_string(names++), std::move(t));
  }
  static void check_inferred(const Status& s) {
    REQUIRE_MESSAGE(s.has_value(), (s ? "" : render(s.error())));
  }
  ValueId node(std::string op, std::vector<ValueId> inputs, std::map<std::string, Attr> attrs = {},
               const Dims& dims = {}) {
    Node n;
    n.op = op;
    n.name = op + "_" + std::to_string(names);
    n.origins = {n.name};
    n.inputs = std::move(inputs);
    for (auto& [k, v] : attrs) n.attrs.set(k, v);
    ValueId out = graph.add_value("v" + std::to_string(names++));
    n.outputs = {out};
    NodeId id = graph.add_node(std::move(n));
    if (!dims.empty())
      graph.set_type(out, {DType::f32, Shape(dims.begin(), dims.end())});
    else
      check_inferred(infer(operators(), graph, id));
    return out;
  }
  /// 3x3 with a border of zeros, so that the result has the image's sizes; as many filters as
  /// channels, drawn.
  ValueId convolution(ValueId x, const Dims& image) {
    const ValueId filters = constant(random_tensor({image[1], image[1], 3, 3}, 1));
    return node("Conv", {x, filters},
                {{"kernel_shape", Dims{3, 3}},
                 {"pads", Dims{1, 1, 1, 1}},
                 {"strides", Dims{1, 1}},
                 {"dilations", Dims{1, 1}},
                 {"group", int64_t{1}},
                 {"auto_pad", std::string("NOTSET")}},
                image);
  }
};

struct Prepared {
  Plan plan;
  Lowered lowered;
  Target device = target();
  Limits limits;
  std::unique_ptr<Backend> backend = make_cpu_backend();
  std::unique_ptr<Executable> executable;
};

/// `backend`: of plans that share packed weights; null: a new one. It may give back the weights of
/// `g`. `all_candidates`: ready for measure().
inline std::unique_ptr<Prepared> prepare(const Graph& g, const LowerOptions& options = {},
                                         Backend* backend = nullptr, bool all_candidates = false) {
  auto p = std::make_unique<Prepared>();
  auto plan = make_plan(std::move(*g.clone()), p->device, operators());
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : render(plan.error())));
  p->plan = std::move(*plan);
  auto lowered = lower(p->plan, operators(), p->device, options);
  REQUIRE_MESSAGE(lowered.has_value(), (lowered ? "" : render(lowered.error())));
  p->lowered = std::move(*lowered);
  PrepareContext context{p->plan, p->lowered, operators(), p->device, p->limits, 2, {}};
  context.own_weights = backend != nullptr;
  context.all_candidates = all_candidates;
  auto e = (backend ? backend : p->backend.get())->prepare(context);
  REQUIRE_MESSAGE(e.has_value(), (e ? "" : e.error().reason()));
  p->executable = std::move(*e);
  return p;
}

inline std::vector<Tensor> inputs_of(const Graph& g, unsigned seed) {
  std::vector<Tensor> v;
  for (ValueId x : g.inputs())
    v.push_back(random_tensor(*constant_shape(*g.value(x).type.shape), seed++));
  return v;
}

/// One run compared with the interpreter: the first result that differs; empty: none.
inline std::string difference(Prepared& p, const Graph& g, const std::vector<Tensor>& inputs) {
  InterpreterOptions options;
  options.ops = &operators();
  auto want = interpret(g, inputs, options);
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : render(want.error())));
  auto got = p.executable->run_tensors(inputs);
  REQUIRE_MESSAGE(got.has_value(), (got ? "" : render(got.error())));
  REQUIRE(got->size() == want->size());
  for (size_t k = 0; k < got->size(); ++k)
    if (const Difference d =
            compare((*got)[k], (*want)[k],
                    (*want)[k].dtype() == DType::f32 ? model_tolerance(DType::f32) : Tolerance{});
        !d.ok)
      return d.text;
  return "";
}

/// Prepared, run twice with different inputs, compared with the interpreter.
inline std::unique_ptr<Prepared> check(const Graph& g, const LowerOptions& options = {}) {
  auto p = prepare(g, options);
  for (unsigned seed : {10u, 20u}) CHECK(difference(*p, g, inputs_of(g, seed)) == "");
  return p;
}

inline int planned_kernels(const Prepared& p) {
  int n = 0;
  for (const Layer& l : p.plan.layers) n += l.kernels;
  return n;
}

}  // namespace ferrule::cpu::test
