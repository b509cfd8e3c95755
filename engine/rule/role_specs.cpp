#include "engine/rule/role_specs.h"

#include <algorithm>

namespace ferrule {
namespace {

std::string_view trimmed(std::string_view s) {
  while (s.starts_with(' ')) s.remove_prefix(1);
  while (s.ends_with(' ')) s.remove_suffix(1);
  return s;
}

}  // namespace

std::optional<std::vector<std::string>> axis_names(std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']')) return std::nullopt;
  std::vector<std::string> out;
  for (std::string_view rest = text.substr(1, text.size() - 2); !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view name = trimmed(rest.substr(0, comma));
    const bool run = name.ends_with("...");
    if ((name.empty() || (run && !out.empty())) ||
        !std::ranges::all_of(name.substr(0, name.size() - (run ? 3 : 0)),
                             [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
      return std::nullopt;
    out.emplace_back(name);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return out;
}

void read_roles(yaml::Reader& r, const yaml::Node& map, Rule& rule) {
  if (!r.expect(map, yaml::Node::Kind::map, "roles")) return;
  const BoundNames bound = bound_names(rule.match);
  std::vector<std::string> values;
  for (const auto& [name, b] : bound)
    if (b.kind == Bound::Kind::value) values.push_back(name);
  for (const auto& [key, value] : map.entries) {
    if (!r.expect(value, yaml::Node::Kind::scalar, "what a role is")) continue;
    RoleSpec spec{key.text, {}, {}, {}, value.text};
    const size_t bracket = std::min(value.text.find('['), value.text.size());
    const std::string name(trimmed(std::string_view(value.text).substr(0, bracket)));
    auto it = bound.find(name);
    const bool tensor = it != bound.end() && it->second.kind == Bound::Kind::value;
    auto axes = axis_names(std::string_view(value.text).substr(bracket));
    if (tensor && (axes || bracket == value.text.size())) {
      spec.value = name;
      spec.axes = axes.value_or(std::vector<std::string>{});
    } else if (axes && !axes->empty() && axes->front().ends_with("...")) {
      r.error(value, fmt::format("\"{}\" is no value of the pattern", escape(name)),
              did_you_mean(name, values), Code::rule_invalid);
      continue;
    } else {
      const std::string text = r.quoted(value, "a role");
      auto e = parse_expression(text, place_of(r, value));
      if (!e) {
        add_error(r, std::move(e).error());
        continue;
      }
      spec.number = {std::move(*e), text};
    }
    rule.roles.push_back(std::move(spec));
  }
}

}  // namespace ferrule
