// Which rewrites may run: those with a proof stamp, and those proved now. A stamp
// is a hash of what a proof depends on: the rule as written and as loaded, the formulas of the
// operators that it names (or whose class it names), ferrule's version, the prover's own. Shipped
// stamps are in proved.txt of a rules folder (`ferrule rules test --stamp` writes it); those of a
// user's rules are empty files in the cache folder, made when the rule is first loaded. What the
// engine makes of a rule (matching, inference, interpreter) is hashed when it is built: a proof in
// the cache folder is one by that engine; proved.txt says which engine proved all of its rules, and
// `rules test` says when it is not this one.
#pragma once
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/proof/proof.h"

namespace ferrule {

inline constexpr std::string_view kStampFile = "proved.txt";

/// 32 hexadecimal digits; changes whenever a proof of the rule would have to be repeated.
std::string proof_stamp(const Rule& rule, const Semantics& ops);

/// The lines "id stamp" of every folder's proved.txt. A file that is missing or no such file counts
/// as empty.
std::set<std::string> read_stamps(std::span<const std::string> dirs);
/// The hash of the engine's sources that a proof rests on.
std::string_view engine_semantics();
/// That of the engine that proved all rules of proved.txt in `dir`; "" if it does not say.
std::string proved_semantics(const std::string& dir);
/// Whether the stamps have the rule's.
bool stamped(const Rule& rule, const Semantics& ops, const std::set<std::string>& stamps);
/// A hash of the folder's files that its stamps depend on (all of YAML but targets/); "" if one
/// cannot be read.
std::string hash_of_files(const std::string& dir);
/// Whether proved.txt of `dir` says that all rules are proved as its files stand, with no others
/// beside them: then no stamp of a single rule need be worked out, and no test of a rule be read.
bool proved_as_they_stand(const std::string& dir);
/// What proved.txt of the folder `pack` says when `rules` are proved; "" if none of them is to be.
/// `files`: hash_of_files, where no rule is missing, else "".
std::string stamps_text(const RuleSet& rules, const Semantics& ops, std::string_view pack,
                        std::string_view semantics, std::string_view files);
/// Writes `dir`/proved.txt unless it says so already. `all`: this engine proved all of them.
/// `whole`: `rules` are all that there are, and all are in this folder. errors: file_not_written.
Status write_stamps(const RuleSet& rules, const Semantics& ops, const std::string& dir, bool all,
                    bool whole);

/// Proves what is enabled and has no stamp, each within `ctx.seconds`, and stamps what holds in
/// `ctx.cache`/proofs. `notes` gets the sound conditions that nothing needs, `unproved` what
/// `ctx.allowed` lets run without a proof. errors: rule_unproven with the smallest counter-example,
/// all of them at once.
Status require_proofs(const RuleSet& rules, const ProofContext& ctx,
                      std::vector<std::string>& notes, std::set<std::string>& unproved);

}  // namespace ferrule
