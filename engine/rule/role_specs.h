// `roles:` of a rule: what the file says, before its contract is known.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/rule/rule.h"
#include "engine/rule/yaml_text.h"

namespace ferrule {

/// "[B..., Q, D]" as names, the run with its dots. nullopt: it is something else.
std::optional<std::vector<std::string>> axis_names(std::string_view text);
/// As written, checked against what the rule's pattern binds.
void read_roles(yaml::Reader& r, const yaml::Node& map, Rule& rule);

}  // namespace ferrule
