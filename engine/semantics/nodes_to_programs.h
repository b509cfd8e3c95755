// Nodes of operators with formulas as scalar programs: one node, or a region of them.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "engine/base/applicable.h"
#include "engine/semantics/program_builder.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// The formula of a pointwise node. Not applicable; errors: formula_invalid (too many inputs).
Applicable<const OpFormula*> pointwise_formula(const Semantics& ops, const Node& n);

/// The node as a scalar program: one program input per present input (in order; absent optionals
/// are resolved, and inputs that are single-element constants become immediates when `immediates`),
/// one output. errors: formula_invalid / unsupported_type.
struct LoweredNode {
  Program program;
  std::vector<size_t> input_slots;  ///< program input k reads node input input_slots[k]
};
Applicable<LoweredNode> lower_node(const Semantics& ops, const Graph& g, const Node& n,
                                   bool immediates);
/// A program over all operands that the formula reads as data, but those that `constant` has one
/// element of.
Result<LoweredNode> lower_node(const OpFormula& f, const Node& n, std::span<const DType> types,
                               bool f64,
                               const std::function<const Tensor*(size_t slot)>& constant = nullptr);

/// Where one program input or output of a piece lies: operand index = offset + sum over the piece's
/// axes.
struct PieceOperand {
  uint32_t operand = 0;                     ///< into LoweredRegion::inputs or ::outputs
  std::vector<int64_t> offset;              ///< by axis of the operand
  std::vector<std::vector<int64_t>> steps;  ///< [axis of the piece][axis of the operand]
  friend bool operator==(const PieceOperand&, const PieceOperand&) = default;
};
/// A box of the results that one program computes with constant strides
/// (engine/contract/region_pieces.h).
struct RegionPiece {
  std::vector<int64_t> dims;
  uint32_t program = 0;                       ///< into LoweredRegion::programs
  std::vector<PieceOperand> inputs, outputs;  ///< one per input and output of the program
};

/// A graph of pointwise nodes (a group's body, or any list of nodes) as one program; with nodes
/// among them that move elements, as several pieces of the results, each with its program.
struct LoweredRegion {
  Program program;  ///< without pieces: one input a value of `inputs`, broadcast as ONNX does
  std::vector<ValueId> inputs;   ///< values of `g` read from outside
  std::vector<ValueId> outputs;  ///< values of `g` written
  bool pieced = false;  ///< `pieces` say what runs; `program` is the first of `programs`, if any
  std::vector<Program> programs;
  std::vector<RegionPiece> pieces;
};
/// `nodes`: in topological order; `outputs`: values of theirs that are needed outside.
Applicable<LoweredRegion> lower_region(const Semantics& ops, const Graph& g,
                                       std::span<const NodeId> nodes,
                                       std::span<const ValueId> outputs);

/// One pointwise node of `g` inside a program being built; `value` gives its operands'
/// instructions. The result stays in the compute type.  errors: formula_invalid, unsupported_type.
Applicable<uint32_t> lower_in_region(const Semantics& ops, const Graph& g, const Node& n,
                                     ProgramBuilder& out,
                                     const std::function<uint32_t(size_t slot, ValueId)>& value);

}  // namespace ferrule
