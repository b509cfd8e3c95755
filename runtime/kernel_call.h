// A launch as a device backend sees it: operands with static dims, layouts and the slot of memory
// each lives in. Kernels are made from calls; they know neither the plan nor the memory planner.
// Shared by all backends.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "codegen/program/layers_to_launches.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/semantics/nodes_to_programs.h"
#include "runtime/memory_plan.h"

namespace ferrule {

/// An operand with static dims. slot -1: absent, or a constant.
struct Operand {
  DType dtype = DType::undefined;
  std::vector<int64_t> dims;  ///< logical (ONNX) order
  Layout layout = Layout::plain;
  int slot = -1;
  const Tensor* constant = nullptr;
  std::vector<int64_t> apart = {};  ///< strides in elements of a slice of something larger; empty:
                                    ///< it lies as its layout says
  bool dense() const { return apart.empty(); }
  int64_t plane =
      0;  ///< rows of larger plain images: elements from a plane to the next; 0: they lie densely
  int64_t offset =
      0;  ///< bytes into the slot's memory where it starts: a slice of something larger
  bool present() const { return dtype != DType::undefined; }
  int rank() const { return static_cast<int>(dims.size()); }
  /// Whether it lies as this layout says. Images of one channel or one pixel lie as both do,
  /// whichever they are planned in: kernels ask this, and not which one it is.
  bool lies(Layout l) const { return layout == l || same_memory(dims); }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
  int64_t bytes() const { return size_bytes(dtype, numel()); }
  std::vector<int64_t> strides() const {
    if (!dense()) return apart;
    std::vector<int64_t> s = strides_of(dims, layout);
    if (plane) s[1] = plane, s[0] = plane * dims[1];
    return s;
  }
  /// strides() of what lies plain.
  std::vector<int64_t> plain_strides() const {
    return dense() ? strides_of(dims, Layout::plain) : apart;
  }
  /// Channels-last images: elements from a pixel to the next; -1 where they do not lie at one
  /// distance.
  int64_t pixel() const;
  /// Plain matrices: elements from a row to the next, all rows of all matrices; -1 as above.
  int64_t row() const;
};

/// What a factory makes a kernel from.
struct KernelCall {
  std::string layer;  ///< for messages
  Work work = Work::other;
  const Node* node = nullptr;    ///< the anchor: operator and attributes
  const Graph* graph = nullptr;  ///< where `node` lives
  std::vector<Operand> inputs;   ///< the anchor's inputs by slot, then operands of the post-ops
  std::vector<Operand> outputs;
  std::span<const PostOp> post_ops;
  const LoweredRegion* region = nullptr;
  const RowRegion* rows = nullptr;
  const Roles* roles = nullptr;  ///< of a group whose contract has a file
  /// Control flow that runs step by step: its graphs. Behind the node's inputs are what they
  /// capture, as captures() lists it.
  const std::vector<NestedPlan>* nested = nullptr;
  bool dense() const {  ///< no operand is a slice of something larger
    for (const auto* list : {&inputs, &outputs})
      for (const Operand& o : *list)
        if (!o.dense()) return false;
    return true;
  }
  int sum_input = -1;  ///< this input is the memory of output 0 and is added to the result
  /// An input of the anchor; null if it is left out. (Behind the anchor's inputs lie the post-ops'
  /// operands.)
  const Operand* own_input(size_t slot) const {
    return slot < node->inputs.size() && slot < inputs.size() && inputs[slot].present()
               ? &inputs[slot]
               : nullptr;
  }
};

/// errors: size_unknown, naming the value whose size is not known.
Result<Operand> operand_of(const Plan& plan, const Lowered& lowered, const Storage& storage,
                           size_t layer, ValueId v);
/// `launch` of the plan's layer number `layer`.  errors: size_unknown.
Result<KernelCall> call_of(const Plan& plan, const Lowered& lowered, const Storage& storage,
                           size_t layer, const Launch& launch);
/// The layer's node as a whole (a group runs its body).  errors: size_unknown.
Result<KernelCall> node_call(const Plan& plan, const Lowered& lowered, const Storage& storage,
                             size_t layer);

/// Whether the post-op adds an operand of its own, so that the operand's memory may serve as the
/// result's.
bool adds_operand(const PostOp& op);

}  // namespace ferrule
