// Region rules: maximal convex connected sets of nodes of one kind and one shape, in linear time
// and without search. Every node gets a level such that levels never fall along an edge and rise
// where an edge is not fusible; nodes of one level that fusible edges connect form a region. A path
// that leaves a region rises, so it cannot come back: the region is convex. Levels are first as low
// as possible; then regions without readers at their level sink to the region that reads them.
// Regions beyond the limits are cut along the topological order, which keeps the pieces convex.
#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/diagnostics.h"
#include "engine/group.h"
#include "engine/match/facts.h"
#include "engine/match/matcher.h"

namespace ferrule {
namespace {

class Regions {
 public:
  Regions(const Rule& rule, const MatchContext& ctx, std::vector<Rejection>* misses)
      : rule_(rule),
        spec_(rule.region),
        ctx_(ctx),
        g_(*ctx.graph),
        misses_(misses),
        order_(g_.order()) {}

  std::vector<Match> run() {
    parent_.resize(g_.node_slots());
    std::iota(parent_.begin(), parent_.end(), 0u);
    level_.assign(g_.node_slots(), 0);
    fusible_.assign(g_.node_slots(), false);
    for (NodeId n : order_) fusible_[n.index] = candidate(n);
    rise();
    sink();
    std::map<uint32_t, std::vector<NodeId>> regions;  // by root; members in topological order
    for (NodeId n : order_)
      if (fusible_[n.index]) regions[find(n.index)].push_back(n);
    std::vector<Match> out;
    for (NodeId n : order_)  // deterministic: by first member
      if (auto it = regions.find(find(n.index)); it != regions.end() && it->second[0] == n)
        for (auto& piece : cut(it->second)) finish(std::move(piece), out);
    return out;
  }

 private:
  bool candidate(NodeId id) {
    const Node& n = g_.node(id);
    if (!has_head(n, spec_.ops, spec_.classes, ctx_.ops)) return false;
    if (!n.subgraphs.empty() || n.outputs.size() != 1 || !n.outputs[0] || !deterministic(n))
      return false;
    if (!g_.value(n.outputs[0]).type.known()) {
      miss(id, "structure", "the type of " + value_text(g_, n.outputs[0]) + " is not known",
           Truth::unknown);
      return false;
    }
    if (spec_.where.empty()) return true;
    Match m{&rule_, id, {}, {id}, {n.outputs[0]}, {}};
    m.bindings.nodes["node"] = id;
    m.bindings.value_lists["operands"] = n.inputs;
    auto r = judge(rule_, spec_.where, m, ctx_, accept(m));
    if (!r) return true;
    r->rule = &rule_;
    r->root = id;
    if (misses_) misses_->push_back(std::move(*r));
    return false;
  }

  std::function<Truth(std::string*)> accept(const Match& m) {
    return [this, &m](std::string* reason) {
      if (!ctx_.target) return Truth::unknown;
      Accept a = accepts_group(g_, m.nodes, rule_.contract, *ctx_.target, *ctx_.ops);
      if (reason) *reason = a.reason;
      return a.truth;
    };
  }

  void miss(NodeId n, const char* id, std::string why, Truth truth = Truth::no) {
    if (!misses_) return;
    Rejection r;
    r.rule = &rule_;
    r.root = n;
    r.id = id;
    r.why = std::move(why);
    r.truth = truth;
    r.matched_nodes = 1;
    misses_->push_back(std::move(r));
  }

  uint32_t find(uint32_t n) {
    while (parent_[n] != n) n = parent_[n] = parent_[parent_[n]];
    return n;
  }
  void join(uint32_t a, uint32_t b) {
    a = find(a), b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

  /// Whether the edge lets its ends share a region.
  bool fuses(NodeId from, NodeId to) const {
    return fusible_[from.index] && fusible_[to.index] &&
           same_shape(g_.value(g_.output(from)).type, g_.value(g_.output(to)).type);
  }
  /// How much the level rises along an edge at least.
  int rises(NodeId from, NodeId to) const {
    if (fuses(from, to)) return 0;
    return fusible_[to.index] ? 1 : 0;
  }

  template <class F>
  void producers(NodeId n, F&& f) const {
    for (ValueId v : g_.node(n).inputs)
      if (v && g_.value(v).producer) f(g_.value(v).producer);
    if (g_.node(n).subgraphs.empty()) return;
    for (const auto& [_, sub] : g_.node(n).subgraphs)
      for (size_t i = 0; i < sub->value_slots(); ++i) {
        const Value& v = sub->value(ValueId{static_cast<uint32_t>(i)});
        if (!v.dead && v.outer && g_.value(v.outer).producer) f(g_.value(v.outer).producer);
      }
  }
  template <class F>
  void consumers(NodeId n, F&& f) const {
    for (ValueId v : g_.node(n).outputs)
      if (v)
        for (const Use& u : g_.value(v).uses) f(u.node);
  }

  void rise() {
    for (NodeId n : order_)
      producers(n, [&](NodeId p) {
        level_[n.index] = std::max(level_[n.index], level_[p.index] + rises(p, n));
      });
    for (NodeId n : order_)
      producers(n, [&](NodeId p) {
        if (fuses(p, n) && level_[p.index] == level_[n.index]) join(p.index, n.index);
      });
  }

  /// From the last level to the first: other nodes go as late as their readers allow, regions join
  /// the earliest later region that reads them if all their readers allow it.
  void sink() {
    std::vector<int> asap = level_;
    int top = order_.empty() ? 0 : *std::ranges::max_element(level_);
    std::vector<std::vector<NodeId>> others(static_cast<size_t>(top) + 1);
    std::vector<std::vector<uint32_t>> roots(static_cast<size_t>(top) + 1);
    std::map<uint32_t, std::vector<NodeId>> members;
    for (NodeId n : order_) {
      auto at = static_cast<size_t>(asap[n.index]);
      if (!fusible_[n.index]) {
        others[at].push_back(n);
        continue;
      }
      auto& list = members[find(n.index)];
      if (list.empty()) roots[at].push_back(find(n.index));
      list.push_back(n);
    }
    constexpr int kNoReader = 1 << 30;
    for (int level = top; level >= 0; --level) {
      auto& plain = others[static_cast<size_t>(level)];
      for (size_t i = plain.size(); i-- > 0;) {
        int latest = kNoReader;
        consumers(plain[i], [&](NodeId c) {
          latest = std::min(latest, level_[c.index] - rises(plain[i], c));
        });
        level_[plain[i].index] = std::max(level_[plain[i].index], latest);
      }
      for (uint32_t root : roots[static_cast<size_t>(level)]) sink_region(members[root], level);
    }
  }

  void sink_region(const std::vector<NodeId>& members, int level) {
    int latest = 1 << 30;
    NodeId target;
    for (NodeId n : members) {
      if (g_.value(g_.output(n)).is_output) latest = std::min(latest, level);
      consumers(n, [&](NodeId c) {
        if (find(c.index) == find(n.index)) return;
        latest = std::min(latest, level_[c.index] - rises(n, c));
      });
    }
    if (latest <= level) return;
    for (NodeId n : members)
      consumers(n, [&](NodeId c) {
        if (fuses(n, c) && level_[c.index] > level && level_[c.index] <= latest &&
            find(c.index) != find(n.index))
          if (!target || level_[c.index] < level_[target.index]) target = c;
      });
    if (!target) return;
    for (NodeId n : members) level_[n.index] = level_[target.index];
    // All fusible edges of one level are inside a region; convexity rests on that.
    for (NodeId n : members)
      consumers(n, [&](NodeId c) {
        if (fuses(n, c) && level_[c.index] == level_[n.index]) join(n.index, c.index);
      });
  }

  /// Pieces within the limits, each connected.
  std::vector<std::vector<NodeId>> cut(const std::vector<NodeId>& members) {
    std::vector<std::vector<NodeId>> out;
    std::vector<NodeId> piece;
    std::map<ValueId, int> read;
    auto fresh = [&](NodeId n) {
      size_t count = 0;
      std::vector<ValueId> seen;
      for (ValueId v : g_.node(n).inputs) {
        if (!v || read.contains(v) || std::ranges::find(seen, v) != seen.end()) continue;
        if (g_.constant(v) && g_.constant(v)->numel() == 1) continue;
        if (NodeId p = g_.value(v).producer; p && std::ranges::find(piece, p) != piece.end())
          continue;
        seen.push_back(v);
        ++count;
      }
      return std::pair(count, std::move(seen));
    };
    auto flush = [&] {
      for (auto& c : connected(piece)) out.push_back(std::move(c));
      piece.clear();
      read.clear();
    };
    for (NodeId n : members) {
      auto [count, values] = fresh(n);
      bool full = piece.size() >= static_cast<size_t>(spec_.max_ops) ||
                  read.size() + count > static_cast<size_t>(spec_.max_inputs);
      if (full && !piece.empty()) {
        flush();
        std::tie(count, values) = fresh(n);
      }
      piece.push_back(n);
      for (ValueId v : values) read[v] = 1;
    }
    flush();
    return out;
  }

  std::vector<std::vector<NodeId>> connected(const std::vector<NodeId>& piece) {
    std::map<NodeId, size_t> at;
    for (size_t i = 0; i < piece.size(); ++i) at[piece[i]] = i;
    std::vector<size_t> group(piece.size());
    std::iota(group.begin(), group.end(), size_t{0});
    auto root = [&](size_t i) {
      while (group[i] != i) i = group[i] = group[group[i]];
      return i;
    };
    for (size_t i = 0; i < piece.size(); ++i)
      producers(piece[i], [&](NodeId p) {
        if (auto it = at.find(p); it != at.end() && fuses(p, piece[i])) {
          size_t a = root(it->second), b = root(i);
          group[std::max(a, b)] = std::min(a, b);
        }
      });
    std::map<size_t, std::vector<NodeId>> parts;
    for (size_t i = 0; i < piece.size(); ++i) parts[root(i)].push_back(piece[i]);
    std::vector<std::vector<NodeId>> out;
    for (auto& [_, part] : parts) out.push_back(std::move(part));
    return out;
  }

  void finish(std::vector<NodeId> nodes, std::vector<Match>& out) {
    if (nodes.size() < static_cast<size_t>(std::max(spec_.min_ops, 1)))
      return miss(nodes[0], "structure",
                  fmt::format("{} node{} here, the rule wants at least {}", nodes.size(),
                              nodes.size() == 1 ? "" : "s", spec_.min_ops));
    if (nodes.size() == 1 && g_.node(nodes[0]).body) return;
    Match m{&rule_, nodes[0], {}, std::move(nodes), {}, {}};
    m.bindings.node_lists["region"] = m.nodes;
    for (NodeId n : m.nodes) {
      const Value& v = g_.value(g_.output(n));
      bool leaves = v.is_output;
      for (const Use& u : v.uses) leaves |= std::ranges::find(m.nodes, u.node) == m.nodes.end();
      if (leaves) m.outputs.push_back(g_.output(n));
    }
    if (m.outputs.empty()) return;
    if (!spec_.multi_output && m.outputs.size() > 1)
      return miss(m.root, "structure",
                  fmt::format("{} values leave, the rule wants one", m.outputs.size()));
    if (auto r = judge(rule_, rule_.where, m, ctx_, accept(m))) {
      r->rule = &rule_;
      r->root = m.root;
      r->matched_nodes = static_cast<int>(m.nodes.size());
      if (misses_) misses_->push_back(std::move(*r));
      return;
    }
    out.push_back(std::move(m));
  }

  const Rule& rule_;
  const RegionSpec& spec_;
  const MatchContext& ctx_;
  const Graph& g_;
  std::vector<Rejection>* misses_;
  std::vector<NodeId> order_;
  std::vector<uint32_t> parent_;
  std::vector<int> level_;
  std::vector<bool> fusible_;
};

}  // namespace

std::vector<Match> match_regions(const Rule& rule, const MatchContext& ctx,
                                 std::vector<Rejection>* misses) {
  const RegionSpec& s = rule.region;
  if (!s.around_ops.empty() || !s.around_classes.empty()) return match_row_regions(rule, ctx, misses);
  return Regions(rule, ctx, misses).run();
}

}  // namespace ferrule
