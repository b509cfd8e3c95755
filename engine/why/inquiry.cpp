// Every rule asked about one node or two: at the end of its phase, where it did not fire any more,
// and at the beginning, where it might have; what lay between says who was first.
#include "engine/why/inquiry.h"
#include "engine/base/join.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "engine/base/diagnostics.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/rule/text.h"

namespace ferrule::why {
namespace {

constexpr size_t kDetailed =
    6;  // rules of an answer whose unlocks are tried and whose history is looked up

bool takes(const Step& s, const std::set<std::string>& nodes) {
  return std::ranges::any_of(s.before, [&](const std::string& n) { return nodes.contains(n); });
}
std::set<std::string> node_names(const Graph& g, const Match& m) {
  std::set<std::string> out;
  for (NodeId n : m.nodes) out.insert(g.node(n).name);
  return out;
}
std::string step_text(const Step& s, size_t k) {
  return fmt::format("step {} ({}): {}", k + 1, s.rule.empty() ? "constant folding" : s.rule,
                     escape(s.text));
}

}  // namespace

const Step* Inquiry::State::lost_to(const Match& m, const Graph& g, size_t phase,
                                    std::string& text) const {
  const auto& snaps = o.fused.snapshots;
  const std::set<std::string> nodes = node_names(g, m);
  for (size_t k = snaps[phase].steps; k < snaps[phase + 1].steps; ++k)
    if (const Step& s = o.fused.journal.steps[k]; takes(s, nodes)) {
      text = step_text(s, k);
      return &s;
    }
  return nullptr;
}

/// A match that was made, and rolled back: the replacement would have changed a type, a shape or
/// the kind of a number.
bool Inquiry::State::declined(const Rule& rule, const Found& f, Rejection& why) const {
  for (const Rejection& r : o.fused.near_misses)
    if (r.rule == &rule && r.root == f.root &&
        (r.id == "D7" || r.id == "D9" || r.id == "D10" || r.id == "replacement")) {
      why = r;
      return true;
    }
  return false;
}

/// Of a node where a structure failed and that the model's opset defines by several: which these
/// are.
std::string Inquiry::State::meaning(const Found& f, const Rule& rule,
                                    const std::vector<std::string>& asked) {
  if (f.rejection.stage != Rejection::Stage::structure) return "";
  const NodeId at = failed_at(f);
  std::string name =
      at && !f.graph->node(at).origins.empty() ? f.graph->node(at).origins.front() : "";
  auto several = [&](const std::string& n) {
    return attempts.origin_index(*o.model).of(n).size() > 1;
  };
  if (rule.kind == RuleKind::region)  // it fails at none of them
    for (const std::string& n : asked)
      if (several(n)) name = n;
  const std::vector<NodeId>& parts = attempts.origin_index(*o.model).of(name);
  if (parts.size() < 2) return "";
  std::string text;
  for (NodeId n : parts) {
    const Node& node = o.model->node(n);
    const Attr* axis = node.attrs.find("axis");
    text += (text.empty() ? "" : ", ") + node.op.text() +
            (axis ? fmt::format(" (axis {})", str(*axis)) : "");
  }
  return fmt::format("; the model's opset defines {} as {}", escape(name), text);
}

/// Of a number that the pattern wants where another value is: which node reads it.
std::string Inquiry::State::read_by(const Found& f) const {
  const MatchTrace& t = f.trace;
  if (f.rejection.stage != Rejection::Stage::structure || !t.failed || !t.value ||
      t.failed->kind == PatternExpr::Kind::call)
    return "";
  const auto& uses = f.graph->value(t.value).uses;
  return uses.size() == 1 ? ", as an operand of " + node_text(*f.graph, uses[0].node) : "";
}

/// Of a node in the place of one that the rule wants: that it is there, right in front of it.
std::string Inquiry::State::stands_between(const Found& f, const Rule& rule) const {
  const MatchTrace& t = f.trace;
  const Graph& g = *f.graph;
  if (rule.kind != RuleKind::window || f.rejection.stage != Rejection::Stage::structure ||
      !t.failed || !f.path.empty())
    return "";
  const NodeId at = failed_at(f);
  if (!at || g.node(at).outputs.size() != 1) return "";
  auto taken = [&](const PatternExpr* e) {
    return std::ranges::any_of(t.nodes, [&](const auto& n) { return n.first == e; });
  };
  for (ValueId v : g.node(at).inputs) {
    const NodeId front = v ? g.value(v).producer : NodeId();
    if (!front) continue;
    for (const PatternLine& l : rule.match.lines)
      if (const PatternExpr& e = *l.expr; e.kind == PatternExpr::Kind::call && !e.ops.empty() &&
                                          !taken(&e) &&
                                          has_head(g.node(front), e.ops, {}, o.knowledge->ops))
        for (const Use& u : g.value(g.output(at)).uses)
          return fmt::format("; it stands between {} and {}, which the rule takes",
                             node_text(g, front), node_text(g, u.node));
  }
  return "";
}

/// Which override file set the numbers that a condition compares with.
std::string Inquiry::State::overridden(const Rule& rule, const Rejection& r) const {
  if (r.stage != Rejection::Stage::condition) return "";
  std::string out;
  for (const auto* where : {&rule.where, &rule.region.where})
    for (const Condition& c : *where) {
      if (c.id != r.id || !c.expr) continue;
      const std::vector<std::string> asked = ferrule::names(*c.expr);
      for (const Override& e : o.knowledge->overrides)
        for (const Override::Setting& s : e.set)
          if (e.concerns(o.knowledge->target) && e.means(rule) && contains(asked, s.name))
            out += fmt::format("; {} sets {} to {}", e.place(), s.name, escape(s.value.text));
    }
  return out;
}

std::optional<Draft> Inquiry::State::consider(const Rule& rule,
                                              const std::vector<std::string>& asked, bool fired) {
  const auto& snaps = o.fused.snapshots;
  const size_t p = phase_of(o.knowledge->rules, rule);
  if (p + 1 >= snaps.size()) return std::nullopt;
  const Graph &start = *snaps[p].graph, &end = *snaps[p + 1].graph;
  auto last = attempts.at(rule, end, attempts.subjects(end, asked));
  std::optional<Found> first;
  if (&start != &end) first = attempts.at(rule, start, attempts.subjects(start, asked));
  Draft c;
  c.c.rule = &rule;
  if (first && first->match && rule.enabled) {
    const Step* taken = fired ? nullptr : lost_to(*first->match, start, p, c.c.lost_to);
    if (taken) {
      c.c.lost_rule = taken->rule;
      c.c.state = Considered::State::lost;
      c.found = std::move(*first);
      c.found.failures = 1;
      return c;
    }
    first.reset();
  }
  if (!rule.enabled)
    for (auto* f : {&first, &last})
      if (*f && (*f)->match) {
        c.c.state = Considered::State::off;
        c.found = std::move(**f);
        return c;
      }
  if (last && last->match) {
    if (!declined(rule, *last, last->rejection))
      last.reset();
    else
      last->match.reset(), last->failures = 1;
  }
  // What the rule said while its nodes were still there says more than that they are gone.
  const Graph* at = &end;
  if (first && (!last || first->failures < last->failures)) last = std::move(first), at = &start;
  if (!last || last->match) return std::nullopt;
  c.found = std::move(*last);
  c.found.rejection.why += read_by(c.found) + stands_between(c.found, rule) +
                           meaning(c.found, rule, asked) + overridden(rule, c.found.rejection);
  if (at == &start && &start != &end) {
    std::set<std::string> nodes;
    for (const auto& [_, n] : c.found.trace.nodes) nodes.insert(start.node(n).name);
    for (size_t k = snaps[p].steps; k < snaps[p + 1].steps && c.c.taken_by.empty(); ++k)
      if (const Step& s = o.fused.journal.steps[k]; takes(s, nodes)) {
        // The rule has them, in their right places: in these it did not want them.
        if (s.rule == rule.id && c.found.rejection.stage == Rejection::Stage::structure)
          return std::nullopt;
        c.c.taken_by = step_text(s, k);
      }
  }
  return c;
}

int64_t Inquiry::State::bytes_between(const Draft& c, const std::vector<std::string>& names) {
  const Graph& g = *c.found.graph;
  std::set<NodeId> inside;
  if (c.found.match) {
    inside.insert(c.found.match->nodes.begin(), c.found.match->nodes.end());
  } else {
    for (const auto& [_, n] : c.found.trace.nodes) inside.insert(n);
    inside.insert(c.found.trace.members.begin(), c.found.trace.members.end());
    if (c.found.rejection.root) inside.insert(c.found.rejection.root);
  }
  for (const auto& s : attempts.subjects(g, names)) inside.insert(s.begin(), s.end());
  const RegionSpec& tail = c.c.rule->region;
  if (c.c.rule->kind == RuleKind::absorb && !c.found.match)  // what might have begun the tail
    for (const auto& [_, n] : c.found.trace.nodes)
      for (ValueId v : g.node(n).outputs)
        if (v)
          for (const Use& u : g.value(v).uses)
            if (has_head(g.node(u.node), tail.ops, tail.classes, o.knowledge->ops))
              inside.insert(u.node);
  std::map<NodeId, std::set<size_t>> at;  // -> the layers that it became part of
  for (NodeId n : inside)
    for (const std::string& name : g.node(n).origins)
      if (auto it = layers.find(name); it != layers.end())
        at[n].insert(it->second.begin(), it->second.end());
  auto apart = [&](NodeId a, NodeId b) {
    const auto &x = at[a], &y = at[b];
    return !x.empty() && !y.empty() &&
           std::ranges::none_of(x, [&](size_t layer) { return y.contains(layer); });
  };
  auto size = [&](ValueId v) { return std::max<int64_t>(sizes.bytes(g.value(v).type), 0); };
  int64_t total = 0;
  for (NodeId n : inside)
    for (ValueId v : g.node(n).outputs) {
      if (!v) continue;
      bool outside = g.value(v).is_output;
      std::set<NodeId> readers;
      for (const Use& u : g.value(v).uses)
        if (!inside.contains(u.node))
          outside = true;
        else if (apart(n, u.node))
          readers.insert(u.node);
      if (readers.empty()) continue;
      total += size(v) * (static_cast<int64_t>(readers.size()) + (outside ? 0 : 1));
    }
  const RuleKind kind = c.c.rule->kind;
  if (kind == RuleKind::merge && total == 0 && c.found.root)  // one reads what each would read
    for (ValueId v : g.node(c.found.root).inputs)
      if (v && !g.constant(v)) return size(v);
  if (kind == RuleKind::place && c.found.root)
    for (ValueId v : g.node(c.found.root).outputs)
      if (v) total += 2 * size(v);
  return total;
}

int64_t Inquiry::State::bytes_of(const std::vector<std::string>& path) const {
  int64_t most = 0;
  for (size_t k = 0; k + 1 < path.size(); ++k)
    if (const NodeId n = o.model->find_node(path[k]))
      for (ValueId v : o.model->node(n).outputs)
        if (v) most = std::max(most, sizes.bytes(o.model->value(v).type));
  return most;
}

std::string reason(const Considered& c) {
  const std::string& id = c.rule->id;
  switch (c.state) {
    case Considered::State::off:
      return fmt::format(
          "{} would fuse it, but is off{}", id,
          c.unlocks.empty() || c.unlocks[0].because.empty() ? "" : ": " + c.unlocks[0].because);
    case Considered::State::lost:
      return c.lost_rule == id
                 ? fmt::format("{} fired first on other nodes: {}", id, c.lost_to)
                 : fmt::format("{} matches, but {} was first: {}", id,
                               c.lost_rule.empty() ? "folding" : c.lost_rule, c.lost_to);
    case Considered::State::refused:
      break;
  }
  std::string text = fmt::format("{} declined: {}", id, c.rejection.why);
  if (!c.taken_by.empty())
    text += "; then its nodes were taken by " + c.taken_by;
  else if (!c.history.empty())
    text += "; it " + c.history;
  return text;
}

bool for_others(const Draft& c, const Subjects& subjects, const Semantics& ops) {
  constexpr size_t kOfOthers = 2;  // nodes that a rule for others may have taken
  const MatchTrace& t = c.found.trace;
  if (subjects.size() != 2 || c.c.state != Considered::State::refused ||
      c.found.rejection.stage != Rejection::Stage::structure || !t.failed)
    return false;
  const Graph& g = *c.found.graph;
  if (!c.found.path
           .empty()) {  // both stand between nodes that the rule takes, and are none of them
    auto taken = [&](NodeId n) {
      return n == c.found.path.front() || n == c.found.root ||
             std::ranges::any_of(t.nodes, [&](const auto& x) { return x.second == n; });
    };
    return std::ranges::none_of(subjects,
                                [&](const auto& s) { return std::ranges::any_of(s, taken); });
  }
  if (t.nodes.size() > kOfOthers) return false;
  if (t.failed->kind != PatternExpr::Kind::call)  // a constant is wanted of two computed operands
    return c.c.rule->kind == RuleKind::rewrite && t.value && g.value(t.value).producer &&
           std::ranges::any_of(g.value(t.value).uses, [&](const Use& u) {
             const Node& n = g.node(u.node);
             return ops.in_class(n, "pointwise") && n.inputs.size() == 2 &&
                    std::ranges::none_of(n.inputs, [&](ValueId v) { return g.constant(v); });
           });
  const NodeId at = failed_at(c.found);
  if (!at) return t.value && g.value(t.value).is_input;  // where the model begins
  return !has_head(g.node(at), t.failed->ops, t.failed->classes, ops) &&
         std::ranges::any_of(subjects, [&](const auto& s) { return contains(s, at); });
}

std::vector<Draft> Inquiry::State::candidates(const std::vector<std::string>& asked,
                                              const Rule* only,
                                              const std::vector<std::string>& path) {
  std::vector<Draft> out;
  std::set<std::string>
      fired;  // on the node; a pair that a rule took together is no pair to ask about
  for (const std::string& n : asked)
    for (size_t k : outcome(n).steps)
      if (const Step& s = o.fused.journal.steps[k]; asked.size() == 1 || s.kind == "place")
        fired.insert(s.rule);
  for (const auto& rule : o.knowledge->rules.rules) {
    if (only ? rule.get() != only : off_type(*rule)) continue;
    auto c = consider(*rule, asked, fired.contains(rule->id));
    if (!c) continue;
    describe(*c);
    if (!only && (for_others(*c, attempts.subjects(*c->found.graph, asked), o.knowledge->ops) ||
                  !concerns(*c, o, attempts.subjects(*c->found.graph, asked), path)))
      continue;
    c->c.bytes = bytes_between(*c, asked);
    propose(*c, o, attempts);
    c->worth = worth(*c, o.knowledge->target);
    out.push_back(std::move(*c));
  }
  std::ranges::stable_sort(out, leads);
  // Of structures that do not fit, those that would win nothing are noise.
  if (!only && path.empty())
    std::erase_if(out, [](const Draft& c) {
      // Two rewrites for one node: that which came first did what there was to do.
      if (c.c.state == Considered::State::lost && c.c.rule->kind == RuleKind::rewrite &&
          c.worth == 0)
        return true;
      return c.worth == 0 && c.c.state == Considered::State::refused &&
             c.found.rejection.stage == Rejection::Stage::structure && c.found.failures > 101;
    });
  return out;
}

std::vector<Draft> Inquiry::State::not_removed(const std::vector<std::string>& asked,
                                               int64_t bytes) {
  std::vector<Draft> out;
  for (const std::string& n : asked) {
    if (!interpreted(n)) continue;
    for (const auto& rule : o.knowledge->rules.rules) {
      if (rule->kind != RuleKind::rewrite || off_type(*rule) || pattern_nodes(*rule) > 1) continue;
      auto c = consider(*rule, {n}, false);
      if (!c || c->c.state != Considered::State::refused) continue;
      const PatternExpr* want = c->found.trace.failed;
      const bool number = want && want->kind == PatternExpr::Kind::number;
      if (c->found.rejection.stage != Rejection::Stage::condition && !number) continue;
      describe(*c);
      c->c.bytes = bytes;
      propose(*c, o, attempts);
      c->worth = static_cast<double>(bytes);
      out.push_back(std::move(*c));
    }
  }
  return out;
}

bool Inquiry::State::in_own_layer(const Draft& c, const std::vector<std::string>& names) const {
  std::vector<NodeId> took{c.found.root};
  for (const auto& [_, n] : c.found.trace.nodes) took.push_back(n);
  const std::vector<std::string> all = origins(*c.found.graph, took);
  auto inside = [&](const std::string& n, size_t l) {
    auto it = layers.find(n);
    return it != layers.end() && contains(it->second, l);
  };
  if (all.empty() || !layers.contains(all[0])) return false;
  return std::ranges::any_of(layers.find(all[0])->second, [&](size_t l) {
    return o.plan.layers[l].nodes.size() > 1 && anchored(o.plan.layers[l].contract) &&
           std::ranges::all_of(all, [&](const std::string& n) { return inside(n, l); }) &&
           !std::ranges::all_of(names, [&](const std::string& n) { return inside(n, l); });
  });
}

bool Inquiry::State::prepares(const Draft& c, const std::vector<std::string>& path) const {
  const Rule& rewrite = *c.c.rule;
  if (pattern_nodes(rewrite) > 1 || rewrite.rewrite.lines.empty()) return true;
  const PatternExpr& to = *rewrite.rewrite.lines.back().expr;
  if (to.kind != PatternExpr::Kind::call || to.ops.size() != 1) return true;
  const Semantics& known = o.knowledge->ops;
  Node made;
  made.op = to.ops[0];
  for (const char* of_regions : {"pointwise", "row", "movement"})
    if (known.in_class(made, of_regions)) return true;
  const std::vector<std::string> names = origins(*c.found.graph, std::array{c.found.root});
  for (size_t k = 0; k < path.size(); ++k) {
    if (!contains(names, path[k])) continue;
    const NodeId front = k ? o.model->find_node(path[k - 1]) : NodeId(),
                 behind = k + 1 < path.size() ? o.model->find_node(path[k + 1]) : NodeId();
    for (const auto& rule : o.knowledge->rules.rules) {
      const bool absorbs = rule->kind == RuleKind::absorb;
      if ((!absorbs && rule->kind != RuleKind::window) || !rule->enabled ||
          !o.knowledge->target.contracts.contains(rule->contract))
        continue;
      auto in_order = [&](const Node& first, const Node& then) {
        return std::ranges::any_of(rule->match.lines, [&](const PatternLine& l) {
          return feeds(*rule, *l.expr, first, then, known);
        });
      };
      if ((front && in_order(o.model->node(front), made)) ||
          (behind && in_order(made, o.model->node(behind))))
        return true;
    }
  }
  return false;
}

std::vector<Draft> Inquiry::State::at_one_end(const std::vector<std::string>& names,
                                              const Rule* only,
                                              const std::vector<std::string>& path, int64_t bytes) {
  std::vector<Draft> out;
  for (const std::string& n : names)
    for (Draft& c : candidates({n}, only, path)) {
      const Graph& g = *c.found.graph;
      if (c.c.state != Considered::State::refused) continue;
      if (std::ranges::any_of(out, [&](const Draft& x) { return x.c.rule == c.c.rule; })) continue;
      auto on_path = [&](NodeId id) {
        return id && std::ranges::any_of(origins(g, std::array{id}), [&](const std::string& name) {
                 return contains(path, name);
               });
      };
      const MatchTrace& t = c.found.trace;
      const NodeId at = failed_at(c.found);
      const bool fuses = c.c.rule->kind == RuleKind::absorb || c.c.rule->kind == RuleKind::window;
      // Of a path through two layers the edge between them is asked about, and its ends were.
      const bool end =
          at && std::ranges::any_of(std::array{names[0], names[1], path.front(), path.back()},
                                    [&](const auto& n) { return contains(g.node(at).origins, n); });
      // Both may be nodes of its pattern, whichever they are.
      const bool both = std::ranges::all_of(names, [&](const std::string& n) {
        const NodeId id = o.model->find_node(n);
        const RegionSpec& tail = c.c.rule->region;
        return !id || has_head(o.model->node(id), tail.ops, tail.classes, o.knowledge->ops) ||
               std::ranges::any_of(c.c.rule->match.lines, [&](const PatternLine& l) {
                 return calls(*l.expr, o.model->node(id), o.knowledge->ops);
               });
      });
      const bool between =
          fuses && t.failed && on_path(at) && !end && c.c.matched_nodes > 0 && both;
      // A node of the right kind but for an operand, a result or an attribute.
      const std::string& id = c.found.rejection.id;
      const bool but_for = t.node && (id == "D4" || id == "D5" || id == "D6");
      const bool structural = c.found.rejection.stage == Rejection::Stage::structure;
      const NodeId where = but_for ? t.node : structural ? at : NodeId();
      const bool recognised = recognises(*c.c.rule) && value_missed(c, o.knowledge->ops) &&
                              on_path(c.found.root) && (!where || on_path(where)) &&
                              !in_own_layer(c, names) && prepares(c, path);
      if (!between && !recognised) continue;
      // What matches but for a number was meant to be it, the surer the more it matches.
      const int matched = c.c.matched_nodes;
      const double chance = between ? 0.12 : matched >= 4 ? 0.4 : matched >= 2 ? 0.1 : 0.005;
      c.worth = std::max(c.worth, chance * static_cast<double>(bytes));
      out.push_back(std::move(c));
    }
  return out;
}

std::vector<Draft> Inquiry::State::where_regions_end(const std::vector<std::string>& path) {
  std::vector<Draft> out;
  auto apart = [&](const std::string& a, const std::string& b) {
    const auto x = layers.find(a), y = layers.find(b);
    return x != layers.end() && y != layers.end() &&
           std::ranges::none_of(x->second, [&](size_t l) { return contains(y->second, l); });
  };
  for (const auto& rule : o.knowledge->rules.rules) {
    if (rule->kind != RuleKind::region || !rule->enabled || off_type(*rule)) continue;
    const RegionSpec& spec = rule->region;
    const bool all = std::ranges::all_of(path, [&](const std::string& n) {
      const NodeId id = o.model->find_node(n);
      return id &&
             (has_head(o.model->node(id), spec.ops, spec.classes, o.knowledge->ops) ||
              has_head(o.model->node(id), spec.around_ops, spec.around_classes, o.knowledge->ops));
    });
    for (size_t k = 0; all && k + 1 < path.size(); ++k) {
      if (!apart(path[k], path[k + 1])) continue;
      std::vector<Draft> said = candidates({path[k], path[k + 1]}, rule.get());
      if (said.empty()) continue;
      out.push_back(std::move(said[0]));
      break;
    }
  }
  return out;
}

/// Where the rule would have matched earlier, and the step that ended it.
std::string Inquiry::State::history(const Rule& rule, const std::vector<std::string>& asked) {
  const auto& snaps = o.fused.snapshots;
  for (size_t k = phase_of(o.knowledge->rules, rule); k-- > 0;) {
    const Graph& g = *snaps[k].graph;
    if (k + 1 < snaps.size() && snaps[k + 1].graph == snaps[k].graph) continue;
    auto f = attempts.at(rule, g, attempts.subjects(g, asked));
    if (!f || !f->match) continue;
    const std::set<std::string> nodes = node_names(g, *f->match);
    for (size_t s = snaps[k].steps; s < o.fused.journal.steps.size(); ++s)
      if (takes(o.fused.journal.steps[s], nodes))
        return "would have matched before " + step_text(o.fused.journal.steps[s], s);
  }
  return "";
}

/// The rule, although it has nothing to do with the node where its phase begins.
std::vector<Draft> Inquiry::State::far(const Rule& rule, const std::string& name) {
  std::vector<Draft> out;
  const size_t p = phase_of(o.knowledge->rules, rule);
  if (p >= o.fused.snapshots.size()) return out;
  const Graph& g = *o.fused.snapshots[p].graph;
  const Subjects subjects = attempts.subjects(g, {name});
  const bool fired = std::ranges::any_of(
      outcome(name).steps, [&](size_t k) { return o.fused.journal.steps[k].rule == rule.id; });
  if (fired || subjects[0].empty()) return out;
  Draft& c = out.emplace_back();
  c.c.rule = &rule;
  c.found = attempts.far(rule, g, subjects[0]);
  describe(c);
  for (auto& line : c.c.lines) line.state = SeenLine::State::unseen;
  if (!c.found.path.empty()) {
    c.c.path = origins(g, c.found.path);
    c.c.path.push_back(name);
  }
  return out;
}

std::vector<Considered> Inquiry::State::detailed(std::vector<Draft> all,
                                                 const std::vector<std::string>& asked, size_t most,
                                                 Trials& trials) {
  std::vector<Considered> out;
  Trials none(o, sizes, 0);
  for (size_t k = 0; k < all.size(); ++k) {
    Draft& c = all[k];
    if (k < most && c.c.state == Considered::State::refused && c.c.taken_by.empty() &&
        c.c.rejection.stage == Rejection::Stage::structure)
      c.c.history = history(*c.c.rule, asked);
    const bool flags = std::ranges::any_of(c.proposals, [](const Proposal& p) {
      return p.change && p.unlock.kind == Unlock::Kind::flag;
    });
    try_unlocks(c, k < most ? trials : none, asked);
    // A flag that was tried and does not help was no chance.
    const bool helped = std::ranges::any_of(
        c.c.unlocks, [](const Unlock& u) { return u.kind == Unlock::Kind::flag; });
    if (k < most && flags && !helped) c.worth *= 0.3;
    if (c.refuted) c.worth *= 0.1;
  }
  std::ranges::stable_sort(all.begin(), all.begin() + static_cast<long>(std::min(most, all.size())),
                           leads);
  const double best = all.empty() ? 0 : all[0].worth;
  for (Draft& c : all) {
    c.c.level = best > 0 && c.worth >= 0.75 * best;
    out.push_back(std::move(c.c));
  }
  return out;
}

Result<const Rule*> Inquiry::State::rule(std::string_view id) const {
  if (id.empty()) return nullptr;
  if (const Rule* r = o.knowledge->rules.find(id)) return r;
  std::vector<std::string> known;
  for (const auto& r : o.knowledge->rules.rules) known.push_back(r->id);
  auto e = error(Code::rule_unknown, "--rule", escape(id));
  if (std::string hint = did_you_mean(id, known); !hint.empty()) e.value().hint = hint;
  return e;
}

/// A larger operator that is written out, all of it, but for a number: it was meant to be that, and
/// rules that would take it do not see it.
static void meant(std::vector<Draft>& all, const Semantics& ops) {
  constexpr int kSure = 4;  // nodes that are as the pattern has them
  int64_t bytes = 0;
  for (const Draft& c : all) bytes = std::max(bytes, c.c.bytes);
  for (Draft& c : all)
    if (c.c.state == Considered::State::refused && recognises(*c.c.rule) && value_missed(c, ops) &&
        c.c.matched_nodes >= kSure)
      c.worth = std::max(c.worth, 0.75 * static_cast<double>(bytes));
  std::ranges::stable_sort(all, leads);
}

Result<NodeAnswer> Inquiry::node(std::string_view asked, std::string_view rule, int tries) {
  State& s = *state_;
  FERRULE_ASSIGN(std::string name, resolve(asked));
  FERRULE_ASSIGN(const Rule* only, s.rule(rule));
  NodeAnswer out;
  out.outcome = s.outcome(name);
  if (out.outcome.kind != Outcome::Kind::layer && !only) return out;
  if (out.outcome.kind == Outcome::Kind::constant || out.outcome.kind == Outcome::Kind::nested)
    return out;
  const std::vector<std::string> names{name};
  Trials trials(s.o, s.sizes, tries);
  std::vector<Draft> all = s.candidates(names, only);
  meant(all, s.o.knowledge->ops);
  if (all.empty() && !only) all = s.not_removed(names, 0);
  if (all.empty() && only && out.outcome.kind == Outcome::Kind::layer) all = s.far(*only, name);
  std::vector<std::string> around = names;
  for (const Draft& c : all)
    for (const std::string& n : c.c.path)
      if (!contains(around, n) && around.size() < 8) around.push_back(n);
  if (tries > 0) out.unlocks = rules_that_are_off(s.o, s.attempts, trials, around, names);
  out.considered = s.detailed(std::move(all), names, tries > 0 ? kDetailed : 0, trials);
  if (out.considered.empty() && !only) out.otherwise = s.otherwise(names);
  return out;
}

}  // namespace ferrule::why
