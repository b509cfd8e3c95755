// The keys of a map in a file of rules/: one table for its reader, "did you mean" and the JSON
// schema, so that they cannot disagree.
#pragma once
#include <span>
#include <string_view>
#include <vector>

namespace ferrule {

/// `schema` is the JSON schema of its value.
struct KeyDoc {
  std::string_view name, schema, doc;
};
inline constexpr std::string_view kText = R"({"type":"string"})";
inline constexpr std::string_view kTextMap =
    R"({"type":"object","additionalProperties":{"type":"string"}})";
inline constexpr std::string_view kTexts =
    R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]})";
inline constexpr std::string_view kBool = R"({"type":"boolean"})";
inline constexpr std::string_view kCount = R"({"type":"integer","minimum":0})";

inline std::vector<std::string_view> key_names(std::span<const KeyDoc> keys) {
  std::vector<std::string_view> names;
  for (const KeyDoc& k : keys) names.push_back(k.name);
  return names;
}

}  // namespace ferrule
