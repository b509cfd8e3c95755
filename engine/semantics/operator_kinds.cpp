#include "engine/semantics/operator_kinds.h"

#include "engine/graph/operator_name.h"

namespace ferrule {
namespace {

bool is(const Node& n, std::string_view op) {
  return n.op == op && (n.domain.empty() || n.domain == "ai.onnx");
}

constexpr std::pair<std::string_view, Pooling> kPoolings[] = {
    {"MaxPool", {true, false}},
    {"AveragePool", {false, false}},
    {"GlobalMaxPool", {true, true}},
    {"GlobalAveragePool", {false, true}},
};
constexpr std::pair<std::string_view, Weighted> kWeighted[] = {
    {"Conv", {0, false, true}},
    {"ConvInteger", {0, false, true}},
    {"ConvTranspose", {1, true, true}},
    {"Gemm", {1, false, false, 1, true}},
    {"MatMul", {-1}},
    {"QLinearConv", {0, false, true, 3}},
};

}  // namespace

std::optional<Pooling> pooling_of(const Node& n) {
  for (const auto& [op, pooling] : kPoolings)
    if (is(n, op)) return pooling;
  return std::nullopt;
}

Node image_reduction(Graph& g, Pooling pooling, ValueId x) {
  std::vector<int64_t> axes;
  for (int64_t k = 2; k < g.value(x).type.rank(); ++k) axes.push_back(k);
  const auto count = static_cast<int64_t>(axes.size());
  Node n;
  n.op = operator_named(pooling.maximum ? "ReduceMax" : "ReduceMean");
  n.inputs = {x, g.add_constant("axes", Tensor::of_i64({count}, std::move(axes)))};
  n.attrs.set("keepdims", Attr(int64_t{1}));
  return n;
}

const Weighted* weighted(const Node& n) {
  for (const auto& [op, weights] : kWeighted)
    if (is(n, op)) return &weights;
  return nullptr;
}

bool quantizes(const Node& n) { return is(n, "QuantizeLinear"); }
bool dequantizes(const Node& n) { return is(n, "DequantizeLinear"); }
bool is_branch(const Node& n) { return is(n, "If"); }
bool is_loop(const Node& n) { return is(n, "Loop"); }

}  // namespace ferrule
