// Regions that move elements as well as compute: every result is cut into boxes in which each
// operand is read with constant strides, and what is computed in a box is one scalar program. The
// boxes of all results together are one kernel. Layouts and addresses come later: operands are
// addressed by index, axis by axis.
#pragma once
#include <span>

#include "engine/base/applicable.h"
#include "engine/graph/graph.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// More boxes than this are not worth one kernel.
inline constexpr size_t kMaxPieces = 64;
/// Reads and writes of one box.
inline constexpr size_t kMaxPieceOperands = 48;

/// As lower_region, for nodes some of which are movements (movement.h); all sizes must be known.
/// Not applicable (names the node and what stands in the way); errors: formula_invalid.
Applicable<LoweredRegion> lower_pieces(const Semantics& ops, const Graph& g,
                                       std::span<const NodeId> nodes,
                                       std::span<const ValueId> outputs);
bool any_movement(const Graph& g, std::span<const NodeId> nodes);

/// An operand of a piece in memory: elements from the operand's first one, and by axis of the
/// piece.
struct PieceStrides {
  int64_t offset = 0;
  std::vector<int64_t> strides;
  friend bool operator==(const PieceStrides&, const PieceStrides&) = default;
};
PieceStrides piece_strides(const PieceOperand& operand, std::span<const int64_t> operand_strides);

/// Whether `program` only hands its inputs on, the k-th output being an input of the same type: its
/// number, else -1.
int copied_input(const Program& program, size_t output);

/// One line a piece: dims, operands with offsets and steps, program number.
std::string pieces_text(const LoweredRegion& region);

}  // namespace ferrule
