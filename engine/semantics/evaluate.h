// Formulas computed on tensors.
#pragma once
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Broadcasts and evaluates one pointwise node on tensors (the interpreter's path).
Result<Tensor> evaluate_node(const Semantics& ops, const Graph& g, const Node& n,
                             std::span<const Tensor* const> inputs, bool f64);

/// Constant arithmetic on large tensors: computed in f64 on operands as they are stored, each
/// element rounded once to the type it is kept in. No f64 copy of an operand or of the result
/// exists. `storage`: a float type. `less`: set if an element other than 0 is less than `least`
/// before it is rounded. errors: as evaluate_node.
Result<Tensor> evaluate_rounded(const Semantics& ops, const Node& n,
                                std::span<const Tensor* const> inputs, DType storage,
                                double least = 0, bool* less = nullptr);

}  // namespace ferrule
