// Rules matched again on a kept graph, at one node of the model or at two. Roots are looked for
// around the nodes asked about: behind them as deep as the pattern is, in front of them for rules
// whose anchor takes what follows.
#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/plan/match_any.h"
#include "engine/why/internal.h"

namespace ferrule::why {
namespace {

constexpr int kDeepest = 8;        // lines of a pattern behind which a root is looked for
constexpr size_t kMostRoots = 48;  // a value with a thousand readers has a thousand roots behind it
constexpr int kTail =
    2;  // how far in front of a node its anchor may stand: tails are groups by then
constexpr int kStructure =
    100;  // failures of a structure that does not fit, before its missing nodes
constexpr int kElsewhere = 20;   // … and the reason is nothing that was asked about
constexpr size_t kFarthest = 6;  // nodes between where the pattern looked and what it wants

/// Nodes a call cannot do without: an optional one passes its first operand, of alternatives the
/// shortest counts.
int required(const PatternExpr& e) {
  int count = 0;
  switch (e.kind) {
    case PatternExpr::Kind::call:
      for (const auto& a : e.args) count += required(*a);
      return count + (e.optional ? 0 : 1);
    case PatternExpr::Kind::alternatives: {
      for (size_t k = 0; k < e.choices.size(); ++k)
        count =
            k ? std::min(count, required(*e.choices[k].second)) : required(*e.choices[k].second);
      return count;
    }
    default:
      return 0;
  }
}

/// Nodes that a match has at most.
int calls(const PatternExpr& e) {
  int count = 0, most = 0;
  for (const auto& a : e.args) count += calls(*a);
  for (const auto& c : e.choices) most = std::max(most, calls(*c.second));
  return count + most + (e.kind == PatternExpr::Kind::call ? 1 : 0);
}
int calls(const Rule& rule) {
  int count = 0;
  for (const PatternLine& l : rule.match.lines) count += calls(*l.expr);
  return std::max(count, 1);
}

/// What the attempt looked at.
std::vector<NodeId> touched(const Graph& g, const Rejection& r, const MatchTrace& t) {
  std::vector<NodeId> out{r.root};
  for (const auto& [_, n] : t.nodes) out.push_back(n);
  out.insert(out.end(), t.members.begin(), t.members.end());
  if (t.node) out.push_back(t.node);
  if (t.value && g.value(t.value).producer) out.push_back(g.value(t.value).producer);
  return out;
}

/// Operands of a node that is the right one but for an attribute, an operand or a result: those
/// that the pattern would have taken next.
void would_take(const Graph& g, const Rule& rule, const MatchTrace& t, const Semantics& ops,
                std::vector<NodeId>& out) {
  if (!t.failed || t.failed->kind != PatternExpr::Kind::call || !t.node) return;
  const Node& n = g.node(t.node);
  if (!has_head(n, t.failed->ops, t.failed->classes, ops)) return;
  for (ValueId v : n.inputs)
    if (const NodeId from = v ? g.value(v).producer : NodeId())
      if (std::ranges::any_of(t.failed->args, [&](const auto& arg) {
            return may_be(rule, *arg, g.node(from), ops);
          }))
        out.push_back(from);
}

bool better(const std::optional<Found>& a, const Found& b) {
  if (!a) return true;
  if (a->failures != b.failures) return b.failures < a->failures;
  return b.rejection.matched_nodes > a->rejection.matched_nodes;
}

/// The node, and those behind (or in front of) it up to `depth` edges away.
std::vector<NodeId> around(const Graph& g, const std::vector<NodeId>& start, int depth,
                           bool behind) {
  std::vector<NodeId> out = start;
  size_t level = 0;
  for (int d = 0; d < depth && out.size() < kMostRoots; ++d) {
    const size_t end = out.size();
    auto add = [&](NodeId n) {
      if (out.size() < kMostRoots && n && !contains(out, n)) out.push_back(n);
    };
    for (; level < end; ++level) {
      const Node& n = g.node(out[level]);
      if (behind) {
        for (ValueId v : n.outputs)
          if (v)
            for (const Use& u : g.value(v).uses) add(u.node);
      } else {
        for (ValueId v : n.inputs)
          if (v) add(g.value(v).producer);
      }
    }
  }
  return out;
}

}  // namespace

static bool meets(std::span<const NodeId> nodes, std::span<const NodeId> others) {
  return std::ranges::any_of(others, [&](NodeId n) { return contains(nodes, n); });
}
bool all_meet(const Subjects& subjects, std::span<const NodeId> nodes) {
  return std::ranges::all_of(subjects, [&](const auto& s) { return meets(nodes, s); });
}

NodeId failed_at(const Found& f) {
  return f.trace.value ? f.graph->value(f.trace.value).producer : f.trace.node;
}

int failures(const Rule& rule, const Rejection& r, const MatchTrace& t) {
  if (r.stage == Rejection::Stage::structure)
    return kStructure + std::max(1, pattern_nodes(rule) - r.matched_nodes);
  if (r.stage == Rejection::Stage::guarantee) return 1;
  const auto failed =
      std::ranges::count_if(t.conditions, [](const auto& c) { return c.truth != Truth::yes; });
  return std::max(1, static_cast<int>(failed));
}

/// Whether the structure failed at something that lies apart from the nodes asked about: for one
/// node, that the pattern took others and not it; for two, that both fit and a third does not.
static bool elsewhere(const Found& f, const Subjects& subjects, const std::vector<NodeId>& inside) {
  if (!f.path.empty()) return false;
  const NodeId at = failed_at(f);
  if (subjects.size() == 1) return !at || !meets(inside, subjects[0]);
  return std::ranges::none_of(subjects, [&](const auto& s) { return contains(s, at); });
}

std::vector<NodeId> path_to(const Graph& g, const Found& f, const Semantics& ops) {
  const PatternExpr* want = f.trace.failed;
  const NodeId at = failed_at(f);
  if (!want || want->kind != PatternExpr::Kind::call || !at) return {};
  std::vector<std::pair<NodeId, size_t>> seen{{at, 0}};  // and through which entry it was reached
  for (size_t k = 0; k < seen.size() && k < 64; ++k) {
    const NodeId n = seen[k].first;
    if (k > 0 && has_head(g.node(n), want->ops, want->classes, ops)) {
      std::vector<NodeId> path;
      for (size_t i = k; i != 0; i = seen[i].second) path.push_back(seen[i].first);
      path.push_back(at);
      return path.size() <= kFarthest ? path : std::vector<NodeId>{};
    }
    for (ValueId v : g.node(n).inputs)
      if (v && g.value(v).producer) seen.emplace_back(g.value(v).producer, k);
  }
  return {};
}

bool anchored(std::string_view contract) {
  return contract == "conv" || contract == "deconv" || contract == "gemm" ||
         contract == "attention";
}

OriginIndex::OriginIndex(const Graph& g) {
  for (NodeId n : g.order())
    for (const std::string& o : g.node(n).origins) nodes_[o].push_back(n);
}

const std::vector<NodeId>& OriginIndex::of(const std::string& name) const {
  static const std::vector<NodeId> kNone;
  auto it = nodes_.find(name);
  return it == nodes_.end() ? kNone : it->second;
}

bool may_be(const Rule& rule, const PatternExpr& e, const Node& n, const Semantics& ops) {
  auto inner = [&](const PatternExpr& x) { return may_be(rule, x, n, ops); };
  switch (e.kind) {
    case PatternExpr::Kind::call:
      return has_head(n, e.ops, e.classes, ops) ||
             (e.optional && !e.args.empty() && inner(*e.args[0]));
    case PatternExpr::Kind::alternatives:
      return std::ranges::any_of(e.choices, [&](const auto& c) { return inner(*c.second); });
    case PatternExpr::Kind::reference:
      return std::ranges::any_of(rule.match.lines, [&](const PatternLine& l) {
        return contains(l.results, e.name) && inner(*l.expr);
      });
    default:
      return false;
  }
}

int pattern_nodes(const Rule& rule) {
  int count = 0;
  for (const PatternLine& l : rule.match.lines) count += required(*l.expr);
  return std::max(count, 1);
}

std::string head_of(const RegionSpec& spec) {
  PatternExpr e;
  e.ops = spec.ops, e.classes = spec.classes;
  return head_text(e);
}

std::string words_of(const RegionSpec& spec, bool article) {
  PatternExpr e;
  e.ops = spec.ops, e.classes = spec.classes;
  return head_words(e, article);
}

std::vector<std::string> origins(const Graph& g, std::span<const NodeId> nodes) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (NodeId n : nodes)
    for (const std::string& o : g.node(n).origins)
      if (seen.insert(o).second) out.push_back(o);
  return out;
}

std::string joined(const std::vector<std::string>& names, size_t most) {
  std::string out;
  for (size_t k = 0; k < names.size() && k < most; ++k) out += (k ? ", " : "") + escape(names[k]);
  if (names.size() > most) out += fmt::format(" and {} more", names.size() - most);
  return out;
}

Attempts::Attempts(const Observed& o) : o_(o) {}

MatchContext Attempts::context(const Graph& g) const {
  const Knowledge& k = *o_.knowledge;
  return {g, k.ops, o_.options.limits, &k.target, o_.options.ignore_profit};
}

const OriginIndex& Attempts::origin_index(const Graph& g) {
  return origin_indices_.try_emplace(&g, g).first->second;
}

Subjects Attempts::subjects(const Graph& g, const std::vector<std::string>& names) {
  Subjects out;
  for (const std::string& n : names) out.push_back(origin_index(g).of(n));
  return out;
}

std::optional<Found> Attempts::at(const Rule& rule, const Graph& g, const Subjects& subjects) {
  if (std::ranges::any_of(subjects, [](const auto& s) { return s.empty(); })) return std::nullopt;
  if (rule.kind == RuleKind::merge) return siblings(rule, g, subjects);
  if (rule.kind == RuleKind::place) return placement(rule, g, subjects);
  return rule.kind == RuleKind::region ? region(rule, g, subjects) : pattern(rule, g, subjects);
}

bool Attempts::possible(const Rule& rule, const Node& n) {
  auto it = roots_.find(&rule);
  if (it == roots_.end()) {
    const Rule* one = &rule;
    it = roots_.try_emplace(&rule, std::span<const Rule* const>{&one, 1}, o_.knowledge->ops).first;
  }
  return !it->second.ranks_at(n).empty();
}

std::optional<Found> Attempts::pattern(const Rule& rule, const Graph& g, const Subjects& subjects) {
  std::optional<Found> best;
  // Of a window's first nodes the root may be far: all that is optional may lie between.
  const int nodes = rule.kind == RuleKind::window ? calls(rule) : pattern_nodes(rule);
  const int depth = std::min(nodes - 1 + (rule.kind == RuleKind::rewrite ? 1 : 0), kDeepest);
  std::set<NodeId> seen;
  auto try_all = [&](const std::vector<NodeId>& roots) {
    for (NodeId root : roots) {
      if (!seen.insert(root).second || !possible(rule, g.node(root))) continue;
      auto found = try_root(rule, g, root, subjects);
      if (found && better(best, *found)) best = std::move(found);
    }
  };
  for (const auto& s : subjects) try_all(around(g, s, depth, true));
  if (rule.kind != RuleKind::rewrite)
    for (const auto& s : subjects) try_all(around(g, s, kTail, false));
  return best;
}

std::optional<Found> Attempts::try_root(const Rule& rule, const Graph& g, NodeId root,
                                        const Subjects& subjects) const {
  Found f;
  f.graph = &g, f.root = root;
  MatchContext ctx = context(g);
  ctx.trace = &f.trace;
  Attempt a = match_any(rule, root, ctx);
  if (auto* m = std::get_if<Match>(&a); m && all_meet(subjects, m->nodes)) {
    f.match = std::move(*m);
    return f;
  }
  // What an anchor left out is about the node left out, not about the rest.
  const auto* m = std::get_if<Match>(&a);
  std::vector<NodeId> inside;
  for (const auto& [_, n] : f.trace.nodes) inside.push_back(n);
  if (m) inside.insert(inside.end(), m->nodes.begin(), m->nodes.end());
  for (const Rejection& r : f.trace.refused) {
    const bool asked =
        std::ranges::any_of(subjects, [&](const auto& s) { return contains(s, r.root); });
    if (!asked) continue;
    inside.push_back(r.root);
    if (all_meet(subjects, inside)) {
      f.rejection = r;
      f.failures = failures(rule, r, f.trace);
      return f;
    }
    inside.pop_back();
  }
  if (m) return std::nullopt;
  f.rejection = std::get<Rejection>(std::move(a));
  std::vector<NodeId> seen = touched(g, f.rejection, f.trace);
  if (f.rejection.stage == Rejection::Stage::structure) f.path = path_to(g, f, o_.knowledge->ops);
  seen.insert(seen.end(), f.path.begin(), f.path.end());
  would_take(g, rule, f.trace, o_.knowledge->ops, seen);
  if (!all_meet(subjects, seen)) return std::nullopt;
  f.failures = failures(rule, f.rejection, f.trace);
  f.others = static_cast<int>(std::ranges::count_if(inside, [&](NodeId n) {
    return std::ranges::none_of(subjects, [&](const auto& s) { return contains(s, n); });
  }));
  if (f.rejection.stage == Rejection::Stage::structure && elsewhere(f, subjects, inside))
    f.failures += kElsewhere;
  return f;
}

Found Attempts::far(const Rule& rule, const Graph& g, const std::vector<NodeId>& subject) {
  Found f;
  f.graph = &g, f.root = subject[0];
  f.failures = 2 * kStructure;
  f.rejection.rule = &rule, f.rejection.root = f.root, f.rejection.id = "structure";
  const auto could_start = [&](NodeId n) {
    return rule.kind == RuleKind::region
               ? has_head(g.node(n), rule.region.ops, rule.region.classes, o_.knowledge->ops)
               : possible(rule, g.node(n));
  };
  std::vector<std::pair<NodeId, size_t>> seen{
      {subject[0], 0}};  // and through which entry it was reached
  for (size_t k = 0; k < seen.size() && k < kMostRoots; ++k) {
    const NodeId n = seen[k].first;
    if (k > 0 && could_start(n)) {
      for (size_t i = k; i != 0; i = seen[i].second) f.path.push_back(seen[i].first);
      f.rejection.why = fmt::format("the nearest node before it where the rule could start is {}",
                                    node_text(g, n));
      return f;
    }
    for (ValueId v : g.node(n).inputs)
      if (v && g.value(v).producer) seen.emplace_back(g.value(v).producer, k);
  }
  f.rejection.why =
      fmt::format("the rule can start neither at {} nor at a node near it", node_text(g, f.root));
  return f;
}

}  // namespace ferrule::why
