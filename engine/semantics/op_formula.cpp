#include "engine/semantics/op_formula.h"

#include <algorithm>

#include "engine/semantics/meets.h"

namespace ferrule {

std::string_view input_name(std::string_view declared) {
  return declared.substr(0, declared.find_first_of("?.["));
}

bool OpFormula::reads(size_t slot) const {
  if (inputs.empty()) return false;
  size_t k = std::min(slot, inputs.size() - 1);
  return slot == k ? data[k] : is_variadic(inputs[k]);
}

bool OpFormula::per_channel(size_t slot) const {
  return slot < inputs.size() && contains(channel, input_name(inputs[slot]));
}

namespace {

Meets meets_by_mark(std::string_view declared) {
  const size_t at = declared.find('[');
  if (at == std::string_view::npos) return Meets::broadcast;
  return declared[at + 1] == ']' ? Meets::single : Meets::one_way;
}

}  // namespace

Meets meets_first(const OpFormula& f, size_t slot) {
  return slot < f.inputs.size() ? meets_by_mark(f.inputs[slot]) : Meets::broadcast;
}

bool shaped_by_first(const OpFormula& f) {
  return std::ranges::any_of(
      f.inputs, [](const std::string& in) { return meets_by_mark(in) != Meets::broadcast; });
}

}  // namespace ferrule
