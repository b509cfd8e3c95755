// One rule file; internal to engine/rule.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "engine/base/key_doc.h"
#include "engine/base/yaml.h"
#include "engine/rule/pattern_parse.h"
#include "engine/rule/rule.h"
#include "engine/rule/yaml_text.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

std::span<const KeyDoc> rule_keys();
std::span<const KeyDoc> condition_keys();
const KeyDoc& when_key();  ///< conditions of override files have this one, too
std::span<const KeyDoc> region_keys();
std::span<const KeyDoc> merge_keys();
std::span<const KeyDoc> case_keys();  ///< a test case, edit verbs included
bool is_edit_verb(std::string_view key);

/// `blocks.yaml` of a rules directory, or the `blocks:` of a rule.
void read_blocks(yaml::Reader& r, const yaml::Node& map, Blocks& out);
/// Reads the whole document; what is wrong is recorded in `r`. `contracts`: those that there are.
Rule read_rule(yaml::Reader& r, const yaml::Document& doc, const Blocks& shared,
               const Semantics& ops, const std::vector<std::string>& contracts);

/// One condition; what is wrong is recorded. `added`: by an override file (`when:` is of class
/// profit; `why` may lack).
std::optional<Condition> read_condition(yaml::Reader& r, const yaml::Node& n, bool added = false);
ExprPtr read_expression(yaml::Reader& r, const yaml::Node& n, std::string_view what);
/// A parameter from a scalar: unquoted numbers and truth values as such, everything else a string.
Param make_param(std::string name, const yaml::Node& scalar);
const Param* find_param(const Rule& rule,
                        std::string_view name);  ///< null: the rule has none of that name
/// The nearest of them, or all that there are.
inline std::string near_or_all(std::string_view word, const std::vector<std::string>& known) {
  std::string near = did_you_mean(word, known);
  return near.empty() ? fmt::format("there are {}", fmt::join(known, ", ")) : near;
}
/// "Relu", "com.microsoft::Gelu" -> domain and name.
std::pair<std::string, std::string> domain_and_name(std::string_view op);
/// What is wrong with an operator's name, and what to write: ONNX has none of that name, nor do
/// rules/ops. Nothing for those of other domains, which nobody else may know, and "group.conv".
std::optional<std::pair<std::string, std::string>> unknown_operator(const Semantics& ops,
                                                                    std::string_view op);
inline constexpr int64_t kMaxLimit = 100000;  ///< of max_ops, max_inputs and min_ops

// --- schema.cpp
/// JSON Schema of a map with these keys.
nlohmann::ordered_json object_schema(std::span<const KeyDoc> keys,
                                     std::vector<std::string> required);

// --- load_check.cpp: names
/// Names that conditions, messages and replacements of the rule may use, beyond words and facts.
BoundNames names_of(const Rule& rule);
/// Every expression, message, name template and replacement uses bound names of the right kind.
void check_names(yaml::Reader& r, const Rule& rule, const yaml::Node& root,
                 const std::vector<std::string>& contracts);
/// The same for what a contract asks: `list` holds its conditions.
void check_contract_names(yaml::Reader& r, const Contract& contract, const yaml::Node& list,
                          const std::vector<std::string>& contracts);
/// The same for one condition that is written elsewhere (`at`: its map); asked of whole matches.
void check_condition_names(yaml::Reader& r, const Rule& rule, const Condition& c,
                           const yaml::Node& at, const std::vector<std::string>& contracts);

}  // namespace ferrule
