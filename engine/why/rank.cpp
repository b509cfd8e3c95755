// Which rule leads an answer: that which would win most by what has to change. Rules that cannot be
// what was asked about are left out.
#include <algorithm>
#include <array>

#include "engine/base/diagnostics.h"
#include "engine/match/facts.h"
#include "engine/rule/expr.h"
#include "engine/semantics/movement.h"
#include "engine/why/internal.h"

namespace ferrule::why {
namespace {

constexpr size_t kNear = 3;  // nodes from where a pattern looked to what it wants

bool structure(const Draft& c) {
  return !c.found.match && c.found.rejection.stage == Rejection::Stage::structure &&
         c.found.rejection.id == "structure";
}

/// Another operator than the pattern wants: a number or an attribute of the right one is nearer.
bool other_operator(const Draft& c, const Semantics& ops) {
  const PatternExpr* want = c.found.trace.failed;
  if (!want || want->kind != PatternExpr::Kind::call) return false;
  const NodeId at = failed_at(c.found);
  return !at || !has_head(c.found.graph->node(at), want->ops, want->classes, ops);
}

/// Whether the graph has a node for every call that the pattern cannot do without.
bool all_there(const PatternExpr& e, const std::vector<NodeId>& nodes, const Graph& g,
               const Semantics& ops) {
  auto inside = [&](const PatternExpr& x) { return all_there(x, nodes, g, ops); };
  if (e.kind == PatternExpr::Kind::alternatives)
    return std::ranges::any_of(e.choices, [&](const auto& c) { return inside(*c.second); });
  if (e.kind != PatternExpr::Kind::call) return true;
  if (!std::ranges::all_of(e.args, [&](const auto& a) { return inside(*a); })) return false;
  return e.optional || std::ranges::any_of(nodes, [&](NodeId n) {
           return has_head(g.node(n), e.ops, e.classes, ops);
         });
}
bool all_there(const Rule& rule, const Graph& g, const Semantics& ops) {
  const std::vector<NodeId> nodes = g.order();
  return std::ranges::all_of(
      rule.match.lines, [&](const PatternLine& l) { return all_there(*l.expr, nodes, g, ops); });
}

}  // namespace

bool recognises(const Rule& rule) {
  return rule.kind == RuleKind::rewrite &&
         std::ranges::any_of(rule.rewrite.lines, [](const PatternLine& l) {
           return l.expr->kind == PatternExpr::Kind::call;
         });
}

bool value_missed(const Draft& c, const Semantics& ops) {
  const MatchTrace& t = c.found.trace;
  if (!structure(c)) return true;
  if (!t.failed || other_operator(c, ops)) return false;
  // What is computed where a number belongs is no other number.
  return t.failed->kind == PatternExpr::Kind::call || !t.value || c.found.graph->constant(t.value);
}

bool concerns(const Draft& c, const Observed& o, const Subjects& subjects,
              const std::vector<std::string>& path) {
  const Rule& rule = *c.c.rule;
  const Rejection& r = c.found.rejection;
  if (c.c.state != Considered::State::refused) return true;
  const bool rewrite = rule.kind == RuleKind::rewrite;
  // That a node is not one that does nothing says little of it, be it a number, a size or an
  // attribute that makes the difference.
  const bool changeable =
      r.stage == Rejection::Stage::condition &&
      (r.cls == ConditionClass::profit || r.truth == Truth::unknown || !r.hint.empty());
  if (rewrite && c.c.pattern_nodes <= 1 && !changeable &&
      (path.empty() || !recognises(rule) || structure(c)))
    return false;
  const Semantics& ops = o.knowledge->ops;
  const Graph& g = *c.found.graph;
  auto of_profile = [](const std::string& name) {
    return name == "profile" || name == "tensorrt" || name == "ferrule";
  };
  const Bindings none;
  const Let nothing;
  const EvalContext profile{g, none, ops, nothing, &o.knowledge->target};
  for (const Condition& asked : rule.where)  // it is for another profile
    if (asked.expr && std::ranges::all_of(names(*asked.expr), of_profile) &&
        evaluate_condition(*asked.expr, profile) == Truth::no)
      return false;
  if (!all_there(rule, g, ops)) return false;
  // A tail that the rule could not take anywhere is not what it waits for.
  const RegionSpec& spec = rule.region;
  const bool tail = rule.kind == RuleKind::absorb && !(spec.ops.empty() && spec.classes.empty());
  if (tail && r.stage != Rejection::Stage::condition) {
    auto head = [&](NodeId n) { return has_head(g.node(n), spec.ops, spec.classes, ops); };
    const bool asked =
        std::ranges::any_of(subjects, [&](const auto& s) { return std::ranges::any_of(s, head); });
    const bool behind = std::ranges::any_of(c.found.trace.nodes, [&](const auto& taken) {
      return std::ranges::any_of(g.node(taken.second).outputs, [&](ValueId v) {
        return v &&
               std::ranges::any_of(g.value(v).uses, [&](const Use& u) { return head(u.node); });
      });
    });
    if (subjects.size() > 1 ? !asked : !behind && !asked) return false;
  }
  if (rule.kind == RuleKind::region && !(spec.around_ops.empty() && spec.around_classes.empty())) {
    const std::vector<NodeId> nodes = g.order();
    if (std::ranges::none_of(nodes, [&](NodeId n) {
          return has_head(g.node(n), spec.around_ops, spec.around_classes, ops);
        }))
      return false;
  }
  // A region that may hold movements, beside one that holds none: it is for those who have one.
  if (rule.kind == RuleKind::region && contains(spec.classes, "movement")) {
    auto moves = [&](NodeId n) { return is_movement(g.node(n)); };
    const bool near = std::ranges::any_of(subjects, [&](const auto& s) {
      return std::ranges::any_of(s, [&](NodeId n) {
        if (moves(n)) return true;
        for (ValueId v : g.node(n).inputs)
          if (v && g.value(v).producer && moves(g.value(v).producer)) return true;
        for (ValueId v : g.node(n).outputs)
          if (v &&
              std::ranges::any_of(g.value(v).uses, [&](const Use& u) { return moves(u.node); }))
            return true;
        return false;
      });
    });
    if (!near) return false;
  }
  if (!structure(c)) return true;
  if (rule.kind == RuleKind::region) return r.matched_nodes > 0;
  // Of two the pattern says which is no sibling; of one, that nothing else of its kind is there.
  if (rule.kind == RuleKind::merge) return subjects.size() > 1 && r.matched_nodes > 0;
  if (rule.match.lines.empty() || !c.found.trace.refused.empty()) return true;
  const PatternExpr* want = c.found.trace.failed;
  if (!want) return !rewrite;
  std::vector<NodeId> took;
  for (const auto& [_, n] : c.found.trace.nodes) took.push_back(n);
  took.insert(took.end(), c.found.path.begin(), c.found.path.end());
  const bool other = other_operator(c, ops);
  if (!other)
    if (const NodeId at = failed_at(c.found)) took.push_back(at);
  if (!path.empty() && !rewrite && failed_at(c.found))
    for (const std::string& name : origins(g, std::array{failed_at(c.found)}))
      if (contains(path, name)) return true;
  if (!all_meet(subjects, took)) return false;
  if (!other || (!rewrite && !c.found.path.empty() && c.found.path.size() <= kNear)) return true;
  return c.c.matched_nodes >= 2 && 2 * c.c.matched_nodes >= c.c.pattern_nodes;
}

double worth(const Draft& c, const Target& target) {
  const Rejection& r = c.found.rejection;
  double chance = 0;
  switch (c.c.state) {
    case Considered::State::off:
      chance = 1;
      break;
    case Considered::State::lost:
      chance = c.c.lost_rule == c.c.rule->id ? 0.5 : 0.9;
      break;
    case Considered::State::refused:
      if (r.id == kOff) {  // somebody decided so, and it would fire
        chance = 2;
        break;
      }
      if (structure(c) && r.truth != Truth::unknown && !r.of_tail &&
          c.c.rule->kind != RuleKind::place) {
        const double part = static_cast<double>(c.c.matched_nodes) / std::max(c.c.pattern_nodes, 1);
        chance = 0.15 * std::min(part, 1.0) * (c.c.rule->match.lines.empty() ? 0.25 : 1);
        break;
      }
      chance = 0.3;  // what the rule is for
      if (r.stage == Rejection::Stage::guarantee) chance = r.id == "D1" || r.id == "D2" ? 0.8 : 0.4;
      if (!r.hint.empty()) chance = 0.6;
      if (r.truth == Truth::unknown || r.cls == ConditionClass::profit) chance = 0.7;
      for (const Proposal& p : c.proposals)
        if (p.unlock.kind == Unlock::Kind::flag) chance = 0.9;
      if (r.stage == Rejection::Stage::condition) chance /= std::max(c.found.failures, 1);
      if (c.c.rule->kind == RuleKind::rewrite) chance *= 0.7;  // it prepares, and fuses nothing
  }
  // What it wants would not help where its kernel is missing; that itself is asked last.
  const std::string& contract = c.c.rule->contract;
  if (c.c.state == Considered::State::refused && r.stage != Rejection::Stage::condition &&
      !contract.empty() && !target.contracts.contains(contract))
    chance *= 0.1;
  return chance * static_cast<double>(std::max<int64_t>(c.c.bytes, 0));
}

bool leads(const Draft& a, const Draft& b) {
  auto key = [](const Draft& c) {
    int unlock = static_cast<int>(Unlock::Kind::impossible);
    for (const Proposal& p : c.proposals)
      unlock = std::min(unlock, static_cast<int>(p.unlock.kind));
    for (const Unlock& u : c.c.unlocks) unlock = std::min(unlock, static_cast<int>(u.kind));
    const bool lost = c.c.state == Considered::State::lost;
    return std::tuple(-c.worth, structure(c), c.found.failures, lost ? 0 : unlock, c.found.others,
                      -c.c.matched_nodes);
  };
  return key(a) < key(b);
}

}  // namespace ferrule::why
