// Which rewrites may run: those with a proof stamp, and those proved now (design.md §4.5). A stamp is a hash
// of everything a proof depends on: the rule as written and as loaded, the formulas of the operators that it names (or
// whose class it names), ferrule's version, the prover's own.
// Shipped stamps are in proved.txt of a rules folder (`ferrule rules test --stamp` writes it); those of a
// user's rules are empty files in the cache folder, made when the rule is first loaded.
#pragma once
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/proof/proof.h"

namespace ferrule {

inline constexpr std::string_view kStampFile = "proved.txt";

/// 32 hexadecimal digits; changes whenever a proof of the rule would have to be repeated.
std::string proof_stamp(const Rule& rule, const OpTable& ops);

/// The lines "id stamp" of every folder's proved.txt. A file that is missing or no such file counts as empty.
std::set<std::string> read_stamps(std::span<const std::string> dirs);
/// Whether the stamps have the rule's.
bool stamped(const Rule& rule, const OpTable& ops, const std::set<std::string>& stamps);
/// What proved.txt of the folder `pack` says when all of its rewrites are proved; "" if it has none.
std::string stamps_text(const RuleSet& rules, const OpTable& ops, std::string_view pack);
/// Writes `dir`/proved.txt unless it says so already. errors: file_not_written.
Status write_stamps(const RuleSet& rules, const OpTable& ops, const std::string& dir);

/// Proves what is enabled and has no stamp, each within `ctx.seconds`, and stamps what holds in `ctx.cache`/proofs.
/// `notes` gets the sound conditions that nothing needs, `unproved` what `ctx.allowed` lets run without a proof.
/// errors: rule_unproven with the smallest counter-example, all of them at once.
Status require_proofs(const RuleSet& rules, const ProofContext& ctx, std::vector<std::string>& notes,
                      std::set<std::string>& unproved);

}  // namespace ferrule
