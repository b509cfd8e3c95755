// Formulas computed on tensors.
#pragma once
#include <functional>

#include "engine/semantics/scalar.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Broadcasts and evaluates one pointwise node on tensors (the interpreter's path). `change`: is
/// applied to its program first.
Result<Tensor> evaluate_node(const Semantics& ops, const Node& n,
                             std::span<const Tensor* const> inputs, bool f64,
                             const std::function<void(Program&)>& change = {});

/// How results are stored, computed in f64 by threads.
struct Rounding {
  DType storage{};       ///< a float type
  double least = 0;      ///< an element other than 0 that is less than this before it is rounded …
  bool* less = nullptr;  ///< … sets this
};
/// Constant arithmetic on large tensors: computed in f64 on operands as they are stored, each
/// element rounded once to the type it is kept in. No f64 copy of an operand or of the result
/// exists. errors: as evaluate_node.
Result<Tensor> evaluate_rounded(const Semantics& ops, const Node& n,
                                std::span<const Tensor* const> inputs, const Rounding& rounding);

/// One output of a program over `dims`, to which its inputs are broadcast; in the output's type, or
/// as `rounding` says.
Tensor evaluate_program(const Program& p, size_t output, const std::vector<int64_t>& dims,
                        std::span<const Tensor* const> inputs, const Rounding* rounding = nullptr);

}  // namespace ferrule
