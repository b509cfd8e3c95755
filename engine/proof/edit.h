// Changes of a test graph: the closed edit verbs of rule tests, and the mutations that proofs try.
// Either gives a graph that is inferred anew, or an error where no such graph exists.
#pragma once
#include <functional>
#include <set>

#include "engine/rule/bindings.h"
#include "engine/rule/rule.h"

namespace ferrule {

/// Applies edit verbs; names are the pattern's (through `bound`) or the graph's.
/// errors: rule_invalid (an unknown name, an argument that does not fit).
Status apply_edits(const Semantics& ops, Graph& g,
                   const std::vector<std::pair<std::string, std::string>>& edits,
                   const Bindings& bound, const std::string& place);

/// Forgets all inferred types and infers again. errors: bad_shape, … where the graph is invalid.
Status infer_again(const Semantics& ops, Graph& g);

/// One step of a proof's search: what is changed, and how. The graph is then inferred again.
struct Mutation {
  std::string text;
  std::function<void(Graph&)> apply;
  bool of_operator =
      false;  ///< changes an operator, its attributes or number of operands; else values and sizes
  bool last = false;      ///< takes nodes away: no other is made behind it
  NodeId exchanged = {};  ///< the node that becomes another operator
};
/// What a rule's pattern says about the graphs to try.
struct MutationScope {
  std::vector<DType> types;                     ///< element types that the rule names
  std::vector<std::set<std::string>> siblings;  ///< operators that the pattern takes in one place
  /// Operators that the pattern takes where they need not be: of one operand, and of two.
  std::set<std::string> optional_unary, optional_binary;
  bool near = false;  ///< it takes constants near a number: small changes mean nothing
};
/// All single mutations of `g`: operators, further ones between two, operand orders, element types,
/// sizes, ranks, constants, attributes, optional and further operands, values in other slots.
/// Deterministic; `g` and `scope` must outlive the result.
std::vector<Mutation> mutations(const Graph& g, const MutationScope& scope);

/// Every tensor and input of type `from` becomes `to`.
void retype(Graph& g, DType from, DType to);

/// A size, wherever it stands in inputs and constants, becomes another; -1: every size that is
/// open.
void resize(Graph& g, int64_t from, int64_t to);

/// A tensor that holds the numbers again and again.
Tensor filled(DType t, const std::vector<int64_t>& dims, const std::vector<double>& values);

}  // namespace ferrule
