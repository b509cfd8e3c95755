#include "engine/rule/contract_names.h"

#include <algorithm>

namespace ferrule {

bool is_contract(std::string_view name) { return std::ranges::find(kContracts, name) != std::end(kContracts); }

std::vector<std::string> contract_names() { return {std::begin(kContracts), std::end(kContracts)}; }

}  // namespace ferrule
