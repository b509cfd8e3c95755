// Snapshots of what the cases of a user's rules give: the graph where a rule fires, what declines
// it where it does not. DIR/snapshots/ID.txt, a file a rule; a folder of rules without that folder
// has none. `ferrule rules test -U` writes them, a plain run compares.
#pragma once
#include <string>
#include <vector>

#include "engine/proof/proof.h"
#include "engine/rule/rule.h"

namespace ferrule::cli {

/// Where `dir` has snapshots.
bool has_snapshots(const std::string& dir);
/// What differs from the snapshot of `rule`, by case, as text for people; empty: nothing.
std::vector<std::string> snapshot_differences(const Rule& rule, const RuleTestReport& tests,
                                              const std::string& target);
/// Writes it. Returns whether it is another one than before. errors: file_not_written.
Result<bool> write_snapshot(const Rule& rule, const RuleTestReport& tests,
                            const std::string& target);
/// Snapshots in `dir` of rules that are not there any more.
std::vector<std::string> left_snapshots(const std::string& dir, const RuleSet& rules);

}  // namespace ferrule::cli
