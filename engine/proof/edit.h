// Changes of a test graph: the closed edit verbs of rule tests, and the mutations that proofs try. Either
// gives a graph that is inferred anew, or an error where no such graph exists.
#pragma once
#include <random>

#include "engine/rule/bindings.h"
#include "engine/rule/rule.h"

namespace ferrule {

/// Applies edit verbs; names are the pattern's (through `bound`) or the graph's.
/// errors: rule_invalid (an unknown name, an argument that does not fit).
Status apply_edits(Graph& g, const std::vector<std::pair<std::string, std::string>>& edits, const Bindings& bound,
                   const std::string& place);

/// Forgets all inferred types and infers again. errors: bad_shape, … where the graph is invalid.
Status infer_again(Graph& g);

/// One step of a proof's search: what was changed, and the graph (not yet inferred again).
struct Mutation {
  std::string text;
  std::unique_ptr<Graph> graph;
};
/// All single mutations of `g`: operand orders, element types, sizes, ranks, constants, attributes, optional
/// operands, values in other slots. Deterministic.
std::vector<Mutation> mutations(const Graph& g, const std::vector<DType>& types);

/// A tensor for a graph input: small varied numbers, or where `special` also 0, -0, infinities, NaN, huge.
Tensor random_tensor(DType dtype, const std::vector<int64_t>& dims, std::mt19937& random, bool special);

}  // namespace ferrule
