// The Plan: what runs, in which order, in which memory layout, with every layer named as TensorRT's
// users know it. It holds the fused graph; layers refer to its nodes. Made from values only (graph,
// target): it never measures and never opens a device library. codegen/lower then says how many
// kernels each layer is.
#pragma once
#include <map>
#include <optional>

#include "engine/contract/accepts.h"
#include "engine/graph/graph.h"
#include "engine/plan/layout.h"
#include "engine/plan/nested.h"
#include "engine/plan/slices.h"

namespace ferrule {

struct Layer {
  std::string name;  ///< "Conv_3 + Relu_4", "fusedPointwiseNode(a, b)", "reorder(x)"
  std::string contract;
  NodeId node;                     ///< of Plan::graph; none for reorders
  std::vector<std::string> nodes;  ///< ONNX node names; empty for layers the planner added
  std::string rule;                ///< id of the rule, empty if none
  ValueId reorder_from;            ///< reorder layers: the value …
  ValueId reorder_to;              ///< … and its copy in the other layout
  int kernels = -1;                ///< launches; set by codegen/lower. 0: a view or no work
  std::string numerics;  ///< "library" where a library epilogue deviates from the formula,
                         ///< "executed in float" for integers
};

struct Plan;
/// A nested graph (nested.h), planned.
struct NestedPlan {
  std::string attribute;
  std::shared_ptr<Plan> plan;
  std::vector<ValueId> captured;  ///< what its last inputs are outside
};

struct Plan {
  Graph graph;                ///< reorders are values of their own in it, produced by Reorder nodes
  std::vector<Layer> layers;  ///< execution order
  std::vector<Layout> layouts;  ///< by ValueId::index
  std::map<ValueId, SliceOf>
      slices;  ///< of values that place rules put into others; each in the layout of its whole
  std::map<NodeId, std::vector<NestedPlan>> nested;  ///< of control flow that runs step by step
  std::string target;
  Layout layout(ValueId v) const { return layouts[v.index]; }
};

/// errors: unsupported_operator (nothing can run a node), bad_shape when a shape is needed and
/// unknown.
Result<Plan> make_plan(Graph fused, const Target& target, const Semantics& ops,
                       NestedGraphs nested = {});
/// Whether every layer has a kernel or is known to the interpreter, nested graphs included.
/// errors: unsupported_operator, each operator once, with its first node, in `more`.
Status runnable(const Plan& plan, const Semantics& ops);
/// nullopt: a size on the way is not known.
std::optional<StridedView> strided_view(const Plan& plan, ValueId v);

}  // namespace ferrule
