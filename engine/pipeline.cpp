#include "engine/pipeline.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/base/suggest.h"
#include "engine/graph/verify.h"
#include "engine/interpreter/interpreter.h"
#include "engine/onnx/infer_onnx.h"
#include "engine/plan/match_any.h"
#include "engine/proof/stamp.h"
#include "engine/rewrite/known_failures.h"
#include "engine/rewrite/rewrite.h"
#include "engine/rewrite/share.h"
#include "engine/rule/provable.h"
#include "engine/rule/text.h"
#include "engine/semantics/definition.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

std::string phase_line(const Phase& phase, size_t layers) {
  std::string text = phase.log.empty() ? "After " + phase.id + ": {layers} layers" : phase.log;
  for (const auto& [said, with] : {std::pair{"{layers} layers", counted(layers, "layer")},
                                   {"{layers}", std::to_string(layers)}})
    if (size_t at = text.find(said); at != std::string::npos)
      text.replace(at, std::string_view(said).size(), with);
  return text;
}

Status checked(const Graph& g, std::string_view phase) {
  Status s = verify(g);
  if (s) return s;
  return error(Code::rule_broken, s.error().place, "of phase " + std::string(phase),
               "left an invalid graph: " + s.error().message);
}

/// How many phases, from the first, only rewrite: a rewrite is right for every size, a group pays
/// for some.
size_t rewriting_phases(const RuleSet& rules) {
  size_t count = 0;
  auto groups = [&](const Phase& phase) {
    return std::ranges::any_of(rules.rules, [&](const auto& r) {
      return r->phase == phase.id && r->kind != RuleKind::rewrite;
    });
  };
  while (count < rules.phases.size() && !groups(rules.phases[count])) ++count;
  return count;
}

/// The phases over one graph. What a phase logs is what it left the last time it ran.
class Pipeline {
 public:
  Pipeline(Fused& fused, const Knowledge& knowledge, const EngineOptions& options,
           const Cancel* cancel)
      : fused_(fused),
        knowledge_(knowledge),
        pass_{{fused.graph, knowledge.ops, options.limits, fused.journal, cancel},
              knowledge.rules,
              &knowledge.target,
              options.ignore_profit,
              options.near_misses ? &fused.near_misses : nullptr},
        fold_(options.fold),
        snapshots_(options.snapshots),
        share_(options.selection.about(kSharing).value_or(true)),
        rewriting_(rewriting_phases(knowledge.rules)) {}

  /// Weights that are scaled block by block wait for the first phase that groups: what no kernel
  /// took by then is folded.
  Result<int> fold() const {
    if (fold_) return fold_constants(pass_, !grouped_);
    fused_.graph.remove_dead();
    return 0;
  }
  Status share() const {
    if (!share_) return {};
    FERRULE_ASSIGN([[maybe_unused]] int gone, share_common(pass_));
    return {};
  }
  std::shared_ptr<const KnownFailures> known_failures() const {
    return std::make_shared<const KnownFailures>(pass_);
  }
  /// The graph is a copy of this one.
  void starts_from(const Fused& canonical) {
    if (canonical.known_failures)
      failures_.emplace(OriginFailures{*canonical.known_failures, canonical.graph});
  }

  /// The phases before the first that groups.
  Status rewrite() { return run(0, rewriting_); }
  /// What rewrites left is checked phase by phase; groups only wrap what was checked, and are
  /// looked at once, at the next check or the end.
  Status run(size_t first, size_t last) {
    const Phase* unchecked = nullptr;
    for (size_t k = first; k < last; ++k) {
      const Phase& phase = knowledge_.rules.phases[k];
      const size_t steps = fused_.journal.steps.size();
      if (snapshots_) keep(k);
      FERRULE_TRY(run(phase));
      if (!grouped_ && (k == rewriting_ || k + 1 == knowledge_.rules.phases.size())) {
        grouped_ = true;
        FERRULE_TRY(fold());
      }
      if (fused_.journal.steps.size() != steps) unchecked = &phase;
      if (unchecked && (k + 1 == last || rewrote(steps))) {
        FERRULE_TRY(checked(fused_.graph, unchecked->id));
        unchecked = nullptr;
      }
      fused_.journal.phases.resize(k);
      fused_.journal.phases.push_back(phase_line(phase, layers_of(fused_.graph)));
    }
    if (snapshots_) keep(last);
    return fused_.graph.sort();
  }

 private:
  Status run(const Phase& phase) {
    const size_t before = fused_.journal.steps.size();
    // A rewrite may make something constant, which may let another rule fire.
    for (int64_t round = 0; round < pass_.limits.phase_rounds; ++round) {
      size_t steps = fused_.journal.steps.size();
      FERRULE_TRY(rewrite_phase(pass_, phase.id, failures_ ? &*failures_ : nullptr));
      if (fused_.journal.steps.size() == steps) break;
      FERRULE_ASSIGN(int folded, fold());
      if (folded == 0 || !phase.fixpoint) break;
    }
    if (fused_.journal.steps.size() != before) FERRULE_TRY(share());
    return group_phase(pass_, phase.id);
  }

  /// Whether a step since the journal had `steps` is no grouping.
  bool rewrote(size_t steps) const {
    return std::any_of(fused_.journal.steps.begin() + steps, fused_.journal.steps.end(),
                       [](const Step& s) {
                         return s.kind != "absorb" && s.kind != "window" && s.kind != "region";
                       });
  }

  /// The graph before phase k, from which the phases may be run again.
  void keep(size_t k) {
    std::vector<Snapshot>& all = fused_.snapshots;
    const size_t steps = fused_.journal.steps.size();
    all.resize(std::min(all.size(), k));
    if (k > 0 && all.size() == k && all.back().steps == steps)
      all.push_back(all.back());
    else
      all.push_back({fused_.graph.clone(), steps});
  }

  Fused& fused_;
  const Knowledge& knowledge_;
  const PhaseContext pass_;
  std::optional<OriginFailures> failures_;
  const bool fold_, snapshots_, share_;
  const size_t rewriting_;  ///< phases
  bool grouped_ = false;
};

/// Whether some input's size is open.
bool open_inputs(const Graph& g) {
  return std::ranges::any_of(g.inputs(), [&](ValueId v) {
    const Type& t = g.value(v).type;
    return !t.shape || !constant_shape(*t.shape);
  });
}

/// On the host's target whatever we plan for, as `rules test` does: what a rewrite computes is the
/// same anywhere.
Status prove_unstamped(const EngineOptions& options, Knowledge& k) {
  auto host = host_target().and_then(
      [&](const std::string& name) { return load_target(options.rule_dirs, name); });
  ProofContext context;
  context.ops = &k.ops;
  context.target = host ? &*host : &k.target;
  context.limits = &options.limits;
  context.rule_dirs = options.rule_dirs;
  context.cache = options.cache;
  context.allowed = options.allow_unproven;
  return require_proofs(k.overrides.empty() && !k.instances ? k.rules : as_proved(k.rules), context,
                        k.notes, k.unproved);
}

/// Whether some profit condition is RULE.CONDITION of the glob.
bool names_condition(const RuleSet& rules, const std::string& glob) {
  return std::ranges::any_of(rules.rules, [&](const auto& r) {
    auto named = [&](const Condition& c) {
      return c.cls == ConditionClass::profit && c.id != kOff &&
             glob_match(glob, r->id + "." + c.id);
    };
    return std::ranges::any_of(r->where, named) || std::ranges::any_of(r->region.where, named);
  });
}

/// A formula for what is computed in C++ would hold in some places and not in others; row operators
/// of the shipped rules are both, and tested against each other.
/// errors: those of load_semantics; formula_invalid.
Result<Semantics> load_operators(const EngineOptions& options) {
  FERRULE_ASSIGN(Semantics ops, load_semantics(options.rule_dirs, infer_by_schema, options.limits));
  Node n;
  for (const auto& [key, f] : ops.all()) {
    n.op = f.op, n.domain = f.domain;
    const bool shipped = !f.pointwise() && f.place.starts_with(options.rule_dirs.front());
    if (!shipped && interpretable(n, Semantics{}))
      return error(
          Code::formula_invalid, f.place,
          fmt::format("operator {} is no formula: ferrule computes it itself", escape(key)),
          "give yours a domain");
  }
  return ops;
}

}  // namespace

namespace {

/// Every `device:` of an override file is a device or a target, or may match one.
Status check_devices(std::span<const Override> entries, std::vector<std::string> known) {
  known.insert(known.begin(), {"cpu", "gpu"});
  std::vector<Error> wrong;
  for (const Override& e : entries)
    for (const std::string& glob : e.devices)
      if (std::ranges::none_of(known, [&](const std::string& d) { return glob_match(glob, d); }))
        append(wrong, error(Code::rule_invalid, e.place(),
                            fmt::format("device {} is no device and no target", escape(glob)),
                            fmt::format("{}{}there are {}", did_you_mean(glob, known),
                                        did_you_mean(glob, known).empty() ? "" : " ",
                                        fmt::join(known, ", ")))
                          .value());
  return as_status(std::move(wrong));
}

}  // namespace

namespace {

bool has_yaml(const std::string& dir) {
  std::error_code ec;
  using Files = std::filesystem::recursive_directory_iterator;
  for (auto it = Files(dir, ec); !ec && it != Files(); it.increment(ec))
    if (it->path().extension() == ".yaml") return true;
  return ec.operator bool();
}

}  // namespace

Result<std::shared_ptr<const Knowledge>> load_knowledge(const EngineOptions& options) {
  auto k = std::make_shared<Knowledge>();
  FERRULE_ASSIGN(k->ops, load_operators(options));
  const bool proved = options.rule_dirs.size() == 1 && options.overrides.empty() &&
                      options.apply.empty() && proved_as_they_stand(options.rule_dirs[0]);
  FERRULE_ASSIGN(k->rules,
                 load_rules(options.rule_dirs, k->ops, options.selection, options.limits,
                            proved && !options.rule_tests ? RuleTests::left_out : RuleTests::read));
  FERRULE_ASSIGN(const std::string target, options.target.empty() || options.target == "host"
                                               ? host_target()
                                               : Result<std::string>(options.target));
  FERRULE_ASSIGN(k->target, load_target(options.rule_dirs, target));
  FERRULE_TRY(use_profile(k->target, options.profile));
  std::vector<Error> found;
  k->overrides = load_overrides(options.overrides, options.limits, found);
  FERRULE_TRY(
      apply_overrides(k->rules, k->overrides, k->target, options.selection, std::move(found)));
  FERRULE_TRY(check_devices(k->overrides, target_names(options.rule_dirs)));
  if (!options.apply.empty()) {
    FERRULE_ASSIGN(k->instances, read_instances(options.apply, options.limits));
    FERRULE_TRY(apply_instances(k->rules, *k->instances));
  }
  k->warnings = k->rules.warnings;
  for (const std::string& dir : options.rule_dirs)
    if (!has_yaml(dir))
      k->warnings.push_back(fmt::format("--rules {}: no file .yaml in it", escape(dir)));
  for (const std::string& glob : options.ignore_profit)
    if (!names_condition(k->rules, glob))
      k->warnings.push_back(
          fmt::format("--ignore-profit {}: no profit condition matches", escape(glob)));
  FERRULE_ASSIGN(k->notes, replaced_operators(options.rule_dirs, k->ops));
  for (const std::string& glob : options.allow_unproven) {
    auto named = [&](const auto& r) { return glob_match(glob, r->id); };
    auto proved = [&](const auto& r) { return provable(*r) && named(r); };
    if (std::ranges::any_of(k->rules.rules, proved)) continue;
    k->warnings.push_back(fmt::format(
        "--allow-unproven {}: {}", escape(glob),
        std::ranges::any_of(k->rules.rules, named)
            ? "only rewrites, merges and rules with roles are proved, all others are used anyway"
            : "no rule matches"));
  }
  if (!proved) FERRULE_TRY(prove_unstamped(options, *k));
  return std::shared_ptr<const Knowledge>(std::move(k));
}

namespace {

/// The graphs nested in nodes of `g`, as far as the target runs those step by step and their sizes
/// are known.
Result<NestedGraphs> fuse_nested(const Graph& g, const Knowledge& knowledge,
                                 const EngineOptions& options, const Cancel* cancel) {
  NestedGraphs out;
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (n.subgraphs.empty()) continue;
    const std::string contract = contract_of(n, knowledge.ops);
    if (!knowledge.target.contracts.contains(contract)) continue;
    auto graphs = graphs_of_their_own(knowledge.ops, g, n, contract);
    if (!graphs) {
      if (graphs.error().not_applicable()) continue;
      return fail(required(std::move(graphs).error()));
    }
    bool known = true;
    for (NestedGraph& nested : *graphs) {
      Fused fused;
      fused.graph = std::move(nested.graph);
      Pipeline pipeline(fused, knowledge, options, cancel);
      FERRULE_ASSIGN([[maybe_unused]] int folded, pipeline.fold());
      FERRULE_TRY(pipeline.share());
      FERRULE_TRY(pipeline.run(0, knowledge.rules.phases.size()));
      fused.graph.remove_dead();
      known &= sizes_known(fused.graph);
      FERRULE_ASSIGN(nested.nested, fuse_nested(fused.graph, knowledge, options, cancel));
      nested.graph = std::move(fused.graph);
    }
    if (known) out.emplace(id, std::move(*graphs));
  }
  return out;
}

/// How often a Loop turns, where nothing but its count stops it. `body`: its own.
std::optional<int64_t> turns(const Graph& g, const Node& n, const Graph& body) {
  const auto constant = [](const Graph& of, ValueId v) {
    const Tensor* t = v && !of.value(v).is_input ? of.constant(v) : nullptr;
    return t && t->numel() == 1 ? std::optional(t->at_i64(0)) : std::nullopt;
  };
  const auto count = constant(g, n.inputs[0]);
  if (!count || *count < 1 || *count > INT32_MAX) return std::nullopt;
  if (n.inputs[1] && !constant(g, n.inputs[1]).value_or(0)) return std::nullopt;
  ValueId again = body.outputs()[0];
  for (NodeId by; (by = body.value(again).producer) && body.node(by).op == identity_operator();)
    again = body.node(by).inputs[0];
  return again == body.inputs()[1] || constant(body, again).value_or(0) ? count : std::nullopt;
}

/// ONNX says nothing of what a Loop carries from turn to turn, nor how often it turns; where the
/// body keeps a size, that is the result's, and where the count alone stops it, so many turns are
/// stacked.
Status size_loops(Graph& g, const Knowledge& knowledge) {
  FERRULE_TRY(g.sort());
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (n.subgraphs.empty() || n.inputs.size() < 2 || contract_of(n, knowledge.ops) != "loop")
      continue;
    const auto open = [&](ValueId v) {
      return v && !constant_shape(g.value(v).type.shape.value_or(Shape{Dim::unknown()}));
    };
    if (std::ranges::none_of(n.outputs, open)) continue;
    const auto graphs = graphs_of_their_own(knowledge.ops, g, n, "loop");
    if (!graphs) continue;
    const Graph& body = (*graphs)[0].graph;
    const auto count = turns(g, n, body);
    const size_t carried = n.inputs.size() - 2;
    for (size_t k = 0; k < n.outputs.size() && k + 1 < body.outputs().size(); ++k) {
      if (!n.outputs[k] || (k >= carried && !count)) continue;
      Type t = body.value(body.outputs()[1 + k]).type;
      if (k >= carried) t.shape->insert(t.shape->begin(), *count);
      g.set_type(n.outputs[k], std::move(t));
    }
    FERRULE_TRY(infer_all(knowledge.ops, g));
  }
  return {};
}

/// canonicalize(); `plans`: how many are to start from it, one or any number.
enum class Plans : uint8_t { one, any };
Result<Fused> canonical_form(Graph imported, const Knowledge& knowledge,
                             const EngineOptions& options, const Cancel* cancel, Plans plans) {
  Fused out;
  out.warnings = knowledge.warnings;
  if (knowledge.instances) FERRULE_TRY(check_model(*knowledge.instances, imported));
  if (!knowledge.overrides.empty())
    std::ranges::move(unused_scopes(imported, knowledge.overrides, knowledge.target),
                      std::back_inserter(out.warnings));
  out.graph = std::move(imported);
  Pipeline pipeline(out, knowledge, options, cancel);
  FERRULE_ASSIGN([[maybe_unused]] int folded, pipeline.fold());
  FERRULE_TRY(pipeline.share());
  FERRULE_TRY(pipeline.rewrite());
  out.graph.remove_dead();
  if (plans == Plans::any) out.graph.share_made_constants();
  if (plans == Plans::any && open_inputs(out.graph) && !options.near_misses) {
    FERRULE_TRY(out.graph.sort());
    out.known_failures = pipeline.known_failures();
  }
  return out;
}

/// fuse_shape of `out`, which is the canonical graph or (`origin` set) a copy of that one's.
Result<Fused> fuse_in_place(Fused out, const Fused* origin, const Knowledge& knowledge,
                            const EngineOptions& options, const Cancel* cancel) {
  size_t first = out.journal.phases.size();
  Pipeline pipeline(out, knowledge, options, cancel);
  if (origin) pipeline.starts_from(*origin);
  if (!options.shapes.empty()) {
    const bool open = open_inputs(out.graph);
    FERRULE_TRY(fix_shapes(knowledge.ops, out.graph, options.shapes));
    if (open) {
      first = 0;
      FERRULE_ASSIGN([[maybe_unused]] int folded, pipeline.fold());
    }
  }
  FERRULE_TRY(size_loops(out.graph, knowledge));
  if (!first) out.near_misses.clear(), out.snapshots.clear();
  FERRULE_TRY(pipeline.run(first, knowledge.rules.phases.size()));
  out.graph.remove_dead();
  EngineOptions inner = options;
  inner.near_misses = inner.snapshots = false;
  FERRULE_ASSIGN(out.nested, fuse_nested(out.graph, knowledge, inner, cancel));
  out.notes = knowledge.notes;
  if (knowledge.instances)
    std::ranges::move(unmatched(*knowledge.instances, knowledge.rules, out.journal),
                      std::back_inserter(out.warnings));
  for (const Step& s : out.journal.steps)
    if (s.kind == "broken")
      out.notes.push_back(
          fmt::format("rule {} {} (at {})", s.rule, s.text, fmt::join(s.before, ", ")));
  return out;
}

}  // namespace

Result<Fused> canonicalize(Graph imported, const Knowledge& knowledge, const EngineOptions& options,
                           const Cancel* cancel) {
  return canonical_form(std::move(imported), knowledge, options, cancel, Plans::any);
}

Result<Fused> fuse_shape(const Fused& canonical, const Knowledge& knowledge,
                         const EngineOptions& options, const Cancel* cancel) {
  Fused out;
  out.graph = std::move(*canonical.graph.clone());
  out.journal = canonical.journal;
  out.near_misses = canonical.near_misses;
  out.snapshots = canonical.snapshots;
  out.warnings = canonical.warnings;
  return fuse_in_place(std::move(out), &canonical, knowledge, options, cancel);
}

Result<Fused> fuse(Graph imported, const Knowledge& knowledge, const EngineOptions& options,
                   const Cancel* cancel) {
  FERRULE_ASSIGN(Fused canonical,
                 canonical_form(std::move(imported), knowledge, options, cancel, Plans::one));
  return fuse_in_place(std::move(canonical), nullptr, knowledge, options, cancel);
}

}  // namespace ferrule
