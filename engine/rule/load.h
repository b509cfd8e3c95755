// Rules from directories: strict YAML (base/yaml.h) -> Rule structs, all errors at once with file,
// line, column and caret. Later directories add rules or replace those of the same id (user packs).
#pragma once
#include <optional>
#include <span>

#include "engine/rule/rule.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

struct RuleSelection {
  std::vector<std::string> disable, enable;  ///< globs over ids, applied in this order
  /// What the globs say of a rule; nullopt: nothing.
  std::optional<bool> about(std::string_view id) const;
};

/// What the engine does without a rule and is still switched off like one: share.h.
inline constexpr std::string_view kSharing = "common_subexpressions";

/// Operators and contracts of the directories: later ones replace contracts of the same name.
/// errors: all problems at once: those of Semantics::load, yaml_*, pattern_syntax,
/// expression_invalid, rule_invalid.
Result<Semantics> load_semantics(std::span<const std::string> dirs,
                                 Semantics::BySchema by_schema = nullptr,
                                 const Limits& limits = {});
/// Whether the rules' tests are read with them: half of what is in the files, and only proofs and
/// `rules` commands need them.
enum class RuleTests : uint8_t { read, left_out };
/// Reads `pipeline.yaml` and every rule file of the directories; orders rules; applies the
/// selection. A glob that matches no rule is one of RuleSet::warnings; an id that is none an error.
/// errors: all problems at once (yaml_*, pattern_syntax, expression_invalid, rule_invalid,
/// rule_unknown).
Result<RuleSet> load_rules(std::span<const std::string> dirs, const Semantics& ops,
                           const RuleSelection& selection, const Limits& limits,
                           RuleTests tests = RuleTests::read);
/// One rule from text (tests, `rules check FILE`).
Result<Rule> load_rule_text(std::string_view text, std::string file, const Semantics& ops,
                            const Limits& limits);
/// Prints the rule as YAML; load(print(rule)) equals rule.
std::string print_rule(const Rule& r);
/// The JSON Schema of rule files, generated from the loader's own tables.
std::string rule_schema();
/// Static checks over a whole set beyond loading: unreachable rules, overlaps, unused names, cycles
/// of before/after, rewrites that do not decrease, operators that nothing describes. Each finding
/// is one line; `errors` those that must fail.
struct RuleNote {
  const Rule* rule = nullptr;  ///< null: about a contract, which the text names
  std::string text;
};
struct CheckReport {
  std::vector<Error> errors;
  std::vector<RuleNote> notes;
};
CheckReport check_rules(const RuleSet& set, const Semantics& ops);

}  // namespace ferrule
