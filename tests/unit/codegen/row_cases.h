// Regions of row operators for the tests of every kind of row kernel: random shapes, axes, types
// and neighbours.
#pragma once
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <random>

#include "engine/semantics/infer.h"
#include "tests/unit/codegen/shipped_operators.h"

namespace ferrule::test {

using Dims = std::vector<int64_t>;

inline Tensor random_of(DType t, const Dims& dims, std::mt19937& rng) {
  auto [tensor, bytes] = Tensor::allocate(t, dims);
  for (int64_t k = 0; k < tensor.numel(); ++k) {
    const double v = is_float(t) ? std::uniform_real_distribution<double>(-3, 3)(rng)
                                 : static_cast<double>(rng() % 23) - (is_unsigned_int(t) ? 0 : 11);
    const Tensor one = Tensor::scalar(t, v);
    std::memcpy(static_cast<char*>(bytes) + k * size_bits(t) / 8, one.data(),
                static_cast<size_t>(size_bits(t)) / 8);
  }
  return tensor;
}

/// A graph whose nodes are one region, with the tensors of its inputs.
struct RowGraph {
  Graph graph;
  std::vector<Tensor> tensors;
  DType type;

  explicit RowGraph(DType t) : type(t) {}
  ValueId input(Tensor t) {
    const ValueId v = graph.add_input("x" + std::to_string(tensors.size()),
                                      {t.dtype(), Shape(t.dims().begin(), t.dims().end())});
    tensors.push_back(std::move(t));
    return v;
  }
  ValueId node(std::string op, std::vector<ValueId> inputs,
               std::map<std::string, Attr> attrs = {}) {
    Node n;
    n.op = op;
    n.name = op + std::to_string(graph.node_slots());
    n.inputs = std::move(inputs);
    for (auto& [k, v] : attrs) n.attrs.set(k, v);
    const ValueId out = graph.add_value("v" + std::to_string(graph.node_slots()));
    n.outputs = {out};
    const NodeId id = graph.add_node(std::move(n));
    auto s = infer(operators(), graph, id);
    REQUIRE_MESSAGE(s.has_value(), (s ? "" : render(s.error())));
    return out;
  }
  ValueId axes(const Dims& a) {
    return graph.add_constant("axes" + std::to_string(graph.value_slots()),
                              Tensor::of_i64({static_cast<int64_t>(a.size())}, a));
  }
  Dims dims(ValueId v) const { return *constant_shape(*graph.value(v).type.shape); }
};

inline int64_t pick(std::mt19937& rng, std::initializer_list<int64_t> from) {
  return from.begin()[rng() % from.size()];
}

inline Dims random_dims(std::mt19937& rng, size_t rank) {
  Dims d;
  int64_t n = 1;
  for (size_t k = 0; k < rank; ++k) {
    d.push_back(pick(rng, {1, 2, 3, 5, 8, 16, 17, 33, 70}));
    if (n * d.back() > 20000) d.back() = 1 + static_cast<int64_t>(rng() % 3);
    n *= d.back();
  }
  return d;
}

/// Some axes made 1, leading ones perhaps left out: what broadcasts to `d`.
inline Dims broadcastable(std::mt19937& rng, Dims d) {
  for (int64_t& x : d)
    if (rng() % 2) x = 1;
  d.erase(d.begin(), d.begin() + static_cast<long>(rng() % (d.size() + 1)));
  return d;
}

inline ValueId row_operator(RowGraph& r, ValueId x, const std::string& op, std::mt19937& rng) {
  const Dims d = r.dims(x);
  const auto rank = static_cast<int64_t>(d.size());
  const int64_t axis = static_cast<int64_t>(rng() % d.size()) - (rng() % 2 ? rank : 0);
  if (op.starts_with("Reduce")) {
    Dims axes;
    for (int64_t a = 0; a < rank; ++a)
      if (rng() % 2) axes.push_back(rng() % 2 ? a : a - rank);
    const std::map<std::string, Attr> attrs{{"keepdims", static_cast<int64_t>(rng() % 2)},
                                            {"noop_with_empty_axes", int64_t{0}}};
    if (axes.empty()) return r.node(op, {x}, attrs);
    return r.node(op, {x, r.axes(axes)}, attrs);
  }
  if (op == "LayerNormalization" || op == "RMSNormalization") {
    const Dims scale(d.begin() + (axis < 0 ? axis + rank : axis), d.end());
    std::vector<ValueId> in{x, r.input(random_of(r.type, scale, rng))};
    if (op[0] == 'L' && rng() % 2) in.push_back(r.input(random_of(r.type, scale, rng)));
    return r.node(op, in, {{"axis", axis}, {"epsilon", 1e-3}, {"stash_type", int64_t{1}}});
  }
  if (op == "InstanceNormalization" || op == "GroupNormalization") {
    std::vector<ValueId> in{x, r.input(random_of(r.type, {d[1]}, rng)),
                            r.input(random_of(r.type, {d[1]}, rng))};
    std::map<std::string, Attr> attrs{{"epsilon", 1e-3}};
    if (op[0] == 'G') {
      int64_t groups = 1 + static_cast<int64_t>(rng() % 4);
      while (d[1] % groups) --groups;
      attrs["num_groups"] = groups;
    }
    return r.node(op, in, attrs);
  }
  if (op == "MeanVarianceNormalization") {
    Dims axes{0};
    if (rank > 2) axes.push_back(rank - 1);
    return r.node(op, {x}, {{"axes", axes}});
  }
  if (op == "LpNormalization")
    return r.node(op, {x}, {{"axis", axis}, {"p", static_cast<int64_t>(1 + rng() % 2)}});
  return r.node(op, {x}, {{"axis", axis}});
}

inline const std::vector<std::string> kFloatRows = {"Softmax",
                                                    "LogSoftmax",
                                                    "LayerNormalization",
                                                    "RMSNormalization",
                                                    "MeanVarianceNormalization",
                                                    "InstanceNormalization",
                                                    "GroupNormalization",
                                                    "LpNormalization",
                                                    "ReduceL2",
                                                    "ReduceLogSumExp"};
inline const std::vector<std::string> kAnyRows = {"ReduceSum",      "ReduceMean", "ReduceMax",
                                                  "ReduceMin",      "ReduceProd", "ReduceL1",
                                                  "ReduceSumSquare"};

/// A random region of `op`, with neighbours that make no sums near zero and leave no type's range;
/// what is in front of it may be a result, too.
inline ValueId random_region(RowGraph& r, const std::string& op, std::mt19937& rng) {
  const DType type = r.type;
  const bool channels = op == "InstanceNormalization" || op == "GroupNormalization" || op[0] == 'M';
  const Dims d = random_dims(rng, channels ? 2 + rng() % 3 : 1 + rng() % 5);
  ValueId x = r.input(random_of(type, d, rng));
  // Products and norms of sums near zero would compare rounding errors.
  const bool tame = op != "ReduceProd" && op != "MeanVarianceNormalization";
  // A product can leave f16 in between, where only the interpreter stops.
  const bool bounded = op != "ReduceProd" || type != DType::f16;
  if (tame && rng() % 2)
    x = r.node("Add", {x, r.input(random_of(type, broadcastable(rng, d), rng))});
  // The interpreter rounds a narrow value here, the kernel only at its end: a small variance shows
  // it.
  const bool wide = type == DType::f32 || type == DType::f64;
  if (tame && wide && rng() % 3 == 0) x = r.node("Sigmoid", {x});
  if (r.graph.value(x).producer && rng() % 2) r.graph.add_output(x);
  ValueId y = row_operator(r, x, op, rng);
  if (rng() % 2) y = r.node("Abs", {y});
  if (bounded && rng() % 2)
    y = r.node("Mul", {y, r.input(random_of(type, broadcastable(rng, r.dims(y)), rng))});
  r.graph.add_output(y);
  return y;
}

}  // namespace ferrule::test
