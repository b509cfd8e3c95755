// How the inputs of a pointwise operator meet the first one in shape.
#pragma once
#include <algorithm>

#include "engine/semantics/op_formula.h"

namespace ferrule {

/// Either is spread over the other; "k[x]": never x, the first, over k; "k[]": k has one element.
/// With one of the last two among its inputs an operator's result has the shape of the first.
enum class Meets : uint8_t { broadcast, one_way, single };

/// Of an input as an operator declares it.
inline Meets meets_by_mark(std::string_view declared) {
  const size_t at = declared.find('[');
  if (at == std::string_view::npos) return Meets::broadcast;
  return declared[at + 1] == ']' ? Meets::single : Meets::one_way;
}

/// The input at `slot` of a node.
inline Meets meets_first(const OpFormula& f, size_t slot) {
  return slot < f.inputs.size() ? meets_by_mark(f.inputs[slot]) : Meets::broadcast;
}
inline bool shaped_by_first(const OpFormula& f) {
  return std::ranges::any_of(
      f.inputs, [](const std::string& in) { return meets_by_mark(in) != Meets::broadcast; });
}

}  // namespace ferrule
