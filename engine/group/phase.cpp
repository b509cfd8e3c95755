#include "engine/group/phase.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/diagnostics.h"
#include "engine/group/absorb.h"
#include "engine/group/budget.h"
#include "engine/group/group.h"
#include "engine/group/merge.h"
#include "engine/group/region.h"
#include "engine/group/window.h"
#include "engine/match/index.h"

namespace ferrule {
namespace {

class GroupPhase {
 public:
  GroupPhase(const PhaseContext& ctx, std::string_view phase)
      : ctx_(ctx), g_(ctx.graph), phase_(phase), budget_(ctx, phase) {}

  Status run() {
    for (const auto& r : ctx_.rules.rules)
      if (r->enabled && r->phase == phase_ &&
          (r->kind == RuleKind::absorb || r->kind == RuleKind::window ||
           r->kind == RuleKind::region))
        rules_.push_back(r.get());
    if (rules_.empty()) return {};
    FERRULE_TRY(g_.sort());
    index_.emplace(rules_, ctx_.ops);
    roots_.resize(rules_.size());
    tried_.assign(rules_.size(), -1);
    for (NodeId n : g_.order()) add_roots(n);
    // A rule that matches groups may extend them.
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t rank = 0; rank < rules_.size(); ++rank) {
        if (std::exchange(tried_[rank], fires_) == fires_)
          continue;  // nothing changed since the last time
        const bool absorbs = rules_[rank]->kind != RuleKind::region;
        FERRULE_ASSIGN(bool hit, absorbs ? absorb(rank) : regions(*rules_[rank]));
        changed |= hit;
      }
    }
    if (ctx_.near_misses)
      for (auto& [_, r] : misses_) ctx_.near_misses->push_back(std::move(r));
    return g_.sort();
  }

 private:
  /// What a rule said when it came furthest: that its nodes are gone later is not why.
  void missed(Rejection r) {
    if (r.stage == Rejection::Stage::structure) return;
    Rejection& kept = misses_[{r.rule->id, r.root}];
    if (!kept.rule || nearness(r) >= nearness(kept)) kept = std::move(r);
  }

  void add_roots(NodeId n) {
    for (uint32_t rank : index_->ranks_at(g_.node(n))) roots_[rank].push_back(n);
  }

  /// Anchors from the last to the first: where both operands of an Add are convolutions, the later
  /// takes it.
  Result<bool> absorb(uint32_t rank) {
    std::vector<NodeId>& known = roots_[rank];
    std::erase_if(known, [&](NodeId n) { return g_.node(n).dead; });
    std::vector<NodeId> roots = known;  // those of groups made here come with the next pass
    std::ranges::sort(roots, std::greater<>(),
                      [&](NodeId n) { return std::pair(g_.node(n).order, n.index); });
    bool changed = false;
    for (NodeId root : roots) {
      if (g_.node(root).dead || !index_->promising(rank, g_, root)) continue;
      FERRULE_TRY(budget_.more());
      const MatchContext mc = ctx_.match_context(g_, budget_.steps);
      const bool window = rules_[rank]->kind == RuleKind::window;
      Attempt a =
          window ? match_window(*rules_[rank], root, mc) : match_absorb(*rules_[rank], root, mc);
      if (auto* r = std::get_if<Rejection>(&a)) {
        if (ctx_.near_misses) missed(std::move(*r));
        continue;
      }
      FERRULE_TRY(fire(*rules_[rank], std::get<Match>(a), window ? "window" : "absorb"));
      changed = true;
    }
    return changed;
  }

  Result<bool> regions(const Rule& rule) {
    FERRULE_TRY(g_.sort());
    FERRULE_TRY(budget_.more());
    const MatchContext mc = ctx_.match_context(g_, budget_.steps);
    std::vector<Rejection> misses;
    std::vector<Match> found = match_regions(rule, mc, ctx_.near_misses ? &misses : nullptr);
    for (Rejection& r : misses) missed(std::move(r));
    for (Match& m : found) {
      FERRULE_TRY(budget_.more());
      FERRULE_TRY(fire(rule, m, "region"));
    }
    return !found.empty();
  }

  Status fire(const Rule& rule, const Match& m, const char* kind) {
    Step step{std::string(phase_), rule.id, kind, {}, {}, {}};
    for (NodeId n : m.nodes) step.before.push_back(g_.node(n).name);
    step.root = g_.node(m.root).name;
    auto tail = m.bindings.node_lists.find("tail");
    std::vector<NodeId> first, rest;
    for (NodeId n : m.nodes) {
      bool behind = tail != m.bindings.node_lists.end()
                        ? std::ranges::find(tail->second, n) != tail->second.end()
                        : n != m.nodes[0];
      (behind ? rest : first).push_back(n);
    }
    step.text = "Fusing " + joined_names(g_, first, " + ") +
                (rest.empty() ? "" : " with " + joined_names(g_, rest, ", "));
    std::string name = group_name(rule, m, ctx_.match_context(g_, budget_.steps));
    NodeId made = form_group(g_, m.nodes, rule.contract, rule.id, std::move(name), m.body, m.roles);
    ++fires_;
    FERRULE_TRY(budget_.formed(rule));
    add_roots(made);
    step.after.push_back(g_.node(made).name);
    ctx_.journal.steps.push_back(std::move(step));
    return {};
  }

  const PhaseContext& ctx_;
  Graph& g_;
  std::string_view phase_;
  GroupBudget budget_;
  int64_t fires_ = 0;
  std::vector<const Rule*> rules_;
  std::optional<RuleIndex> index_;
  std::vector<std::vector<NodeId>> roots_;  // by rule: where its pattern may match
  std::vector<int64_t> tried_;  // by rule: how many groups there were when it began its last pass
  std::map<std::pair<std::string_view, NodeId>, Rejection>
      misses_;  // by rule id: the same order in every run
};

}  // namespace

Status form_groups(const PhaseContext& ctx, std::string_view phase) {
  FERRULE_TRY(GroupPhase(ctx, phase).run());
  return merge_phase(ctx, phase);
}

}  // namespace ferrule
