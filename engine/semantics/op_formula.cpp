#include "engine/semantics/op_formula.h"

#include <algorithm>

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

}  // namespace ferrule
