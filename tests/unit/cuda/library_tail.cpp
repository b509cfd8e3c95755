// What goes into a library's call, by target, type, layout and form.
#include "engine/contract/library_tail.h"

#include <doctest/doctest.h>

#include "engine/base/diagnostics.h"
#include "tests/support/paths.h"

namespace ferrule {
namespace {

using Dims = std::vector<int64_t>;

struct Model {
  Graph g;
  NodeId anchor;
  std::vector<PostOp> steps;
  std::vector<ValueId> inputs;

  ValueId value(const char* name, DType t, const Dims& dims) {
    return g.add_input(name, type(t, dims));
  }
  static Type type(DType t, const Dims& dims) {
    Type out;
    out.dtype = t;
    out.shape = Shape(dims.begin(), dims.end());
    return out;
  }
  Model(const char* op, DType t, std::vector<Dims> in, const Dims& y, int64_t group = 1,
        bool tf32 = false) {
    Node n;
    n.op = op;
    int k = 0;
    for (const Dims& d : in) n.inputs.push_back(value(("in" + std::to_string(k++)).c_str(), t, d));
    n.outputs.push_back(g.add_value("y", type(t, y)));
    if (group > 1) n.attrs.set("group", group);
    if (tf32) n.attrs.set("precision", std::string("tf32"));
    anchor = g.add_node(std::move(n));
  }
  Model& step(const char* alg) {
    PostOp op;
    op.alg = alg;
    steps.push_back(op);
    return *this;
  }
  Model& with(const char* alg, const Dims& dims) {
    step(alg);
    steps.back().operand = static_cast<int>(inputs.size());
    inputs.push_back(value(("operand" + std::to_string(inputs.size())).c_str(),
                           g.value(g.node(anchor).outputs[0]).type.dtype, dims));
    return *this;
  }
  std::string refused(const char* target, const char* contract, bool last = true) {
    const std::string dirs[] = {rules_dir()};
    auto t = load_target(dirs, target);
    REQUIRE(t.has_value());
    return library_takes({&*t, contract, &g, anchor, last, steps, inputs}).reason;
  }
};

Model conv(DType t, int64_t group = 1, bool tf32 = false) {
  return {"Conv", t, {{1, 8, 5, 5}, {8, 8 / group, 3, 3}}, {1, 8, 3, 3}, group, tf32};
}
Model product(DType t) { return {"MatMul", t, {{2, 5, 7}, {7, 4}}, {2, 5, 4}}; }

}  // namespace

TEST_CASE("f32 keeps to the ready-made chain unless tf32 is allowed") {
  CHECK(conv(DType::f32).step("relu").refused("sm_90", "conv").empty());
  CHECK(conv(DType::f32).with("add", {1, 8, 3, 3}).step("relu").refused("sm_90", "conv").empty());
  CHECK_FALSE(
      conv(DType::f32).step("relu").with("add", {1, 8, 3, 3}).refused("sm_90", "conv").empty());
  CHECK_FALSE(conv(DType::f32).with("add", {8, 1, 1}).refused("sm_90", "conv").empty());
  CHECK_FALSE(conv(DType::f32).step("swish").refused("sm_90", "conv").empty());
  CHECK(conv(DType::f32, 1, true).step("swish").refused("sm_90", "conv").empty());
}

TEST_CASE("f16 takes what cuDNN compiles engines for, on channels-last images") {
  CHECK(conv(DType::f16).step("swish").with("mul", {1, 8, 1, 1}).refused("sm_75", "conv").empty());
  CHECK_FALSE(conv(DType::f16).step("swish").refused("sm_75", "conv", false).empty());
  CHECK(conv(DType::f16).step("relu").refused("sm_75", "conv", false).empty());
  CHECK_FALSE(conv(DType::f16).step("round").refused("sm_90", "conv").empty());
  CHECK(conv(DType::f16, 8).step("swish").refused("sm_90", "conv").empty());
  CHECK_FALSE(conv(DType::bf16, 8).step("swish").refused("sm_90", "conv").empty());
  CHECK(conv(DType::bf16, 8).step("relu").refused("sm_90", "conv").empty());
}

TEST_CASE("products take one addend a column, one as large as the result, then relu or gelu") {
  CHECK(product(DType::f32)
            .with("add", {4})
            .with("add", {2, 5, 4})
            .step("gelu_tanh")
            .refused("sm_90", "gemm")
            .empty());
  CHECK_FALSE(
      product(DType::f32).with("add", {4}).with("add", {1, 4}).refused("sm_90", "gemm").empty());
  CHECK_FALSE(product(DType::f32).with("add", {5, 1}).refused("sm_90", "gemm").empty());
  CHECK_FALSE(product(DType::f32).step("relu").with("add", {4}).refused("sm_90", "gemm").empty());
  CHECK_FALSE(product(DType::f16).step("swish").refused("sm_90", "gemm").empty());
}

TEST_CASE("oneDNN is asked nothing here") {
  CHECK(conv(DType::f32).step("swish").refused("cpu-avx2", "conv").empty());
}

}  // namespace ferrule
