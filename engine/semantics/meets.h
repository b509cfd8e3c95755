// How the inputs of a pointwise operator meet the first one in shape.
#pragma once
#include "engine/semantics/op_formula.h"

namespace ferrule {

/// Either is spread over the other; "k[x]": never x, the first, over k; "k[]": k has one element.
/// With one of the last two among its inputs an operator's result has the shape of the first.
enum class Meets : uint8_t { broadcast, one_way, single };

/// The input at `slot` of a node.
Meets meets_first(const OpFormula& f, size_t slot);
bool shaped_by_first(const OpFormula& f);

}  // namespace ferrule
