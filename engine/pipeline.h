// The stages in order: the first file to read. model -> import -> normalise -> rewrite -> group ->
// plan.
#pragma once
#include "engine/base/cache_folder.h"
#include "engine/graph/journal.h"
#include "engine/match/match_rule.h"
#include "engine/plan/plan.h"
#include "engine/rule/load.h"
#include "engine/rule/override.h"
#include "engine/rule/selection.h"

namespace ferrule {

class KnownFailures;  // known_failures.h

struct EngineOptions {
  std::vector<std::string> rule_dirs;  ///< first: the shipped rules
  RuleSelection selection;
  std::string target;               ///< empty or "host": this processor's
  std::string profile = "ferrule";  ///< whose limits hold (target.h)
  Limits limits;
  bool fold = true;
  bool overridable = false;
  bool rule_tests = true;  ///< false: who asks does without the rules' own (Rule::tests)
  bool near_misses = false;
  bool snapshots = false;  ///< keep the graph before each phase (`why`)
  std::vector<std::string> ignore_profit;
  std::vector<std::string> overrides;  ///< override files (override.h), in order
  std::string apply;  ///< a list of instances (rule/selection.h): no others are made; empty: all
  std::vector<std::string>
      allow_unproven;  ///< globs: rewrites that run without a proof stamp and without a proof
  std::string cache =
      user_cache_folder();  ///< the folder for proofs and compiled kernels; empty: none
  std::map<std::string, std::vector<int64_t>>
      shapes;  ///< concrete input shapes; empty entries stay symbolic
};

/// Rules, operators and target, loaded once and shared.
struct Knowledge {
  Semantics ops;
  RuleSet rules;
  Target target;
  std::vector<std::string> notes;     ///< what proving rules of the user's found
  std::set<std::string> unproved;     ///< rewrites that EngineOptions::allow_unproven lets run
  std::vector<std::string> warnings;  ///< what was asked for and concerns no rule
  std::vector<Override> overrides;
  std::optional<Instances> instances;  ///< EngineOptions::apply
};
/// errors: those of load_rules, load_target, use_profile, override.h, selection.h; rule_unproven.
Result<std::shared_ptr<const Knowledge>> load_knowledge(const EngineOptions& options);

/// The graph as it was before a phase, and how many steps the journal had; unchanged graphs are
/// shared.
struct Snapshot {
  std::shared_ptr<const Graph> graph;
  size_t steps = 0;
};

/// The fused graph and all that was recorded on the way.
struct Fused {
  Graph graph;
  NestedGraphs nested;  ///< of control flow that the target runs step by step, fused as well
  Journal journal;
  std::vector<Rejection> near_misses;
  std::vector<Snapshot> snapshots;    ///< options.snapshots: before each phase, and after the last
  std::vector<std::string> notes;     ///< "x is 1x3x?x?: …", initializers that are also inputs, …
  std::vector<std::string> warnings;  ///< what was asked for and came to nothing
  std::shared_ptr<const KnownFailures>
      known_failures;  ///< of a canonical graph whose sizes are open
};
/// What holds for every input size, done once: folding and the phases before the first that forms
/// groups, on the graph with its symbols. Its graph and journal are where plans of single shapes
/// start (fuse_shape); the weights it folded are theirs together. `imported` is consumed. errors:
/// other_model (knowledge.instances).
Result<Fused> canonicalize(Graph imported, const Knowledge& knowledge, const EngineOptions& options,
                           const Cancel* cancel = nullptr);
/// Fixes the shapes of options.shapes in a canonical graph; then the phases that this lets do more,
/// and all the others.
Result<Fused> fuse_shape(const Fused& canonical, const Knowledge& knowledge,
                         const EngineOptions& options, const Cancel* cancel = nullptr);
/// Both: `imported` is consumed. The same result as a session's for these shapes.
Result<Fused> fuse(Graph imported, const Knowledge& knowledge, const EngineOptions& options,
                   const Cancel* cancel = nullptr);

}  // namespace ferrule
