// The kinds of kernels that rules name (`contract:`, `@group.NAME`, has_kernel('NAME', …)) and
// targets have facts of. What each takes is contracts.h's business; that both know the same ones, a
// test's.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ferrule {

bool is_contract(std::string_view name);
std::vector<std::string> contract_names();

}  // namespace ferrule
