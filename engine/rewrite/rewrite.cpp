#include "engine/rewrite/rewrite.h"

#include <algorithm>
#include <chrono>
#include <queue>
#include <set>
#include <unordered_set>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/match/index.h"
#include "engine/match/pattern_matcher.h"
#include "engine/rewrite/known_failures.h"
#include "engine/rewrite/replacement.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

/// D7. Contradictions are the rule's fault, what cannot be proved declines the match.
Status same_type(const Rule& rule, const Graph& g, ValueId before, const Type& after) {
  const Type& was = g.value(before).type;
  auto text = [&] {
    return fmt::format("{} was {}, would be {}", value_text(g, before), str(was), str(after));
  };
  auto broken = [&] {
    return error(Code::rule_broken, node_text(g, g.value(before).producer), rule.id,
                 "changes a result's type: " + text());
  };
  auto unproved = [&] { return error(Code::rewrite_declined, rule.id, "D7: " + text()); };
  if (was.dtype != DType::undefined && after.dtype != DType::undefined && was.dtype != after.dtype)
    return broken();
  if (was.dtype != DType::undefined && after.dtype == DType::undefined) return unproved();
  if (!was.shape && !after.shape) return {};
  if (!was.shape || !after.shape) return unproved();
  if (was.shape->size() != after.shape->size()) return broken();
  for (size_t i = 0; i < was.shape->size(); ++i) {
    Truth t = equal((*was.shape)[i], (*after.shape)[i]);
    if (t == Truth::no) return broken();
    if (t == Truth::unknown) return unproved();
  }
  return {};
}

/// Whether a value is computed from nothing but sizes of other values and constants. Only what may
/// be a list of sizes is looked at.
bool made_of_sizes(const Graph& g, ValueId of) {
  constexpr size_t kMostNodes = 64;
  std::set<NodeId> seen;
  std::vector<ValueId> work{of};
  bool sizes = false;
  while (!work.empty()) {
    const ValueId v = work.back();
    work.pop_back();
    if (!v || g.constant(v)) continue;
    const Value& value = g.value(v);
    if (value.contents) {
      sizes = true;
      continue;
    }
    if (!value.producer || value.type.rank() > 1 || value.is_input) return false;
    if (seen.insert(value.producer).second)
      std::ranges::copy(g.node(value.producer).inputs, std::back_inserter(work));
    if (seen.size() > kMostNodes || !g.node(value.producer).subgraphs.empty()) return false;
  }
  return sizes;
}

/// D10. A size that is computed in floating point is the same with and without the rule.
Status keeps_sizes(const Graph& g, const Match& m) {
  if (m.rule->numerics == "exact" || m.rule->numerics == "signed_zero") return {};
  for (ValueId v : m.outputs)
    if (v && made_of_sizes(g, v))
      return error(
          Code::rewrite_declined, m.rule->id,
          fmt::format("D10: {} is computed from sizes, and a size may hang on its last bit",
                      value_text(g, v)));
  return {};
}

/// Moves an instance into the graph in place of its match.
class Transplant {
 public:
  Transplant(Graph& g, const Match& m, const Instance& i) : g_(g), m_(m), in_(i), s_(i.scratch) {}

  Result<std::vector<NodeId>> run() {
    for (size_t k = 0; k < in_.outputs.size(); ++k) {
      if (!in_.outputs[k] || !m_.outputs[k]) continue;
      FERRULE_TRY(same_type(*m_.rule, g_, m_.outputs[k], s_.value(in_.outputs[k]).type));
    }
    if (only_renames())
      return error(Code::rewrite_declined, m_.rule->id,
                   "the result is a graph output and needs a node of its own");
    origins();
    collect();
    for (size_t k = 0; k < in_.outputs.size(); ++k) replace(k);
    remove_matched();
    for (NodeId n : needed_) add(n);
    remove_orphans();
    release_constants();
    return std::move(made_);
  }

 private:
  ValueId origin(ValueId s) const { return in_.origin[s.index]; }

  /// An Identity in front of a graph output that only another one would replace.
  bool only_renames() const {
    for (NodeId n : m_.nodes)
      if (g_.node(n).op != identity_operator() || !g_.node(n).domain.empty()) return false;
    for (size_t k = 0; k < in_.outputs.size(); ++k) {
      ValueId to = in_.outputs[k] ? origin(in_.outputs[k]) : ValueId{};
      if (!to || !m_.outputs[k] || !g_.value(m_.outputs[k]).is_output) continue;
      const Value& v = g_.value(to);
      if (v.is_output || v.is_input || v.constant || v.outer) return true;
    }
    return false;
  }

  void origins() {
    std::set<std::string> seen;
    for (NodeId n : m_.nodes)
      for (const std::string& o : g_.node(n).origins)
        if (seen.insert(o).second) origins_.push_back(o);
    root_name_ = g_.node(m_.root).name;
    root_order_ = g_.node(m_.root).order;
  }

  /// Scratch nodes that the results need, in order, and the model's values that they read.
  void collect() {
    std::vector<bool> need(s_.node_slots());
    std::vector<ValueId> work = in_.outputs;
    while (!work.empty()) {
      ValueId v = work.back();
      work.pop_back();
      if (!v) continue;
      if (origin(v)) read_.insert(origin(v));
      NodeId p = s_.value(v).producer;
      if (!p || need[p.index]) continue;
      need[p.index] = true;
      for (ValueId x : s_.node(p).inputs) work.push_back(x);
    }
    for (uint32_t i = 0; i < need.size(); ++i)
      if (need[i]) needed_.push_back(NodeId{i});
    for (NodeId n : needed_)
      for (ValueId v : s_.node(n).outputs)
        if (v) moved_[v] = {};
    for (size_t k = 0; k < in_.outputs.size(); ++k)
      if (ValueId v = in_.outputs[k]; v && !m_.outputs[k] && s_.value(v).uses.empty())
        absent_.insert(v);
  }

  /// The model's value for one of the scratch graph's.
  ValueId moved(ValueId v) {
    if (!v) return {};
    if (ValueId o = origin(v)) return o;
    ValueId& to = moved_[v];
    if (to) return to;
    const Value& from = s_.value(v);
    std::string name = g_.fresh_name(root_name_ + "." + from.name);
    if (from.constant) return to = g_.add_constant(name, *from.constant);
    to = g_.add_value(name, from.type);
    g_.set_contents(to, from.contents);
    return to;
  }

  void replace(size_t k) {
    ValueId from = m_.outputs[k], to = in_.outputs[k];
    if (!from || !to) return;
    bool fresh = !origin(to);
    ValueId target = moved(to);
    if (target == from) return;
    std::string name = g_.value(from).name;
    Type type = g_.value(from).type;
    g_.replace_uses(from, target);
    if (!fresh || g_.constant(target)) return;
    if (type.known()) g_.set_type(target, std::move(type));
    if (g_.value(target).name == name) return;
    if (g_.value(from).name == name) g_.rename(from, g_.fresh_name(name + "_before"));
    if (!g_.find_value(name)) g_.rename(target, name);
  }

  bool unused(NodeId n) const {
    return std::ranges::all_of(g_.node(n).outputs, [&](ValueId v) {
      return !v || (g_.value(v).uses.empty() && !g_.value(v).is_output && !read_.contains(v));
    });
  }

  void remember_inputs(NodeId n) {
    for (ValueId v : g_.node(n).inputs) {
      if (v && g_.value(v).producer) orphans_.push_back(g_.value(v).producer);
      if (v && g_.constant(v)) constants_.push_back(v);
    }
  }

  /// Large constants that nothing reads any more give their bytes back now, not when the phase is
  /// over: folding the weights of a whole model must not hold them twice.
  void release_constants() {
    constexpr int64_t kLarge = 1 << 16;
    for (ValueId v : constants_) {
      const Value& value = g_.value(v);
      if (value.dead || !value.constant || value.constant->bytes() < kLarge) continue;
      if (value.uses.empty() && !value.is_output && !value.is_input)
        g_.set_constant(v, Tensor::scalar(value.constant->dtype(), 0));
    }
  }

  void remove_matched() {
    for (auto it = m_.nodes.rbegin(); it != m_.nodes.rend(); ++it) {
      if (g_.node(*it).dead || !unused(*it)) continue;
      remember_inputs(*it);
      names_.push_back({*it, g_.node(*it).name});
      g_.remove_node(*it);
    }
  }

  /// A new node keeps the name of the one it takes after; otherwise it is named after the root.
  std::string name_for(NodeId n, bool last) {
    auto gone = [&](auto&& pred) -> std::string {
      for (const auto& [id, name] : names_)
        if (pred(id) && !g_.find_node(name)) return name;
      return "";
    };
    NodeId like = in_.like[n.index];
    std::string name = like ? gone([&](NodeId id) { return id == like; }) : "";
    if (name.empty()) name = gone([&](NodeId id) { return g_.node(id).op == s_.node(n).op; });
    if (name.empty() && last) name = gone([&](NodeId id) { return id == m_.root; });
    return name.empty() ? g_.fresh_name(root_name_ + "." + s_.node(n).op.text()) : name;
  }

  void add(NodeId id) {
    const Node& from = s_.node(id);
    Node n = of_operator(from);
    n.rule = m_.rule->id;
    n.origins = origins_;
    n.order = root_order_;
    for (ValueId v : from.inputs) n.inputs.push_back(moved(v));
    // A result that the matched operator does not have is none of its replacement's.
    for (ValueId v : from.outputs) n.outputs.push_back(absent_.contains(v) ? ValueId{} : moved(v));
    while (n.outputs.size() > 1 && !n.outputs.back()) n.outputs.pop_back();
    n.name = name_for(id, id == needed_.back());
    made_.push_back(g_.add_node(std::move(n)));
  }

  /// What only the match read has no reader left; it would count as another user of its operands.
  void remove_orphans() {
    read_.clear();
    while (!orphans_.empty()) {
      NodeId n = orphans_.back();
      orphans_.pop_back();
      if (g_.node(n).dead || !unused(n)) continue;
      remember_inputs(n);
      g_.remove_node(n);
    }
  }

  Graph& g_;
  const Match& m_;
  const Instance& in_;
  const Graph& s_;
  std::string root_name_;
  int root_order_ = 0;
  std::vector<std::string> origins_;
  std::vector<NodeId> needed_, made_, orphans_;
  std::vector<ValueId> constants_;
  std::set<ValueId> read_, absent_;
  std::map<ValueId, ValueId> moved_;
  std::vector<std::pair<NodeId, std::string>> names_;
};

}  // namespace

Result<std::vector<NodeId>> apply_rewrite(Graph& g, const Match& m, const Semantics& ops,
                                          const Limits& limits) {
  FERRULE_TRY(keeps_sizes(g, m));
  FERRULE_ASSIGN(Instance instance, instantiate(g, m, ops, limits));
  return Transplant(g, m, instance).run();
}

Rejection declined_rewrite(const Match& m, const Error& e) {
  Rejection r;
  r.rule = m.rule;
  r.root = m.root;
  r.stage = Rejection::Stage::guarantee;
  r.id = e.code == Code::rewrite_declined ? "replacement" : "D7";
  r.why = e.message;
  for (std::string_view guarantee : {"D7", "D9", "D10"})
    if (r.why.starts_with(fmt::format("{}: ", guarantee)))
      r.id = guarantee, r.why.erase(0, guarantee.size() + 2);
  r.matched_nodes = static_cast<int>(m.nodes.size());
  r.passed_conditions = r.total_conditions = static_cast<int>(m.rule->where.size());
  return r;
}

namespace {

constexpr size_t kRecent = 64;  // fired rules remembered, to name those of a loop
constexpr int kReach = 8;       // how far behind a change a new match may be rooted
constexpr size_t kPushed =
    64;  // nodes looked at again after one rewrite; the next sweep sees the rest

class RewritePhase {
 public:
  RewritePhase(const PhaseContext& ctx, std::string_view phase, const OriginFailures* failures)
      : ctx_(ctx), phase_(phase), index_(rules(), ctx.ops) {
    for (const Phase& p : ctx.rules.phases)
      if (p.id == phase) fixpoint_ = p.fixpoint;
    if (failures && !ctx.near_misses && !index_.empty()) skip(*failures);
    using std::chrono::steady_clock;
    deadline_ = steady_clock::now() + std::chrono::seconds(ctx.limits.rewrite_seconds);
  }

  Status run(Graph& g) {
    if (index_.empty()) return {};
    budget_ += ctx_.limits.rewrites_per_node * (static_cast<int64_t>(g.live_nodes()) + 16);
    for (;;) {
      FERRULE_TRY(g.sort());
      FERRULE_ASSIGN(bool changed, sweep(g));
      if (!changed || !fixpoint_) break;
    }
    for (NodeId n : g.order())
      for (const auto& [_, sub] : g.node(n).subgraphs) FERRULE_TRY(run(*sub));
    return {};
  }

  void report() {
    if (ctx_.near_misses)
      for (auto& [_, r] : misses_) ctx_.near_misses->push_back(std::move(r));
  }

 private:
  std::vector<const Rule*> rules() const {
    std::vector<const Rule*> out;
    for (const auto& r : ctx_.rules.rules)
      if (r->enabled && r->kind == RuleKind::rewrite && r->phase == phase_) out.push_back(r.get());
    return out;
  }

  /// Work is ordered by rule, then topologically, then by id: always total.
  struct Entry {
    uint32_t rule;
    int order;
    NodeId node;
    auto operator<=>(const Entry&) const = default;
  };

  void push(const Graph& g, NodeId n) {
    if (g.node(n).dead) return;
    for (uint32_t rank : index_.ranks_at(g.node(n))) {
      const Entry e{rank, g.node(n).order, n};
      if (failed_before(g, e))
        skipped_.push_back(e);
      else if (promising(g, e))
        push(e);
      else
        forget(g, e);
    }
  }
  bool promising(const Graph& g, const Entry& e) const {
    return index_.promising(e.rule, g, e.node);
  }
  void push(const Entry& e) {
    if (queued_.insert(uint64_t{e.node.index} << 32 | e.rule).second) queue_.push(e);
  }

  /// What failed in the graph that this one is a copy of fails again, until the first rewrite
  /// changes it.
  void skip(const OriginFailures& f) {
    for (const Rule* r : index_.rules()) failed_.push_back(f.known.failed(*r));
    unchanged_ = f.known.unchanged(f.origin, ctx_.graph);
  }
  bool failed_before(const Graph& g, const Entry& e) const {
    return !unchanged_.empty() && &g == &ctx_.graph && unchanged_[e.node.index] &&
           failed_[e.rule] && (*failed_[e.rule])[e.node.index];
  }
  /// The graph is about to change: of what was skipped only that remains which would have been
  /// queued.
  void keep_pending(const Graph& g) {
    if (&g != &ctx_.graph) return;
    std::erase_if(skipped_, [&](const Entry& e) { return e <= at_ || !promising(g, e); });
  }
  /// The graph has changed: what was skipped and would still have come is tried.
  void queue_skipped() {
    for (const Entry& e : skipped_)
      if (e > at_) push(e);
    skipped_.clear();
    unchanged_.clear();
  }

  Result<bool> sweep(Graph& g) {
    queued_.clear();
    skipped_.clear();
    for (NodeId n : g.order()) push(g, n);
    bool changed = false;
    for (int64_t i = 0; !queue_.empty(); ++i) {
      if (i % 64 == 0) FERRULE_TRY(in_time());
      Entry e = at_ = queue_.top();
      queue_.pop();
      queued_.erase(uint64_t{e.node.index} << 32 | e.rule);
      if (g.node(e.node).dead) continue;
      FERRULE_ASSIGN(bool hit, visit(g, *index_.rules()[e.rule], e.node));
      changed |= hit;
    }
    return changed;
  }

  Status in_time() const {
    FERRULE_TRY(ctx_.in_time(phase_));
    if (std::chrono::steady_clock::now() > deadline_) return loop("after the time for rewriting");
    return {};
  }

  tl::unexpected<Error> loop(const char* when) const {
    std::set<std::string> names(recent_.begin(), recent_.end());
    return error(Code::rule_loop, "phase " + std::string(phase_),
                 fmt::format("{} still fire {}", fmt::join(names, ", "), when));
  }

  Result<bool> visit(Graph& g, const Rule& rule, NodeId n) {
    if (rule.once && g.node(n).rule == rule.id) return false;
    if (steps_ > ctx_.limits.match_steps_model)
      return error(Code::limit_exceeded, "phase " + std::string(phase_),
                   "the number of matcher steps", steps_, ctx_.limits.match_steps_model);
    Attempt a = match_rule(rule, n, ctx_.match_context(g, steps_));
    if (auto* r = std::get_if<Rejection>(&a)) {
      miss(g, std::move(*r));
      return false;
    }
    return apply(g, std::get<Match>(a));
  }

  /// What has another structure is no near miss, nor is what came closer before the graph changed.
  void miss(const Graph& g, Rejection r) {
    // Only the model's own graph: ids of nested graphs would name other nodes.
    if (!ctx_.near_misses || &g != &ctx_.graph) return;
    if (r.stage == Rejection::Stage::structure)
      misses_.erase({r.rule->id, r.root});
    else
      misses_[{r.rule->id, r.root}] = std::move(r);
  }
  void forget(const Graph& g, const Entry& e) {
    if (&g == &ctx_.graph && !misses_.empty()) misses_.erase({index_.rules()[e.rule]->id, e.node});
  }

  Result<bool> apply(Graph& g, const Match& m) {
    Step step{std::string(phase_), m.rule->id, "rewrite", {}, {}, {}};
    for (NodeId n : m.nodes) step.before.push_back(g.node(n).name);
    step.root = g.node(m.root).name;
    std::vector<NodeId> around = neighbours(g, m);
    keep_pending(g);
    auto made = apply_rewrite(g, m, ctx_.ops, ctx_.limits);
    if (!made) return declined(g, m, std::move(made).error());
    queue_skipped();
    if (m.outputs.size() > 1) FERRULE_TRY(g.sort());
    for (NodeId n : *made) step.after.push_back(g.node(n).name);
    step.text = fmt::format(
        "{}: {} -> {}", m.rule->id, fmt::join(step.before, ", "),
        step.after.empty() ? "nothing" : fmt::format("{}", fmt::join(step.after, ", ")));
    ctx_.journal.steps.push_back(std::move(step));
    recent_.push_back(m.rule->id);
    if (recent_.size() > kRecent) recent_.erase(recent_.begin());
    if (++rewrites_ > budget_) return loop(fmt::format("after {} rewrites", rewrites_).c_str());
    again(g, *made, around);
    return true;
  }

  Result<bool> declined(const Graph& g, const Match& m, const Error& e) {
    if (e.code == Code::rule_broken)
      ctx_.journal.steps.push_back(
          {std::string(phase_), m.rule->id, "broken", {g.node(m.root).name}, {}, e.message});
    miss(g, declined_rewrite(m, e));
    return false;
  }

  /// Readers of what the match read: they may have become the only ones.
  std::vector<NodeId> neighbours(const Graph& g, const Match& m) const {
    std::vector<NodeId> out;
    for (NodeId n : m.nodes)
      for (ValueId v : g.node(n).inputs)
        if (v && !g.constant(v) && g.value(v).uses.size() <= 8)
          for (const Use& u : g.value(v).uses) out.push_back(u.node);
    return out;
  }

  void again(const Graph& g, const std::vector<NodeId>& made, const std::vector<NodeId>& around) {
    std::vector<NodeId> level = made;
    level.insert(level.end(), around.begin(), around.end());
    size_t pushed = 0;
    for (int depth = 0; depth < kReach && !level.empty(); ++depth) {
      std::vector<NodeId> next;
      for (NodeId n : level) {
        if (g.node(n).dead || pushed++ > kPushed) continue;
        push(g, n);
        for (ValueId v : g.node(n).outputs)
          if (v && g.value(v).uses.size() <= 8)
            for (const Use& u : g.value(v).uses) next.push_back(u.node);
      }
      level = std::move(next);
    }
  }

  const PhaseContext& ctx_;
  std::string_view phase_;
  bool fixpoint_ = true;
  RuleIndex index_;
  std::chrono::steady_clock::time_point deadline_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::unordered_set<uint64_t> queued_;
  Entry at_{};                                    // being visited
  std::vector<const std::vector<bool>*> failed_;  // by rank: what KnownFailures knows
  std::vector<bool> unchanged_;                   // nodes where that holds; empty: nowhere
  std::vector<Entry> skipped_;                    // in this sweep
  std::vector<std::string> recent_;
  std::map<std::pair<std::string_view, NodeId>, Rejection>
      misses_;  // by rule id: the same order in every run
  int64_t rewrites_ = 0, budget_ = 0, steps_ = 0;
};

}  // namespace

Status rewrite_phase(const PhaseContext& ctx, std::string_view phase, const OriginFailures* skip) {
  RewritePhase pass(ctx, phase, skip);
  Status s = pass.run(ctx.graph);
  pass.report();
  return s;
}

}  // namespace ferrule
