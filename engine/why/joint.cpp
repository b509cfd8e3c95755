// Rules that are asked about the whole graph at once: regions, siblings, and where values are put.
// Their answers are kept, and looked up for the nodes asked about.
#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/group/body.h"
#include "engine/group/merge.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/plan/place.h"
#include "engine/why/internal.h"

namespace ferrule::why {
namespace {

constexpr size_t kMostEdges = 48;  // of one node

struct Edge {
  NodeId from;
  ValueId value;
  NodeId to;
};

/// Edges from and to the node that carry something computed.
std::vector<Edge> edges_of(const Graph& g, NodeId n) {
  std::vector<Edge> out;
  for (ValueId v : g.node(n).inputs)
    if (v && g.value(v).producer) out.push_back({g.value(v).producer, v, n});
  for (ValueId v : g.node(n).outputs)
    if (v)
      for (const Use& u : g.value(v).uses)
        if (u.slot != Use::kCapture && out.size() < kMostEdges) out.push_back({n, v, u.node});
  return out;
}

/// What nodes read from outside, single numbers aside.
size_t tensors_read(const Graph& g, const std::vector<NodeId>& nodes) {
  std::set<ValueId> read;
  for (NodeId n : nodes)
    for (ValueId v : g.node(n).inputs) {
      if (!v || (g.value(v).producer && contains(nodes, g.value(v).producer))) continue;
      const Tensor* constant = g.constant(v);
      if (!constant || constant->numel() != 1) read.insert(v);
    }
  return read.size();
}

/// A node outside that reads what these compute, perhaps through others, and that they read.
NodeId on_the_way(const Graph& g, const std::vector<NodeId>& inside) {
  int64_t last = 0;
  for (NodeId n : inside) last = std::max<int64_t>(last, g.node(n).order);
  std::set<NodeId> behind(inside.begin(), inside.end());
  std::vector<NodeId> work = inside;
  for (size_t k = 0; k < work.size(); ++k)
    for (ValueId v : g.node(work[k]).outputs)
      if (v)
        for (const Use& u : g.value(v).uses)
          if (g.node(u.node).order < last && behind.insert(u.node).second) work.push_back(u.node);
  for (NodeId n : inside)
    for (ValueId v : g.node(n).inputs)
      if (const NodeId from = v ? g.value(v).producer : NodeId())
        if (!contains(inside, from) && behind.contains(from)) return from;
  return {};
}

/// Why two nodes that could share a kernel do not, and whether a limit of the rule says so.
std::pair<bool, std::string> ended(const Graph& g, const Rule& rule,
                                   const std::vector<Match>& found, NodeId a, NodeId b) {
  auto kernel_of = [&](NodeId n) {
    for (const Match& m : found)
      if (contains(m.nodes, n)) return m.nodes;
    return std::vector<NodeId>{n};
  };
  if (g.node(b).order < g.node(a).order) std::swap(a, b);  // kernels grow in this order
  std::vector<NodeId> both = kernel_of(a);
  const std::vector<NodeId> other = kernel_of(b);
  for (const auto& nodes : {both, other})
    if (nodes.size() >= static_cast<size_t>(rule.region.max_ops))
      return {true,
              fmt::format("the layer has {}, as many as the rule allows (its parameter max_ops)",
                          counted(nodes.size(), "node"))};
  both.push_back(b);
  if (const size_t read = tensors_read(g, both); read > static_cast<size_t>(rule.region.max_inputs))
    return {true,
            fmt::format("the layer would read {}; the rule allows {} (its parameter max_inputs)",
                        counted(read, "tensor"), rule.region.max_inputs)};
  both.insert(both.end(), other.begin(), other.end());
  if (both.size() > static_cast<size_t>(rule.region.max_ops))
    return {true,
            fmt::format("one layer would have {} nodes; the rule allows {} (its parameter max_ops)",
                        both.size() - 1, rule.region.max_ops)};
  if (!rule.region.multi_output && leaving(g, both).size() > 1)
    return {false, "both have results that are read elsewhere, and a layer of this rule has one"};
  const NodeId between = on_the_way(g, both);
  return {false, between ? fmt::format("{} stands between: it needs a result of the kernel that "
                                       "both would be, and that kernel needs its result",
                                       node_text(g, between))
                         : "one kernel for both would wait for its own result: a path leaves it "
                           "and comes back"};
}

}  // namespace

const Attempts::Regions& Attempts::regions(const Rule& rule, const Graph& g) {
  auto [it, fresh] = regions_.try_emplace({&rule, &g});
  if (!fresh) return it->second;
  Regions& r = it->second;
  MatchContext ctx = context(g);
  ctx.trace = &r.trace;
  if (rule.kind == RuleKind::merge) {
    r.matches = match_merges(rule, ctx, &r.misses);
    return r;
  }
  if (rule.kind == RuleKind::place) {
    for (PlaceMatch& m : match_places(rule, ctx, &r.misses))
      r.matches.push_back(std::move(m.match));
    return r;
  }
  r.matches = match_regions(rule, ctx, &r.misses);
  if (rule.region.around_ops.empty() && rule.region.around_classes.empty())
    r.edges = refused_edges(rule, context(g));
  return r;
}

std::optional<Found> Attempts::region(const Rule& rule, const Graph& g, const Subjects& subjects) {
  const RegionSpec& spec = rule.region;
  auto of_rule = [&](NodeId n) {
    return has_head(g.node(n), spec.ops, spec.classes, o_.knowledge->ops) ||
           has_head(g.node(n), spec.around_ops, spec.around_classes, o_.knowledge->ops);
  };
  for (const auto& s : subjects)
    if (std::ranges::none_of(s, of_rule)) return std::nullopt;
  const Regions& r = regions(rule, g);
  Found f;
  f.graph = &g, f.root = subjects[0][0];
  for (const Match& m : r.matches)
    if (all_meet(subjects, m.nodes)) {
      f.match = m;
      return f;
    }
  f.rejection.rule = &rule;
  f.rejection.root = f.root;
  f.rejection.id = "structure";
  std::vector<std::string> reasons;
  auto reason = [&](NodeId other, const std::string& why) {
    std::string text = fmt::format("with {}: {}", node_text(g, other), why);
    const bool fresh = reasons.size() < 3 && !contains(reasons, text);
    if (fresh) reasons.push_back(std::move(text));
    return fresh;
  };
  for (NodeId n : subjects[0]) {
    for (const Rejection& x : r.trace.refused)
      if (x.root == n && x.stage == Rejection::Stage::condition) f.rejection = x;
    for (const Edge& e : edges_of(g, n)) {
      const NodeId other = e.from == n ? e.to : e.from;
      if (contains(subjects[0], other) || (subjects.size() > 1 && !contains(subjects[1], other)))
        continue;
      const Rejection* said = r.trace.refused_at(other);
      if (!said) said = r.trace.refused_at(n);
      std::string why = r.edges ? r.edges(e.from, e.value, e.to) : said ? said->why : std::string();
      if (!r.edges && !said && !of_rule(other))
        why = fmt::format("it is no {}", words_of(spec, false));
      if (why.empty() && said && said->stage == Rejection::Stage::structure) why = said->why;
      if (why.empty()) {
        const auto [limit, text] = ended(g, rule, r.matches, n, other);
        f.rejection.of_tail |= limit;
        why = text;
      }
      // What no such kernel could hold is no obstacle of this rule's.
      if (reason(other, why) && of_rule(other)) f.rejection.matched_nodes = 1;
    }
  }
  if (f.rejection.stage == Rejection::Stage::structure) {
    if (subjects.size() > 1 && reasons.empty()) return std::nullopt;  // no edge between them
    f.rejection.why = reasons.empty() ? "nothing that is computed comes before or after it"
                                      : ferrule::joined(reasons, {}, "; ");
  }
  f.failures = failures(rule, f.rejection, f.trace);
  return f;
}

// --- places and siblings

/// A place rule: at the movement itself, or between it and a node that makes or reads a part.
std::optional<Found> Attempts::placement(const Rule& rule, const Graph& g,
                                         const Subjects& subjects) {
  auto next_to = [&](NodeId root, const std::vector<NodeId>& others) {
    return std::ranges::any_of(edges_of(g, root), [&](const Edge& e) {
      return contains(others, e.from == root ? e.to : e.from);
    });
  };
  NodeId root;
  for (size_t k = 0; k < subjects.size() && !root; ++k)
    for (NodeId n : subjects[k])
      if (possible(rule, g.node(n)) && (subjects.size() == 1 || next_to(n, subjects[1 - k])))
        root = n;
  if (!root) return std::nullopt;
  const Regions& all = regions(rule, g);
  Found f;
  f.graph = &g, f.root = root;
  for (const Match& m : all.matches)
    if (contains(m.nodes, root)) {
      f.match = m;
      return f;
    }
  for (const Rejection& r : all.misses)
    if (r.root == root && (!f.rejection.rule || nearness(r) > nearness(f.rejection)))
      f.rejection = r;
  if (!f.rejection.rule) return std::nullopt;
  f.failures = failures(rule, f.rejection, f.trace);
  return f;
}

/// A merge rule: a set that holds them all; else why one of them stayed out. Nodes that read
/// nothing in common are no siblings, and not asked about.
std::optional<Found> Attempts::siblings(const Rule& rule, const Graph& g,
                                        const Subjects& subjects) {
  std::vector<NodeId> asked;
  for (const auto& s : subjects) {
    auto fits = std::ranges::find_if(s, [&](NodeId n) { return possible(rule, g.node(n)); });
    if (fits == s.end()) return std::nullopt;
    asked.push_back(*fits);
  }
  auto reads = [&](NodeId n, ValueId v) { return contains(g.node(n).inputs, v); };
  const bool common = std::ranges::any_of(g.node(asked[0]).inputs, [&](ValueId v) {
    return v && !g.constant(v) && std::ranges::all_of(asked, [&](NodeId n) { return reads(n, v); });
  });
  if (!common) return std::nullopt;
  const Regions& all = regions(rule, g);
  Found f;
  f.graph = &g, f.root = asked[0];
  for (const Match& m : all.matches)
    if (all_meet(subjects, m.nodes)) {
      f.match = m;
      return f;
    }
  for (const Rejection& r : all.misses)
    if (contains(asked, r.root) && (!f.rejection.rule || nearness(r) > nearness(f.rejection)))
      f.rejection = r;
  if (!f.rejection.rule) return std::nullopt;
  f.root = f.rejection.root;
  f.failures = failures(rule, f.rejection, f.trace);
  return f;
}

}  // namespace ferrule::why
