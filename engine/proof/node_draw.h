// One node of a drawn graph: its attributes and the types of its free operands are proposed until
// inference takes them.
#pragma once
#include "engine/proof/propose.h"
#include "engine/rule/pattern.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// An operand: a value that is there, none (left out), or something from outside that is still to
/// be made.
struct OperandDraw {
  ValueId value;
  const PatternExpr* name = nullptr;    ///< the reference it will be
  const PatternExpr* number = nullptr;  ///< the number it will hold
  bool free() const { return name || number; }
  static OperandDraw of_name(const PatternExpr& e) { return {{}, &e, nullptr}; }
  static OperandDraw of_number(const PatternExpr& e) { return {{}, nullptr, &e}; }
};

/// Of one tensor that is drawn, at most; those with one long axis alone may have kMostElements.
inline constexpr int64_t kElements = 2200;
/// Whether a tensor is so small, or `times` as large.
bool has_room(const Shape& s, int64_t times = 1);
/// Of a tensor; a size that is open counts 7.
int64_t elements(const Shape& s);
/// Whether an attribute says how the operator computes, not which operands fit it.
bool is_mode(const Node& n, const AttributeSchema& a);
/// Whether the operand holds lengths of sequences.
bool sequence_lengths(const Node& n, size_t slot);
/// Whether all operands have element types that their operators' schemas allow, and allow together.
/// Inference asks less.
bool well_typed(const Graph& g);

class NodeDraw {
 public:
  using Bound = std::map<std::string, Attr, std::less<>>;
  using Sizes = std::map<std::string, Dim, std::less<>>;
  NodeDraw(Graph& g, const World& world, const Semantics& ops, Proposer& propose, Draw& draw)
      : g_(g), world_(world), ops_(ops), propose_(propose), draw_(draw) {}

  /// Adds the node with `count` results; operands get their values. nullopt: nothing that was tried
  /// is valid.
  std::optional<std::vector<ValueId>> add(Node n, std::vector<OperandDraw>& in, size_t count,
                                          const PatternExpr& e, Bound& attrs, Sizes& sizes);
  /// An operand that no node reads yet.
  OperandDraw alone(OperandDraw o);
  /// A node of this operator over new inputs whose result has the type; `attrs`: those of the last
  /// one, taken again.
  ValueId producer(const std::string& op, Type type, std::optional<Attrs>& attrs);
  /// The result of a node of this operator that reads the value in one of its slots, or in all, and
  /// new values in the others; none: nothing that was tried is valid.
  ValueId reader(const std::string& op, ValueId of);

 private:
  bool types(const Node& n, std::vector<OperandDraw>& in, const std::vector<bool>& fresh,
             Sizes& sizes);
  Attrs modes(const Node& n, const PatternExpr& e);
  bool attributes(Node& n, const PatternExpr& e, Bound& attrs, int rank, int attempt);
  std::optional<int64_t> groups(const Node& n) const;
  std::vector<DType> allowed(const Node& n, size_t slot) const;
  std::string variable(const Node& n, size_t slot) const;
  DType element(const std::vector<DType>& allowed);
  void give(OperandDraw& o, Type type, std::optional<Tensor> contents);
  Shape pattern_shape(const std::vector<DimPattern>& p, Sizes& sizes);
  /// Adds the node if inference takes it as it is.
  std::optional<std::vector<ValueId>> finish(Node& n);

  Graph& g_;
  const World& world_;
  const Semantics& ops_;
  Proposer& propose_;
  Draw& draw_;
  std::vector<std::pair<Proposer::Place, int>> ways_;  ///< of the operands proposed last
};

}  // namespace ferrule
