// Kernel contracts: what kinds of kernels exist (conv, deconv, gemm, pool, pointwise, …), and
// whether a target has a kernel for a given group. What single nodes are: rules/contracts.
// Rules that make groups ask it of each, behind their own conditions; the planner of single nodes.
#pragma once
#include "engine/base/accept.h"
#include "engine/graph/graph.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"

namespace ferrule {

/// The contract that runs a single node on its own: "conv" for Conv, "pointwise" for formula
/// operators, "copy" for Transpose, "view" for Reshape, …, "interpret" for everything else.
std::string contract_of(const Node& n, const Semantics& ops);

/// Whether `contract` on `target` has a kernel for these nodes as one group. `anchor` none for
/// regions. `explain`: whether reasons get their texts; `whole`: the graph that they were taken
/// from, where `g` is a body.
Accept accepts(const Graph& g, std::span<const NodeId> nodes, NodeId anchor,
               std::string_view contract, const Target& target, const Semantics& ops,
               bool explain = true, const Graph* whole = nullptr);

/// How the elements of a slice lie in the tensor it is a part of.
enum class SliceForm : uint8_t {
  pixels,  ///< channels-last, some of the channels: pixels at one distance
  rows,    ///< plain, a part of the last axis: rows at one distance
  other,
};
inline constexpr int kResult = -1;
/// Whether the target's kernel for the node reads input `slot`, or writes its result (kResult),
/// where that is a slice of a larger tensor. `form` none: as the contract likes it best.
Accept accepts_strided(const Graph& g, const Node& n, int slot, std::optional<SliceForm> form,
                       const Target& target, const Semantics& ops);
/// The same of all who read the value.
Accept accepts_strided(const Graph& g, ValueId v, const Target& target, const Semantics& ops);

}  // namespace ferrule
