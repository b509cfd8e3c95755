// Small plans made by hand: values with sizes, and one launch a layer.
#pragma once
#include <doctest/doctest.h>

#include "runtime/memory_plan.h"

namespace ferrule::test {

struct PlanBuilder {
  Plan plan;
  Lowered lowered;

  ValueId input(std::string name, std::vector<int64_t> dims) {
    return plan.graph.add_input(std::move(name), type(dims));
  }
  ValueId constant(std::string name, std::vector<int64_t> dims) {
    return plan.graph.add_constant(std::move(name),
                                   Tensor::allocate(DType::f32, std::move(dims)).first);
  }
  /// A layer of one launch with one output of these dims.
  ValueId layer(std::string name, Launch::Kind kind, std::vector<ValueId> inputs,
                std::vector<int64_t> dims) {
    ValueId v = plan.graph.add_value(name, type(dims));
    Node n;
    n.op = kind == Launch::Kind::view ? "Reshape" : "Relu";
    n.name = name;
    n.inputs = inputs;
    n.outputs = {v};
    Layer l;
    l.name = name;
    l.node = plan.graph.add_node(std::move(n));
    plan.layers.push_back(l);
    Launch launch;
    launch.kind = kind;
    launch.called = "Relu";
    launch.graph = &plan.graph;
    launch.node = l.node;
    launch.inputs = std::move(inputs);
    launch.outputs = {v};
    lowered.layers.push_back({{launch}, {}});
    return v;
  }
  void finish() { plan.layouts.assign(plan.graph.value_slots(), Layout::plain); }
  static Type type(const std::vector<int64_t>& dims) {
    return {DType::f32, Shape(dims.begin(), dims.end())};
  }
};

inline std::vector<std::pair<int, int>> never(size_t, const Launch&) { return {}; }
inline std::vector<std::pair<int, int>> always(size_t, const Launch& l) {
  std::vector<std::pair<int, int>> pairs;
  for (int k = 0; k < static_cast<int>(l.inputs.size()); ++k) pairs.emplace_back(k, 0);
  return pairs;
}

}  // namespace ferrule::test
