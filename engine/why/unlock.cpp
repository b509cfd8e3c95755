// What would remove an obstacle: a flag, a fact, or a change of the model; and what removes none,
// said as well.
#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/graph/open_sizes.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/plan/match_any.h"
#include "engine/rule/text.h"
#include "engine/semantics/movement.h"
#include "engine/why/internal.h"

namespace ferrule::why {
namespace {

using Kind = Unlock::Kind;
constexpr const char* kOnlyResults =
    "a fused layer writes its results to memory, and no values between its nodes";
constexpr size_t kMostRules = 4;  // rules that are off and are tried at one question

Proposal flag(std::string text, std::string because, Change change) {
  return {{Kind::flag, std::move(text), std::move(because), false, {}}, std::move(change)};
}
Proposal say(Kind kind, std::string text, std::string because = {}) {
  return {{kind, std::move(text), std::move(because), false, {}}, std::nullopt};
}

/// Why the rule is off, as the command line put it.
std::string off_because(const Rule& r, const RuleSelection& s) {
  for (const std::string& d : s.disable)
    if (glob_match(d, r.id)) return fmt::format("--disable {} is given", d);
  if (!r.off.empty()) return r.off;
  if (r.numerics == "approximate") return "its results are approximate";
  if (r.numerics == "reduced") return "it computes in a shorter element type";
  return r.experimental ? "it is experimental" : "its file says enabled: false";
}
Proposal enable(const Rule& r, const Observed& o) {
  Change change;
  change.enable = {&r};
  return flag("--enable " + r.id, off_because(r, o.options.selection), std::move(change));
}

/// Every profit condition that the trace shows, together: the next one would stand in the way.
Proposal ignore_profit(const Considered& c) {
  Change change;
  for (const SeenCondition& s : c.conditions)
    if (s.cls == ConditionClass::profit && s.truth != Truth::yes && s.id != kOff)
      change.ignore_profit.push_back(c.rule->id + "." + s.id);
  auto option = [](const std::string& p) { return "--ignore-profit " + p; };
  std::string text = ferrule::joined(change.ignore_profit, option, " ");
  return flag(std::move(text), "correct, but not expected to pay", std::move(change));
}

/// Targets on which the rule matches here, CPUs and small ones first.
std::vector<std::string> other_targets(const Draft& c, const Observed& o, Attempts& attempts) {
  std::vector<std::string> out;
  for (const std::string& name : target_names(o.options.rule_dirs)) {
    if (name == o.knowledge->target.name) continue;
    auto target = load_target(o.options.rule_dirs, name);
    if (!target || !use_profile(*target, o.options.profile)) continue;
    MatchContext ctx = attempts.context(*c.found.graph);
    ctx.target = &*target;
    ctx.explain = false;
    const Attempt a = match_any(*c.c.rule, c.found.root, ctx);
    if (std::holds_alternative<Match>(a)) out.push_back(name);
  }
  std::ranges::sort(out, {}, [](const std::string& name) {
    return std::tuple(!name.starts_with("cpu"), name.size(), name);
  });
  return out;
}

/// How the model would have to be; nullopt: nothing helps that can be said.
std::optional<Proposal> edit(const Considered& c) {
  const Rejection& r = c.rejection;
  if (r.id == "D2" && r.why.find("nested graph") != r.why.npos)
    return say(Kind::edit, "do not read that value in the nested graph", kOnlyResults);
  if (r.id == "D2")
    return say(Kind::edit, "remove that value from the outputs of the model", kOnlyResults);
  if (!r.hint.empty()) return say(Kind::edit, r.hint);
  if (r.id == "D3" || r.id == "D7" || r.id == "D8" || r.id == "D9" || r.id == "D10")
    return say(Kind::impossible, "nothing: the results would change");
  if (r.id == "D6") return say(Kind::edit, "give the attribute its default value");
  if (r.stage == Rejection::Stage::condition && r.id.ends_with(".target"))
    return say(Kind::impossible, "nothing: no known target has a kernel for it");
  return std::nullopt;
}

/// The value that has other readers is left to the match.
std::optional<Proposal> leave_alone(const Draft& c, const Observed& o) {
  const Graph& g = *c.found.graph;
  std::vector<NodeId> nodes{c.found.root};
  for (const auto& [_, n] : c.found.trace.nodes)
    if (!contains(nodes, n)) nodes.push_back(n);
  Change change;
  change.readers = origins(g, nodes);
  std::vector<ValueId> shared, tail;  // also read by the match, or behind all of it
  for (NodeId n : nodes)
    for (ValueId v : g.node(n).outputs) {
      if (!v) continue;
      const auto inside = std::ranges::count_if(
          g.value(v).uses, [&](const Use& u) { return contains(nodes, u.node); });
      if (inside > 0 && inside < std::ssize(g.value(v).uses)) shared.push_back(v);
      if (inside == 0 && g.value(v).uses.size() > 1) tail.push_back(v);
    }
  const std::vector<ValueId>& found = shared.empty() ? tail : shared;
  if (found.size() == 1) change.alone = g.value(found[0]).name;
  if (change.alone.empty()) return std::nullopt;
  std::string because = kOnlyResults;
  if (o.options.selection.about(kSharing).value_or(true))
    because += fmt::format(
        "; a copy of its producer is merged with it again, unless --disable {} is given", kSharing);
  Proposal out = say(Kind::edit, "let no other node read that value", std::move(because));
  out.change = std::move(change);
  return out;
}

/// Nodes that the pattern takes only where they stand, and that the failed condition speaks of, in
/// order.
std::vector<NodeId> blamed(const Draft& c) {
  std::vector<NodeId> out;
  std::vector<std::string> asked;
  for (const MatchTrace::Asked& a : c.found.trace.conditions)
    if (a.truth == Truth::no && a.condition->expr && a.id == c.found.rejection.id)
      asked = names(*a.condition->expr);
  for (const auto& [call, n] : c.found.trace.nodes)
    if (call->optional && contains(asked, call->label)) out.push_back(n);
  const Graph& g = *c.found.graph;
  std::ranges::sort(out, {}, [&](NodeId n) { return std::pair(g.node(n).order, n.index); });
  return out;
}

/// Taking the nodes that lie between out of the way.
void propose_moves(Draft& c, const std::vector<std::string>& between, const std::string& behind,
                   std::string because = "the exporter's placement decides") {
  Change move;
  move.bypass = between;
  move.behind = behind;
  const std::string names = joined(between);
  c.proposals.push_back({{Kind::edit,
                          fmt::format("move {} after {}", names, escape(behind)),
                          std::move(because),
                          false,
                          {}},
                         move});
  move.behind.clear();
  c.proposals.push_back({{Kind::edit,
                          fmt::format("remove {} from the model", names),
                          "if the model works without",
                          false,
                          {}},
                         move});
}

}  // namespace

bool placed_freely(const Graph& g, NodeId id, const Semantics& ops) {
  const Node& n = g.node(id);
  return is_movement(n) || ops.in_class(n, "quantize");
}

void propose(Draft& c, const Observed& o, Attempts& attempts) {
  Considered& out = c.c;
  const Rejection& r = out.rejection;
  if (!out.rule->enabled) c.proposals.push_back(enable(*out.rule, o));
  if (out.state == Considered::State::off) return;
  if (out.state == Considered::State::lost) {
    if (out.lost_rule.empty() || out.lost_rule == out.rule->id)
      return;  // its own: it has fired, elsewhere
    Change change;
    change.disable = {out.lost_rule};
    c.proposals.push_back(flag("--disable " + out.lost_rule, "then this rule comes first", change));
    return;
  }
  if (r.truth == Truth::unknown && r.stage != Rejection::Stage::guarantee &&
      !r.detail.ends_with(" is absent")) {
    const std::string shapes = shapes_flag(*c.found.graph, r.detail);
    if (!shapes.empty()) c.proposals.push_back(say(Kind::fact, shapes, "then it can be decided"));
    return;
  }
  if (r.stage == Rejection::Stage::condition &&
      r.id == kOff) {  // an override file or a list of instances
    c.proposals.push_back(say(Kind::flag, r.hint));
    return;
  }
  if (r.stage == Rejection::Stage::condition && r.cls == ConditionClass::profit) {
    c.proposals.push_back(ignore_profit(out));
    return;
  }
  if (r.stage == Rejection::Stage::condition && r.cls == ConditionClass::kernel)
    if (const std::vector<std::string> targets = other_targets(c, o, attempts); !targets.empty()) {
      Change change;
      change.target = targets[0];
      std::string because = "it has such a kernel";
      if (targets.size() > 1)
        because += "; so have " + joined({targets.begin() + 1, targets.end()});
      c.proposals.push_back(flag("--target " + targets[0], std::move(because), change));
    }
  if (const std::vector<NodeId> between = blamed(c); !between.empty()) {
    const Graph& g = *c.found.graph;
    const std::vector<std::string> last = origins(g, std::array{c.found.root});
    if (!last.empty())
      propose_moves(c, origins(g, between), last.front(),
                    r.hint.empty() ? "the exporter's placement decides" : r.hint);
    if (!c.proposals.empty()) return;
  }
  const std::vector<NodeId>& path = c.found.path;
  if (!path.empty() && std::ranges::all_of(path.begin() + 1, path.end(), [&](NodeId n) {
        return placed_freely(*c.found.graph, n, o.knowledge->ops);
      })) {
    const Graph& g = *c.found.graph;
    NodeId reader = c.found.root;
    for (const Use& u : g.value(g.output(path.back())).uses)
      for (const auto& [_, n] : c.found.trace.nodes)
        if (u.node == n) reader = n;
    out.path = origins(g, path);
    for (const std::string& n : origins(g, std::array{reader})) out.path.push_back(n);
    std::vector<NodeId> between(path.begin() + 1, path.end());
    const std::vector<std::string> last = origins(g, std::array{reader});
    if (!last.empty()) propose_moves(c, origins(g, between), last.front());
  } else if (r.id == "D1") {
    if (auto p = leave_alone(c, o)) c.proposals.push_back(std::move(*p));
  } else if (r.stage != Rejection::Stage::structure && c.proposals.empty()) {
    if (auto e = edit(out)) c.proposals.push_back(std::move(*e));
  }
}

void try_unlocks(Draft& c, Trials& trials, const std::vector<std::string>& names) {
  for (Proposal& p : c.proposals) {
    Unlock& u = p.unlock;
    if (p.change)
      if (auto tried = trials.layer(*p.change, names)) {
        u.tried = true, u.gives = tried->layer, u.saves = tried->saves;
        c.refuted |= !p.change->alone.empty() && u.gives.empty();
      }
    // What was not seen to help is no advice; a rule that is off would fire, whatever comes of it.
    const bool helps = !p.change || (u.tried ? !u.gives.empty() : !p.change->alone.empty());
    if (helps || c.c.state == Considered::State::off) c.c.unlocks.push_back(std::move(u));
  }
  c.proposals.clear();
  if (c.c.unlocks.empty() && c.refuted)
    c.c.unlocks.push_back(
        {Kind::impossible,
         "more than that: without these readers the rule does not fire here either",
         "",
         false,
         {}});
  if (c.c.unlocks.empty() && !c.c.rejection.hint.empty())
    c.c.unlocks.push_back({Kind::edit, c.c.rejection.hint, "", false, {}});
  if (c.c.unlocks.size() > 1)
    std::erase_if(c.c.unlocks, [](const Unlock& u) { return u.kind == Kind::impossible; });
  std::ranges::stable_sort(c.c.unlocks, {}, [](const Unlock& u) {
    return std::pair(u.kind, u.tried && u.gives.empty());
  });
}

std::vector<Unlock> rules_that_are_off(const Observed& o, Attempts& attempts, Trials& trials,
                                       const std::vector<std::string>& around,
                                       const std::vector<std::string>& names) {
  std::vector<Unlock> out;
  size_t tried = 0;
  for (const auto& rule : o.knowledge->rules.rules) {
    if (rule->enabled || off_type(*rule) || tried == kMostRules) continue;
    const size_t p = phase_of(o.knowledge->rules, *rule);
    if (p >= o.fused.snapshots.size()) continue;
    const Graph& g = *o.fused.snapshots[p].graph;
    bool hit = false;
    for (const std::string& n : around) {
      if (hit) break;
      auto f = attempts.at(*rule, g, attempts.subjects(g, {n}));
      hit = f && f->match;
    }
    if (!hit) continue;
    ++tried;
    Proposal proposal = enable(*rule, o);
    auto layer = trials.layer(*proposal.change, names);
    if (!layer || layer->layer.empty()) continue;
    proposal.unlock.tried = true;
    proposal.unlock.gives = layer->layer;
    proposal.unlock.saves = layer->saves;
    out.push_back(std::move(proposal.unlock));
  }
  return out;
}

}  // namespace ferrule::why
