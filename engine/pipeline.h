// The stages in order: the first file to read. model -> import -> normalise -> rewrite -> group -> plan.
#pragma once
#include "engine/base/cache_folder.h"
#include "engine/graph/journal.h"
#include "engine/match/match.h"
#include "engine/plan.h"
#include "engine/rule/load.h"

namespace ferrule {

class Settled;  // settled.h

struct EngineOptions {
  std::vector<std::string> rule_dirs;         ///< first: the shipped rules
  RuleSelection selection;
  std::string target;                         ///< empty: the host's
  Limits limits;
  bool fold = true;
  bool overridable = false;
  bool near_misses = false;
  std::vector<std::string> ignore_profit;
  bool allow_unproven = false;                ///< rewrites without a proof stamp run unproved
  std::string cache = user_cache_folder();    ///< the folder for proofs and compiled kernels; empty: none
  std::map<std::string, std::vector<int64_t>> shapes;  ///< concrete input shapes; empty entries stay symbolic
};

/// Rules, operators and target, loaded once and shared.
struct Knowledge {
  OpTable ops;
  RuleSet rules;
  Target target;
  std::vector<std::string> notes;             ///< what proving rules of the user's found
};
/// errors: those of load_rules, load_target; rule_unproven.
Result<std::shared_ptr<const Knowledge>> load_knowledge(const EngineOptions& options);

/// The fused graph and all that was recorded on the way.
struct Fused {
  Graph graph;
  Journal journal;
  std::vector<Rejection> near_misses;
  std::vector<std::string> notes;             ///< "x is 1x3x?x?: …", initializers that are also inputs, …
  std::shared_ptr<const Settled> settled;     ///< of a canonical graph whose sizes are open
};
/// What holds for every input size, done once: folding and the phases before the first that forms groups,
/// on the graph with its symbols. Its graph and journal are where plans of single shapes start (fuse_shape);
/// the weights it folded are theirs together. `imported` is consumed.
Result<Fused> canonicalize(Graph imported, const Knowledge& knowledge, const EngineOptions& options,
                           const Cancel* cancel = nullptr);
/// Fixes the shapes of options.shapes in a canonical graph; then the phases that this lets do more, and
/// all the others.
Result<Fused> fuse_shape(const Fused& canonical, const Knowledge& knowledge, const EngineOptions& options,
                         const Cancel* cancel = nullptr);
/// Both: `imported` is consumed. The same result as a session's for these shapes.
Result<Fused> fuse(Graph imported, const Knowledge& knowledge, const EngineOptions& options,
                   const Cancel* cancel = nullptr);

}  // namespace ferrule
