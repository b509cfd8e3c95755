// Operators as formulas: the table read from rules/ops/*.yaml. One entry is an operator on every backend,
// fusable everywhere. lower_node turns a node of such an operator into a scalar program; lower_region does
// it for a whole body of them. Entries with `row:` (reductions) have no scalar program of their own: row.h
// lowers them, alone or with their pointwise neighbours.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/result.h"
#include "engine/semantics/scalar.h"
#include "engine/graph/graph.h"

namespace ferrule {

struct FormulaExpr;  // formula.h: the parsed expression

struct OpFormula {
  std::string op, domain;
  std::vector<std::string> inputs;   ///< "x", "lo?" (optional), "xs..." (variadic, folded pairwise)
  std::map<std::string, Attr> attrs; ///< name -> default
  std::vector<std::string> required; ///< attributes without a default
  std::string out_type;              ///< "" = type of the first input; "bool"; "attr:to"; "in:1"
  std::vector<std::pair<std::string, std::shared_ptr<const FormulaExpr>>> let;
  std::shared_ptr<const FormulaExpr> expr;
  /// Which axes are a row: "axis" (that one), "from axis" (it and all behind), "axes" (attribute or input; then
  /// those that are meant where none are given, else all), "spatial" (from the third on), "groups" (those and
  /// the channels of a group: attribute num_groups); empty for pointwise operators.
  std::string row;
  std::vector<std::string> channel;  ///< inputs with one value a channel (axis 1 of the first input)
  std::vector<std::string> classes;  ///< "activation", "binary", "unary", "compare", "logic", "commutative", …
  std::vector<DType> types;          ///< element types of the first input the operator allows; empty = all numeric
  std::string source;
  std::string place;                 ///< file:line
  bool pointwise() const { return row.empty(); }
  /// Whether the input at `slot` of a node is read as data; the others (CastLike's second) only lend their
  /// type, are no operand of the program and take no part in broadcasting.
  bool reads(size_t slot) const;
  bool per_channel(size_t slot) const;
  std::vector<bool> data;            ///< per declared input, filled by the loader
};

class RegionPrograms;  // region_programs.h

class OpTable {
 public:
  /// Reads every *.yaml in `dir`/ops of each rules directory, later ones replacing entries of earlier ones.
  /// errors: yaml_*, formula_invalid with place, caret and hint; all problems at once.
  static Result<OpTable> load(std::span<const std::string> rule_dirs);
  const OpFormula* find(std::string_view domain, std::string_view op) const;
  const OpFormula* find(const Node& n) const { return find(n.domain, n.op); }
  bool pointwise(const Node& n) const {
    const OpFormula* f = find(n);
    return f && f->pointwise();
  }
  /// Members of an op class ("@activation" is class "activation"; "@pointwise" is every formula without row).
  bool in_class(const Node& n, std::string_view cls) const;
  std::vector<std::string> class_names() const;
  const std::map<std::string, OpFormula, std::less<>>& all() const { return *ops_; }  ///< key "domain::op" or "op"
  /// Regions of these operators that were lowered before; null: none are kept.
  RegionPrograms* programs() const { return programs_.get(); }

 private:
  using Map = std::map<std::string, OpFormula, std::less<>>;
  std::shared_ptr<const Map> ops_ = std::make_shared<const Map>();     ///< copies of the table share it
  std::unordered_multimap<std::string_view, const OpFormula*> by_op_;  ///< of ops_, for find(): asked for every node
  std::shared_ptr<RegionPrograms> programs_;
};

/// The node as a scalar program: one program input per present input (in order; absent optionals are
/// resolved, and inputs that are single-element constants become immediates when `immediates`), one output.
/// errors: formula_invalid / unsupported_type.
struct LoweredNode {
  Program program;
  std::vector<size_t> input_slots;  ///< program input k reads node input input_slots[k]
};
Result<LoweredNode> lower_node(const OpTable& ops, const Graph& g, const Node& n, bool immediates);

/// Where one program input or output of a piece lies: operand index = offset + sum over the piece's axes.
struct PieceOperand {
  uint32_t operand = 0;                      ///< into LoweredRegion::inputs or ::outputs
  std::vector<int64_t> offset;               ///< by axis of the operand
  std::vector<std::vector<int64_t>> steps;   ///< [axis of the piece][axis of the operand]
  friend bool operator==(const PieceOperand&, const PieceOperand&) = default;
};
/// A box of the results that one program computes with constant strides (engine/contract/pieces.h).
struct RegionPiece {
  std::vector<int64_t> dims;
  uint32_t program = 0;                      ///< into LoweredRegion::programs
  std::vector<PieceOperand> inputs, outputs; ///< one per input and output of the program
};

/// A graph of pointwise nodes (a group's body, or any list of nodes) as one program; with nodes among them
/// that move elements, as several pieces of the results, each with its program.
struct LoweredRegion {
  Program program;               ///< without pieces: one input a value of `inputs`, broadcast as ONNX does
  std::vector<ValueId> inputs;   ///< values of `g` read from outside
  std::vector<ValueId> outputs;  ///< values of `g` written
  bool pieced = false;           ///< `pieces` say what runs; `program` is the first of `programs`, if any
  std::vector<Program> programs;
  std::vector<RegionPiece> pieces;
};
/// `nodes`: in topological order; `outputs`: values of theirs that are needed outside.
Result<LoweredRegion> lower_region(const OpTable& ops, const Graph& g, std::span<const NodeId> nodes,
                                   std::span<const ValueId> outputs);

/// Broadcasts and evaluates one pointwise node on tensors (the interpreter's path).
Result<Tensor> evaluate_node(const OpTable& ops, const Graph& g, const Node& n,
                             std::span<const Tensor* const> inputs, bool f64);
/// Element type of the node's output.
Result<DType> formula_result_type(const OpFormula& f, const Node& n, std::span<const DType> inputs);

/// Broadcast shape and type of a pointwise node's output.  errors: bad_shape, formula_invalid.
Result<Type> infer_pointwise(const OpTable& ops, const Graph& g, const Node& n);
/// The same as graph/infer.h wants it; the table must outlive its use.
void install_pointwise_inference(const OpTable* ops);

}  // namespace ferrule
