// Rows: regions of pointwise nodes around one or more row operators (Softmax, LayerNormalization,
// reductions) as scalar programs. A region is first one program in which every reduction is an
// operand of its own (the result of a fold over the row); split_rows then cuts it into stages, each
// an ordinary element program that runs over the row or once a row. Here is only meaning: which
// axes are walked how is decided where kernels are made (codegen/cpu/row_nest.h), so one region
// serves every shape of its rank.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/applicable.h"
#include "engine/semantics/fold.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Which axes of an operator's first input are one row.
struct RowAxes {
  std::vector<bool> reduced;  ///< per axis
  int64_t groups =
      0;  ///< not 0: axis 1 is [groups, size / groups] and its second half is in the row
  friend bool operator==(const RowAxes&, const RowAxes&) = default;
};
/// Not applicable (rank or axes unknown, no axes).  errors: those below.
Applicable<RowAxes> row_axes(const Semantics& ops, const Graph& g, const Node& n);
/// Of an operator whose first input has these dims; `constant`: the value of an input, if known.
/// errors: bad_shape, bad_attribute.
Applicable<RowAxes> row_axes(const OpFormula& f, const Node& n, const Shape& dims,
                             const std::function<const Tensor*(size_t slot)>& constant);

/// How a value of the graph lies over the row axes.
enum class RowSpread : uint8_t {
  row,       ///< aligned with the last axis, as ONNX broadcasts
  squeezed,  ///< without the reduced axes: keepdims=0
  channel,   ///< one axis, which is axis 1
};
struct RowOperand {
  ValueId value;
  RowSpread spread = RowSpread::row;
  bool uniform = false;  ///< the same for the whole row
};

struct RowRegion {
  Program program;                 ///< outputs: the region's, then what each fold folds
  std::vector<RowSource> sources;  ///< per program input: operand, fold or count
  std::vector<RowOperand> inputs, outputs;
  std::vector<Fold> folds;
  RowAxes axes;

  /// Whether a result may lie in the memory of an input, if they have the same shape: each of its
  /// elements is then written where it was last read. A vector that lies along the rows is not one
  /// a row; what is folded may be written before the end (split_rows).
  bool writes_over(size_t input, size_t output) const;
};
/// `nodes`: in topological order, at least one row operator among them; `outputs`: values of theirs
/// needed outside. Not applicable with the reason why these nodes are not one region of rows;
/// errors: formula_invalid.
Applicable<RowRegion> lower_rows(const Semantics& ops, const Graph& g,
                                 std::span<const NodeId> nodes, std::span<const ValueId> outputs);

/// A program over all elements of the rows, or over one element a row.
struct RowStage {
  bool elements = false;
  Program program;
  std::vector<RowSource> inputs, outputs;  ///< outputs: result, fold, row or tile
  std::vector<Fold> folds;                 ///< per output; none: stored
};
struct StagedRows {
  std::vector<RowStage> stages;  ///< in order
  std::vector<Fold> folds;
  std::vector<DType> fold_types, rows, tiles;
};
/// `tiles`: values that cost much to compute twice may be kept for the whole row (`e` of a
/// softmax).
StagedRows split_rows(const RowRegion& region, bool tiles);

/// Stage by stage: what it gives, then its program.
std::string to_text(const StagedRows& rows);

}  // namespace ferrule
