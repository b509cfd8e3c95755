// Override files: rules off or on, added conditions and parameters, by rule, node name, element
// type and device, without touching a rules folder. Entries become scoped conditions and parameters
// of copies of the rules (rule.h), so that the matcher knows nothing of files, and explain shows
// their effects like any condition's. A whole match is in an entry's scope if one of its nodes is:
// by its name or by the ONNX names it stands for.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/base/yaml.h"
#include "engine/rule/load.h"
#include "engine/target/target.h"

namespace ferrule {

/// One entry as written. Lists that are empty mean everything.
struct Override {
  std::string rule;                  ///< glob over ids
  bool contract = false;             ///< or over contracts: all rules that make groups of them
  std::vector<std::string> nodes;    ///< globs over node names
  std::vector<DType> types;          ///< of the match's first result
  std::vector<std::string> devices;  ///< globs over devices and targets: "gpu", "sm_*"
  std::optional<bool> on;
  struct Setting {
    std::string name;
    yaml::Node key, value;
  };
  std::vector<Setting> set;  ///< parameters and their new values
  std::vector<std::pair<Condition, yaml::Node>>
      where;  ///< added conditions, each with its map in the file
  std::string reason;
  std::shared_ptr<const yaml::Source> source;
  yaml::Node key;  ///< the rule's glob in the file, for errors

  bool means(const Rule& r) const;
  std::string scope_text() const;  ///< " for /layer1/*, f16", or ""
  std::string place() const;       ///< "override.yaml:4"
  bool concerns(const Target& t) const;
  bool scoped() const { return !nodes.empty() || !types.empty(); }
  bool covers(const Graph& g, const Match& m) const;
};

/// The entries of all files, in order. What is wrong goes to `errors` (yaml_*, expression_invalid,
/// rule_invalid), so that apply_overrides can report it together with what only the rules show.
std::vector<Override> load_overrides(std::span<const std::string> files, const Limits& limits,
                                     std::vector<Error>& errors);

/// Applies the entries that concern the target; a later entry wins over an earlier one, `selection`
/// over all of them. What matches nothing and may be meant so is added to `rules.warnings`. errors:
/// `found` and rule_unknown, rule_invalid, expression_invalid, all at once.
Status apply_overrides(RuleSet& rules, std::span<const Override> entries, const Target& target,
                       const RuleSelection& selection, std::vector<Error> found = {});
/// What proofs are of: the rules without added conditions and settings that can only choose among
/// what is right, which are thresholds (parameters that profit conditions alone read) and narrower
/// limits.
RuleSet as_proved(const RuleSet& rules);

/// What an entry does, for explain: "conv_pool off for /layer1/*: accuracy (override.yaml:4)".
struct OverrideNote {
  std::string text;
  std::string condition;  ///< id of the condition that it became; empty: none
  std::string from;       ///< Condition::from
};
std::vector<OverrideNote> override_notes(const RuleSet& rules, std::span<const Override> entries,
                                         const Target& target);
/// Node globs of entries in force that no node of the model matches.
std::vector<std::string> unused_scopes(const Graph& g, std::span<const Override> entries,
                                       const Target& target);
/// The JSON Schema of override files, from the reader's own tables of keys.
std::string override_schema();

}  // namespace ferrule
