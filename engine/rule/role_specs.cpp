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
    if ((name.empty() || (run && !out.empty() && comma < rest.size())) ||
        !std::ranges::all_of(name.substr(0, name.size() - (run ? 3 : 0)),
                             [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
      return std::nullopt;
    out.emplace_back(name);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return out;
}

namespace {

class SpecReader {
 public:
  SpecReader(yaml::Reader& r, const Rule& rule) : r_(r) {
    for (const auto& [name, b] : bound_names(rule.match))
      if (b.kind == Bound::Kind::value) values_.push_back(name);
  }

  std::optional<RoleSpec> read(const yaml::Node& key, const yaml::Node& value) {
    RoleSpec spec{key.text, {}, {}, {}, {}, value.text};
    if (const size_t arrow = value.text.find("->"); arrow != value.text.npos) {
      spec.from = trimmed(std::string_view(value.text).substr(0, arrow));
      spec.to = trimmed(std::string_view(value.text).substr(arrow + 2));
      for (const std::string& name : {spec.from, spec.to})
        if (!known(name)) return unknown(value, name);
      return spec;
    }
    for (std::string_view rest = value.text; !rest.empty();) {
      const size_t at = std::min(rest.find("??"), rest.size());
      auto v = tensor(trimmed(rest.substr(0, at)));
      if (!v && spec.values.empty()) break;
      if (!v) return unknown(value, std::string(trimmed(rest.substr(0, at))));
      spec.values.push_back(std::move(*v));
      rest.remove_prefix(std::min(at + 2, rest.size()));
    }
    if (!spec.values.empty()) return spec;
    const size_t bracket = std::min(value.text.find('['), value.text.size());
    if (auto axes = axis_names(std::string_view(value.text).substr(bracket));
        axes && !axes->empty() && axes->front().ends_with("..."))
      return unknown(value, value.text.substr(0, bracket));
    const std::string text = r_.quoted(value, "a role");
    auto e = parse_expression(text, place_of(r_, value));
    if (!e) return add_error(r_, std::move(e).error()), std::nullopt;
    spec.number = {std::move(*e), text};
    return spec;
  }

 private:
  bool known(std::string_view name) const { return std::ranges::count(values_, name) > 0; }

  std::optional<RoleSpec> unknown(const yaml::Node& at, const std::string& name) {
    r_.invalid(at, fmt::format("\"{}\" is no value of the pattern", escape(name)),
               did_you_mean(name, values_));
    return std::nullopt;
  }

  /// "q2[..., D, Q]" or "q2".
  std::optional<RoleValue> tensor(std::string_view text) const {
    const size_t bracket = std::min(text.find('['), text.size());
    const std::string_view name = trimmed(text.substr(0, bracket));
    if (!known(name)) return std::nullopt;
    if (bracket == text.size()) return RoleValue{std::string(name), {}};
    auto axes = axis_names(text.substr(bracket));
    return axes ? std::optional(RoleValue{std::string(name), std::move(*axes)}) : std::nullopt;
  }

  yaml::Reader& r_;
  std::vector<std::string> values_;
};

}  // namespace

void read_roles(yaml::Reader& r, const yaml::Node& map, Rule& rule) {
  if (!r.expect(map, yaml::Node::Kind::map, "roles")) return;
  SpecReader reader(r, rule);
  for (const auto& [key, value] : map.entries)
    if (r.expect(value, yaml::Node::Kind::scalar, "what a role is"))
      if (auto spec = reader.read(key, value)) rule.roles.push_back(std::move(*spec));
}

}  // namespace ferrule
