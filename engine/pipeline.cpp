#include "engine/pipeline.h"

#include <mutex>

#include "engine/base/diagnostics.h"
#include "engine/graph/infer.h"
#include "engine/graph/verify.h"
#include "engine/group.h"
#include "engine/proof/stamp.h"
#include "engine/rewrite.h"

namespace ferrule {
namespace {

constexpr int kFoldRounds =
    8;  // a rewrite may make something constant, which may let another rule fire

std::string phase_line(const Phase& phase, size_t layers) {
  std::string text = phase.log.empty() ? "After " + phase.id + ": {layers} layers" : phase.log;
  if (size_t at = text.find("{layers}"); at != std::string::npos)
    text.replace(at, 8, std::to_string(layers));
  return text;
}

Status checked(const Graph& g, std::string_view phase) {
  Status s = verify(g);
  if (s) return s;
  return error(Code::rule_broken, s.error().place, "of phase " + std::string(phase),
               "left an invalid graph: " + s.error().message);
}

Status run_phase(const Phase& phase, const PassContext& pass) {
  for (int round = 0; round < kFoldRounds; ++round) {
    size_t steps = pass.journal->steps.size();
    FERRULE_TRY(rewrite_phase(pass, phase.id));
    if (pass.journal->steps.size() == steps) break;
    FERRULE_ASSIGN(int folded, fold_constants(pass));
    if (folded == 0 || !phase.fixpoint) break;
  }
  return group_phase(pass, phase.id);
}

/// On the host's target whatever we plan for, as `rules test` does: what a rewrite computes is the same anywhere.
Status prove_unstamped(const EngineOptions& options, Knowledge& k) {
  auto host = load_target(options.rule_dirs, host_target());
  ProofContext context;
  context.ops = &k.ops;
  context.target = host ? &*host : &k.target;
  context.limits = &options.limits;
  context.rule_dirs = options.rule_dirs;
  context.cache = options.cache;
  return require_proofs(k.rules, context, k.notes);
}

/// Inference asks the installed table for pointwise operators; it must not go away under it.
void install(std::shared_ptr<const Knowledge> k) {
  static std::mutex mutex;
  static std::shared_ptr<const Knowledge> installed;
  std::lock_guard lock(mutex);
  installed = std::move(k);
  install_pointwise_inference(&installed->ops);
}

}  // namespace

Result<std::shared_ptr<const Knowledge>> load_knowledge(const EngineOptions& options) {
  auto k = std::make_shared<Knowledge>();
  FERRULE_ASSIGN(k->ops, OpTable::load(options.rule_dirs));
  FERRULE_ASSIGN(k->rules,
                 load_rules(options.rule_dirs, k->ops, options.selection, options.limits));
  std::string target = options.target.empty() ? host_target() : options.target;
  FERRULE_ASSIGN(k->target, load_target(options.rule_dirs, target));
  install(k);
  if (!options.allow_unproven) FERRULE_TRY(prove_unstamped(options, *k));
  return std::shared_ptr<const Knowledge>(std::move(k));
}

Result<Fused> fuse(Graph imported, const Knowledge& knowledge, const EngineOptions& options,
                   const Cancel* cancel) {
  Fused out;
  out.graph = std::move(imported);
  if (!options.shapes.empty()) FERRULE_TRY(fix_shapes(out.graph, options.shapes));
  PassContext pass;
  pass.graph = &out.graph;
  pass.rules = &knowledge.rules;
  pass.ops = &knowledge.ops;
  pass.target = &knowledge.target;
  pass.limits = &options.limits;
  pass.cancel = cancel;
  pass.journal = &out.journal;
  pass.near_misses = options.near_misses ? &out.near_misses : nullptr;
  pass.ignore_profit = &options.ignore_profit;
  pass.fold = options.fold;
  FERRULE_ASSIGN([[maybe_unused]] int folded, fold_constants(pass));
  for (const Phase& phase : knowledge.rules.phases) {
    FERRULE_TRY(run_phase(phase, pass));
    FERRULE_TRY(checked(out.graph, phase.id));
    out.journal.phases.push_back(phase_line(phase, out.graph.live_nodes()));
  }
  out.graph.remove_dead();
  out.notes = knowledge.notes;
  for (const Step& s : out.journal.steps)
    if (s.kind == "broken")
      out.notes.push_back(
          fmt::format("rule {} {} (at {})", s.rule, s.text, fmt::join(s.before, ", ")));
  return out;
}

}  // namespace ferrule
