// Plan -> launches: for every layer the kernels that will run, in order. A library call with the
// part of the tail that its epilogue takes, then a generated kernel for the rest; a generated
// kernel for a pointwise region; a copy; a view (no kernel). It opens no device library: explain's
// `kernels` is counted of it (codegen/annotate_plan.h), and the backends launch exactly this.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "codegen/program/work.h"
#include "engine/contract/epilogue.h"
#include "engine/contract/roles.h"
#include "engine/plan/plan.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/row.h"
#include "engine/target/target.h"

namespace ferrule {

struct Launch {
  enum class Kind : uint8_t {
    library,    ///< a library primitive with post_ops
    generated,  ///< a generated kernel: pointwise (`region`) or over rows (`rows`)
    copy,       ///< elements moved: Transpose, Slice, Concat, Pad, Expand, Reorder
    interpret,  ///< no kernel: the interpreter runs the node (slow, and explained as such)
    view,       ///< the output is the input's memory under other dims: no kernel
  } kind = Kind::interpret;
  Work work = Work::other;
  std::string called;  ///< for people: the anchor's operator, or the contract's name
  const Graph* graph =
      nullptr;  ///< where `node` and the value ids below live: the plan's graph or a group's body
  const Roles* roles = nullptr;  ///< of the layer's group, by its inputs and outputs
  std::map<std::string, Program, std::less<>>
      formulas;  ///< those of the roles, over f32 (codegen/program/role_formula.h)
  NodeId node;   ///< the anchor; none for generated regions without one
  std::vector<PostOp>
      post_ops;  ///< library: operand k of a binary / sum is inputs[post_op.operand]
  std::optional<LoweredRegion>
      region;  ///< generated, pointwise; copies, too, where they are a few pieces
  std::shared_ptr<const RowRegion> rows;  ///< generated, rows
  /// Values of the *plan's* graph that the launch reads and writes; a value between two launches of
  /// one layer is in LoweredLayer::temporaries and numbered from kTemporary.
  std::vector<ValueId> inputs, outputs;
  int passes = 1;  ///< kernels that it is, one after the other: few very long rows on GPUs
  std::string
      deviation;  ///< how the library's epilogue or kernel differs from the formula; empty: not
  bool hides_nan =
      false;  ///< its epilogue changes NaN, and the backend must notice (`Lowered::notices_nan`)
  std::shared_ptr<const Launch> tail;  ///< library: what post_ops compute as a kernel of its own,
                                       ///< on the result, for where the library refuses them
  std::string tail_apart;  ///< library: why its tail is a generated kernel; empty: there is none,
                           ///< or it is inside
};

/// A value that only lives between two launches of one layer.
struct Temporary {
  Type type;
  Layout layout = Layout::plain;
};

struct LoweredLayer {
  std::vector<Launch> launches;
  std::vector<Temporary> temporaries;
  int kernels() const;  ///< of launches that are not views
};

/// Temporaries are addressed as ValueId{kTemporary + k} in their layer's launches.
inline constexpr uint32_t kTemporary = 0x80000000u;

/// What library epilogues may do that their formulas do not. Without any: rounding; and a step that
/// changes NaN where the backend notices that it did (on CPUs), or where a kernel of its own would
/// cost more than a few per cent (on GPUs).
struct LowerOptions {
  bool strict = false;     ///< nothing
  bool fast_math = false;  ///< everything, and nobody notices
  bool keep_nan = false;   ///< rounding alone: the plan for a run in which NaN was noticed
};

struct Lowered {
  std::vector<LoweredLayer> layers;  ///< by layer of the plan
  bool strict =
      false;  ///< LowerOptions::strict: backends choose no kernel of another formula either
  /// Whether some launch changes NaN, so that a run in which one did must be done again as
  /// `keep_nan` lowers the plan.
  bool notices_nan() const;
};

/// Each launch as one pass: codegen/annotate_plan.h knows more of GPUs.  errors: codegen_failed,
/// formula_invalid.
Result<Lowered> lower_layers(const Plan& plan, const Semantics& ops, const Target& target,
                             const LowerOptions& options);

}  // namespace ferrule
