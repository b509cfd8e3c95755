// What would remove an obstacle: a flag, a fact, or a change of the model; and what removes none,
// said as well.
#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/plan/rule_kinds.h"
#include "engine/rule/text.h"
#include "engine/why/internal.h"

namespace ferrule::why {
namespace {

using Kind = Unlock::Kind;
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
    if (glob_match(d, r.id)) return fmt::format("--disable {} switches it off", d);
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
  std::string text;
  for (const SeenCondition& s : c.conditions)
    if (s.cls == ConditionClass::profit && s.truth != Truth::yes && s.id != kOff)
      change.ignore_profit.push_back(c.rule->id + "." + s.id);
  for (const std::string& p : change.ignore_profit)
    text += (text.empty() ? "" : " ") + ("--ignore-profit " + p);
  return flag(std::move(text), "it would be right, and is expected not to pay", std::move(change));
}

/// The first target on which the rule matches here.
std::optional<std::string> other_target(const Draft& c, const Observed& o, Attempts& attempts) {
  for (const std::string& name : target_names(o.options.rule_dirs)) {
    if (name == o.knowledge->target.name) continue;
    auto target = load_target(o.options.rule_dirs, name);
    if (!target) continue;
    MatchContext ctx = attempts.context(*c.found.graph);
    ctx.target = &*target;
    ctx.explain = false;
    const Attempt a = match_any(*c.c.rule, c.found.root, ctx);
    if (std::holds_alternative<Match>(a)) return name;
  }
  return std::nullopt;
}

/// Inputs whose sizes are open, as --shapes wants them.
std::string open_shapes(const Graph& g) {
  std::string out;
  for (ValueId v : g.inputs()) {
    const Value& value = g.value(v);
    if (!value.type.shape || constant_shape(*value.type.shape)) continue;
    std::string dims;
    for (const Dim& d : *value.type.shape)
      dims += (dims.empty() ? "" : "x") + (d.is_constant() ? d.str() : "<" + d.str() + ">");
    out += (out.empty() ? "" : " ") + fmt::format("--shapes {}:{}", escape(value.name), dims);
  }
  return out;
}

/// How the model would have to be.
Proposal edit(const Considered& c, const Observed& o) {
  const Rejection& r = c.rejection;
  if (r.id == "D1")
    return say(
        Kind::edit,
        "let nothing outside read the inner value, or give the other reader a copy of its own",
        "the value has to be in memory for it");
  if (r.id == "D2")
    return say(Kind::edit, "do not make the inner value a graph output",
               "the value has to be in memory for it");
  if (r.id == "D4" || r.id == "D5")
    return say(Kind::edit, "leave out the operand or result that the pattern does not name");
  if (r.id == "D6") return say(Kind::edit, "give the attribute its default value");
  if (r.id == "D8" || r.id == "D3" || r.id == "D7" || r.id == "D9")
    return say(Kind::impossible, "nothing: the result would be another");
  if (!r.hint.empty()) return say(Kind::edit, r.hint);
  if (r.stage == Rejection::Stage::condition && r.cls == ConditionClass::kernel)
    return say(Kind::impossible,
               fmt::format("nothing here: {} has no kernel for it", o.knowledge->target.name));
  return say(Kind::impossible, "another model: the condition is what makes the rule right");
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
                          fmt::format("put {} behind {}", names, escape(behind)),
                          std::move(because),
                          false,
                          {}},
                         move});
  move.behind.clear();
  c.proposals.push_back({{Kind::edit,
                          fmt::format("take {} out of the model", names),
                          "if the model may do without",
                          false,
                          {}},
                         move});
}

}  // namespace

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
    c.proposals.push_back(
        flag("--disable " + out.lost_rule, "then this rule has its turn", change));
    return;
  }
  if (r.truth == Truth::unknown && r.stage != Rejection::Stage::guarantee) {
    const std::string shapes = open_shapes(*o.model);
    c.proposals.push_back(
        shapes.empty()
            ? say(Kind::fact, "nothing that a flag could say: the model computes it", r.why)
            : say(Kind::fact, shapes, "with the sizes known the condition can be decided"));
    return;
  }
  if (r.stage == Rejection::Stage::condition &&
      r.id == kOff) {  // an override file or a list of instances
    c.proposals.push_back(say(Kind::flag, r.hint, r.why));
    return;
  }
  if (r.stage == Rejection::Stage::condition && r.cls == ConditionClass::profit) {
    c.proposals.push_back(ignore_profit(out));
    return;
  }
  if (r.stage == Rejection::Stage::condition && r.cls == ConditionClass::kernel)
    if (auto target = other_target(c, o, attempts)) {
      Change change;
      change.target = *target;
      c.proposals.push_back(flag("--target " + *target, "its kernels can do this", change));
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
  if (!path.empty()) {
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
  } else if (r.stage != Rejection::Stage::structure && c.proposals.empty()) {
    c.proposals.push_back(edit(out, o));
  }
}

void try_unlocks(Draft& c, Trials& trials, const std::vector<std::string>& names) {
  for (Proposal& p : c.proposals) {
    if (p.change) {
      if (auto layer = trials.layer(*p.change, names))
        p.unlock.tried = true, p.unlock.gives = *layer;
      // A change of the model that cannot be made, or gives nothing, is no advice.
      if (p.unlock.kind == Kind::edit && p.unlock.tried && p.unlock.gives.empty()) continue;
    }
    c.c.unlocks.push_back(std::move(p.unlock));
  }
  c.proposals.clear();
  if (c.c.unlocks.empty() && !c.c.rejection.hint.empty())
    c.c.unlocks.push_back({Kind::edit, c.c.rejection.hint, "", false, {}});
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
    if (!layer || layer->empty()) continue;
    proposal.unlock.tried = true;
    proposal.unlock.gives = *layer;
    out.push_back(std::move(proposal.unlock));
  }
  return out;
}

}  // namespace ferrule::why
