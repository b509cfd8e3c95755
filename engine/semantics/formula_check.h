// The checks of an operator's formulas when they are loaded.
#pragma once
#include <vector>

#include "engine/semantics/formula.h"
#include "engine/semantics/op_formula.h"

namespace ferrule {

/// Unknown names, texts and lists where numbers are wanted, row functions outside row operators;
/// the `let` entry `let` (or the result, let = let.size()) of `op`.
std::vector<FormulaError> check_names(const OpFormula& op, size_t let);
/// Lowers the operator for every element type it allows and every set of present optional inputs.
/// errors: formula_invalid with excerpt.
Status check_types(const OpFormula& op);

}  // namespace ferrule
