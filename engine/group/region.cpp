// Region rules: maximal convex connected sets of nodes of one kind and one shape, in linear time
// and without search. Every node gets a level such that levels never fall along an edge and rise
// where an edge is not fusible; nodes of one level that fusible edges connect form a region. A path
// that leaves a region rises, so it cannot come back: the region is convex. Levels are first as low
// as possible; then regions without readers at their level sink to the region that reads them.
// Regions beyond the limits are cut along the topological order, which keeps the sections convex.
// Where a rule takes movements (movement.h), a value that one of them makes or reads is only fused
// over if nobody outside needs it and no arithmetic is done twice for it.
#include "engine/group/region.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/group/group.h"
#include "engine/group/row_region.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/match/trace.h"
#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

/// Tensors of a kernel: a node with more is none's. (Each of its results would be looked for among
/// all of them.)
constexpr size_t kMostTensors = 128;

class Regions {
 public:
  Regions(const Rule& rule, const MatchContext& ctx, std::vector<Rejection>* misses)
      : rule_(rule),
        spec_(rule.region),
        ctx_(ctx),
        g_(ctx.graph),
        misses_(misses),
        order_(g_.order()),
        takes_movements_(contains(spec_.classes, "movement")) {}

  std::vector<Match> run() {
    prepare();
    rise();
    sink();
    std::vector<Match> out;
    for (auto& region : by_root())
      for (auto& section : cut(region)) finish(std::move(section), out);
    return out;
  }

  void prepare() {
    parent_.resize(g_.node_slots());
    std::iota(parent_.begin(), parent_.end(), 0u);
    level_.assign(g_.node_slots(), 0);
    fusible_.assign(g_.node_slots(), false);
    moves_.assign(g_.node_slots(), false);
    seen_.assign(g_.value_slots(), 0);
    section_of_.assign(g_.node_slots(), 0);
    place_.assign(g_.node_slots(), 0);
    for (NodeId n : order_) {
      moves_[n.index] = is_movement(g_.node(n));
      fusible_[n.index] = candidate(n);
    }
    interior();
  }

  /// Why the edge does not let its ends share a region; empty: it does.
  std::string refused(NodeId from, ValueId v, NodeId to) const {
    for (NodeId n : {from, to})
      if (!fusible_[n.index]) return not_fusible(n);
    if (fuses(from, v, to)) return "";
    const Value& value = g_.value(v);
    if (!moves(from) && !moves(to))
      return fmt::format("{} is {}, {} is {}: one kernel has one shape", value_text(g_, v),
                         str(value.type), value_text(g_, g_.output(to)),
                         str(g_.value(g_.output(to)).type));
    if (value.is_output)
      return value_text(g_, v) + " is an output of the model, so it has to be written to memory";
    for (const Use& u : value.uses) {
      if (u.slot == Use::kCapture)
        return value_text(g_, v) + " is read by a nested graph of " + node_text(g_, u.node);
      if (!fusible_[u.node.index])
        return value_text(g_, v) + " is also read outside: " + not_fusible(u.node);
      if (!data_input(u.node, static_cast<size_t>(u.slot)))
        return fmt::format("{} is no data of {}, it says what is moved", value_text(g_, v),
                           node_text(g_, u.node));
    }
    return "what is computed for " + value_text(g_, v) + " would be computed more than once";
  }

 private:
  std::string not_fusible(NodeId n) const {
    if (misses_)
      for (const Rejection& r : *misses_)
        if (r.root == n) return r.why;
    PatternExpr of;
    of.ops = spec_.ops, of.classes = spec_.classes;
    return fmt::format("{} is no {}", node_text(g_, n), head_words(of, false));
  }

  /// The regions by their first member, members in topological order.
  std::vector<std::vector<NodeId>> by_root() {
    constexpr uint32_t kNone = 0xffffffffu;
    std::vector<uint32_t> place(g_.node_slots(), kNone);  // by root
    std::vector<std::vector<NodeId>> out;
    for (NodeId n : order_) {
      if (!fusible_[n.index]) continue;
      uint32_t& at = place[find(n.index)];
      if (at == kNone) at = static_cast<uint32_t>(out.size()), out.emplace_back();
      out[at].push_back(n);
    }
    return out;
  }

  bool candidate(NodeId id) {
    const Node& n = g_.node(id);
    if (!has_head(n, spec_.ops, spec_.classes, ctx_.ops)) return false;
    if (moves(id)) return movable(id, n);
    if (!n.subgraphs.empty() || n.outputs.size() != 1 || !n.outputs[0] || !deterministic(n))
      return false;
    if (n.inputs.size() > kMostTensors) {
      miss(id, "structure", "it has " + counted(n.inputs.size(), "operand"));
      return false;
    }
    if (!g_.value(n.outputs[0]).type.known()) {
      miss(id, "structure", "the type of " + value_text(g_, n.outputs[0]) + " is not known",
           Truth::unknown);
      return false;
    }
    return allowed(id, n);
  }

  bool movable(NodeId id, const Node& n) {
    if (n.outputs.size() > kMostTensors) {
      miss(id, "structure", "it has " + counted(n.outputs.size(), "result"));
      return false;
    }
    for (size_t k = 0; k < n.outputs.size(); ++k)
      if (auto m = movement_of(g_, n, k); !m) {
        miss(id, "structure", not_followed(id, m.error().reason()));
        return false;
      }
    return allowed(id, n);
  }

  std::string not_followed(NodeId n, std::string_view reason) const {
    return fmt::format("a kernel cannot read through {}: {}", node_text(g_, n), cause_of(reason));
  }

  bool allowed(NodeId id, const Node& n) {
    if (spec_.where.empty()) return true;
    Match m{&rule_, id, {}, {id}, {n.outputs[0]}, {}};
    m.bindings.nodes["node"] = id;
    m.bindings.value_lists["operands"] = n.inputs;
    auto r = judge(rule_, spec_.where, m, ctx_).refused;
    if (!r) return true;
    r->rule = &rule_;
    r->root = id;
    if (misses_) misses_->push_back(std::move(*r));
    return false;
  }

  Accept accept(Match& m) {
    Accept a = accepts_group(rule_, m.nodes, ctx_, &m.body);
    if (ctx_.target) refusal_ = a.truth == Truth::yes ? std::string() : a.reason;
    return a;
  }

  void miss(NodeId n, const char* id, std::string why, Truth truth = Truth::no) {
    if (!misses_) return;
    misses_->push_back(no_match(rule_, n, std::move(why), 1));
    misses_->back().id = id;
    misses_->back().truth = truth;
  }

  uint32_t find(uint32_t n) {
    while (parent_[n] != n) n = parent_[n] = parent_[parent_[n]];
    return n;
  }
  void join(uint32_t a, uint32_t b) {
    a = find(a), b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

  bool moves(NodeId n) const { return moves_[n.index]; }
  /// Whether the node computes with the value (parameters of movements, say, are only looked at).
  bool data_input(NodeId n, size_t slot) const {
    return !moves(n) || moves_input(g_.node(n), slot);
  }
  static int64_t elements(const Type& t) {
    auto dims = t.shape ? constant_shape(*t.shape) : std::nullopt;
    int64_t n = dims ? 1 : -1;
    for (size_t k = 0; dims && k < dims->size(); ++k) n *= (*dims)[k];
    return n;
  }

  /// Which values that a movement makes or reads may stay inside a region, in topological order.
  void interior() {
    inside_.assign(g_.value_slots(), false);
    computed_.assign(g_.value_slots(), false);
    for (NodeId n : order_) {
      if (!fusible_[n.index]) continue;
      bool computed = !moves(n);
      const Node& node = g_.node(n);
      for (size_t k = 0; k < node.inputs.size(); ++k)
        computed |= node.inputs[k] && data_input(n, k) && inside_[node.inputs[k].index] &&
                    computed_[node.inputs[k].index];
      for (ValueId v : node.outputs)
        if (v) computed_[v.index] = computed, inside_[v.index] = stays_inside(n, v);
    }
  }

  /// Every reader could be of the region, and what was computed for the value is computed once.
  bool stays_inside(NodeId maker, ValueId v) const {
    const Value& value = g_.value(v);
    if (value.is_output || value.uses.empty()) return false;
    bool any_moves = moves(maker), any_computes = false;
    int64_t read = 0;
    for (const Use& u : value.uses) {
      if (u.slot == Use::kCapture || !fusible_[u.node.index]) return false;
      if (!data_input(u.node, static_cast<size_t>(u.slot))) return false;
      const Node& reader = g_.node(u.node);
      any_moves |= moves(u.node), any_computes |= !moves(u.node);
      if (value.uses.size() > 1 && is_view(reader)) return false;  // else it is free
      if (!computed_[v.index]) continue;
      if (moves(u.node)) {
        if (repeats_elements(reader)) return false;
        int64_t results = 0;
        for (ValueId r : reader.outputs)
          if (r) results += elements(g_.value(r).type);
        read += std::min(results, elements(value.type));
      } else if (!same_shape(value.type, g_.value(g_.output(u.node)).type)) {
        return false;
      }
    }
    if (!any_moves)
      return false;  // an edge between computing nodes needs no more than equal shapes
    return !computed_[v.index] || read == 0 || (!any_computes && read <= elements(value.type));
  }

  /// Whether the edge lets its ends share a region.
  bool fuses(NodeId from, ValueId v, NodeId to) const {
    if (!fusible_[from.index] || !fusible_[to.index]) return false;
    if (inside_[v.index]) return true;
    return !moves(from) && !moves(to) && same_shape(g_.value(v).type, g_.value(g_.output(to)).type);
  }
  /// How much the level rises along an edge at least.
  int rises(NodeId from, ValueId v, NodeId to) const {
    if (fuses(from, v, to)) return 0;
    return fusible_[to.index] ? 1 : 0;
  }

  /// f(node, value): who made each value that the node reads.
  template <class F>
  void producers(NodeId n, F&& f) const {
    for (ValueId v : g_.node(n).inputs)
      if (v && g_.value(v).producer) f(g_.value(v).producer, v);
    for (const auto& [_, sub] : g_.node(n).subgraphs)
      each_capture(*sub, [&](ValueId, const Value& v) {
        if (g_.value(v.outer).producer) f(g_.value(v.outer).producer, v.outer);
      });
  }
  template <class F>
  void consumers(NodeId n, F&& f) const {
    for (ValueId v : g_.node(n).outputs)
      if (v)
        for (const Use& u : g_.value(v).uses) f(u.node, v);
  }

  void rise() {
    for (NodeId n : order_)
      producers(n, [&](NodeId p, ValueId v) {
        level_[n.index] = std::max(level_[n.index], level_[p.index] + rises(p, v, n));
      });
    for (NodeId n : order_)
      producers(n, [&](NodeId p, ValueId v) {
        if (fuses(p, v, n) && level_[p.index] == level_[n.index]) join(p.index, n.index);
      });
  }

  /// From the last level to the first: other nodes go as late as their readers allow, regions join
  /// the earliest later region that reads them if all their readers allow it.
  void sink() {
    int top = order_.empty() ? 0 : *std::ranges::max_element(level_);
    std::vector<std::vector<NodeId>> others(top + 1);
    const std::vector<std::vector<NodeId>> regions = by_root();
    std::vector<std::vector<uint32_t>> at_level(top + 1);  // numbers of regions
    for (uint32_t k = 0; k < regions.size(); ++k)
      at_level[level_[regions[k][0].index]].push_back(k);
    for (NodeId n : order_)
      if (!fusible_[n.index]) others[level_[n.index]].push_back(n);
    constexpr int kNoReader = 1 << 30;
    for (int level = top; level >= 0; --level) {
      auto& plain = others[level];
      for (size_t i = plain.size(); i-- > 0;) {
        int latest = kNoReader;
        consumers(plain[i], [&](NodeId c, ValueId v) {
          latest = std::min(latest, level_[c.index] - rises(plain[i], v, c));
        });
        level_[plain[i].index] = std::max(level_[plain[i].index], latest);
      }
      for (uint32_t k : at_level[level]) sink_region(regions[k], level);
    }
  }

  void sink_region(const std::vector<NodeId>& members, int level) {
    int latest = 1 << 30;
    NodeId target;
    for (NodeId n : members) {
      for (ValueId v : g_.node(n).outputs)
        if (v && g_.value(v).is_output) latest = std::min(latest, level);
      consumers(n, [&](NodeId c, ValueId v) {
        if (find(c.index) == find(n.index)) return;
        latest = std::min(latest, level_[c.index] - rises(n, v, c));
      });
    }
    if (latest <= level) return;
    for (NodeId n : members)
      consumers(n, [&](NodeId c, ValueId v) {
        if (fuses(n, v, c) && level_[c.index] > level && level_[c.index] <= latest &&
            find(c.index) != find(n.index))
          if (!target || level_[c.index] < level_[target.index]) target = c;
      });
    if (!target) return;
    for (NodeId n : members) level_[n.index] = level_[target.index];
    // All fusible edges of one level are inside a region; convexity rests on that.
    for (NodeId n : members)
      consumers(n, [&](NodeId c, ValueId v) {
        if (fuses(n, v, c) && level_[c.index] == level_[n.index]) join(n.index, c.index);
      });
  }

  /// Sections within the limits, each connected.
  std::vector<std::vector<NodeId>> cut(const std::vector<NodeId>& members) {
    std::vector<std::vector<NodeId>> out;
    std::vector<NodeId> section;
    size_t read = 0;
    // How many values the section reads more with `n`; they count as read from now on.
    auto fresh = [&](NodeId n) {
      size_t count = 0;
      for (size_t k = 0; k < g_.node(n).inputs.size(); ++k) {
        const ValueId v = g_.node(n).inputs[k];
        if (!v || seen_[v.index] == section_ || !data_input(n, k)) continue;
        if (g_.constant(v) && g_.constant(v)->numel() == 1) continue;
        if (NodeId p = g_.value(v).producer; p && section_of_[p.index] == section_) continue;
        seen_[v.index] = section_;
        ++count;
      }
      return count;
    };
    auto flush = [&] {
      for (auto& c : connected(section)) out.push_back(std::move(c));
      section.clear();
      read = 0, ++section_;
    };
    ++section_;
    for (NodeId n : members) {
      size_t count = fresh(n);
      const auto most = static_cast<size_t>(spec_.max_inputs);
      if ((section.size() >= static_cast<size_t>(spec_.max_ops) || read + count > most) &&
          !section.empty()) {
        flush();
        count = fresh(n);
      }
      if (count > most) {  // alone already; the section is empty
        ++section_;        // what it reads, others do not read yet
        miss(n, "structure", too_many_inputs(g_, n, count, spec_.max_inputs));
        continue;
      }
      section.push_back(n);
      section_of_[n.index] = section_;
      read += count;
    }
    flush();
    return out;
  }

  std::vector<std::vector<NodeId>> connected(const std::vector<NodeId>& section) {
    for (size_t i = 0; i < section.size(); ++i) place_[section[i].index] = static_cast<uint32_t>(i);
    std::vector<size_t> group(section.size());
    std::iota(group.begin(), group.end(), size_t{0});
    auto root = [&](size_t i) {
      while (group[i] != i) i = group[i] = group[group[i]];
      return i;
    };
    for (size_t i = 0; i < section.size(); ++i)
      producers(section[i], [&](NodeId p, ValueId v) {
        if (section_of_[p.index] == section_ && fuses(p, v, section[i])) {
          size_t a = root(place_[p.index]), b = root(i);
          group[std::max(a, b)] = std::min(a, b);
        }
      });
    constexpr size_t kNone = static_cast<size_t>(-1);
    std::vector<size_t> part(section.size(), kNone);  // by root, which is the first member
    std::vector<std::vector<NodeId>> out;
    for (size_t i = 0; i < section.size(); ++i) {
      size_t& at = part[root(i)];
      if (at == kNone) at = out.size(), out.emplace_back();
      out[at].push_back(section[i]);
    }
    return out;
  }

  /// Views at the border that are free outside: what lies beyond them has one layout only. A region
  /// that then moves nothing is no business of a rule that takes movements: another one takes its
  /// computing nodes.
  bool trim(std::vector<NodeId>& nodes) const {
    auto member = [&](NodeId n) { return n && contains(nodes, n); };
    auto one_layout = [&](ValueId v) { return g_.value(v).type.rank() < 3; };
    auto free = [&](NodeId n) {
      if (!is_view(g_.node(n))) return false;
      const ValueId x = g_.input(n, 0), y = g_.output(n);
      bool leaves = true;
      for (const Use& u : g_.value(y).uses) leaves &= !member(u.node);
      return (leaves && one_layout(y)) || (!member(g_.value(x).producer) && one_layout(x));
    };
    while (true) {
      auto at = std::ranges::find_if(nodes, free);
      if (at == nodes.end()) break;
      nodes.erase(at);
    }
    return std::ranges::any_of(nodes, [&](NodeId n) { return moves(n) && !is_view(g_.node(n)); });
  }

  /// Parts from each of which one node's results leave: a node whose readers are all of one part is
  /// of it. A path that leaves a part begins at the node that the others lead to, so it cannot come
  /// back.
  std::vector<std::vector<NodeId>> of_one_result(const std::vector<NodeId>& nodes) const {
    std::map<NodeId, NodeId> last;  // of its part
    for (size_t k = nodes.size(); k-- > 0;) {
      const NodeId n = nodes[k];
      NodeId to;
      bool one = true;
      for (ValueId v : g_.node(n).outputs) one &= !v || !g_.value(v).is_output;
      consumers(n, [&](NodeId c, ValueId) {
        auto it = last.find(c);
        one &= it != last.end() && (!to || to == it->second);
        if (one) to = it->second;
      });
      last[n] = one && to ? to : n;
    }
    std::map<NodeId, std::vector<NodeId>> parts;
    for (NodeId n : nodes) parts[last[n]].push_back(n);
    std::vector<std::vector<NodeId>> out;
    for (auto& [_, part] : parts) out.push_back(std::move(part));
    std::ranges::sort(out, {}, [&](const auto& part) { return g_.node(part[0]).order; });
    return out;
  }

  /// Said to `why` alone: in every other graph that computes it would be said of all regions.
  void nothing_moves(const std::vector<NodeId>& nodes) {
    for (NodeId n : nodes)
      if (ctx_.trace && !moves(n)) {
        Rejection r = no_match(rule_, n,
                               "nothing is moved in the region that both are of: rules that take "
                               "@movement leave such regions to those that do not",
                               static_cast<int>(nodes.size()));
        ctx_.trace->refuse(std::move(r));
      }
  }

  void finish(std::vector<NodeId> nodes, std::vector<Match>& out) {
    if (takes_movements_) {
      const std::vector<NodeId> all = nodes;
      if (!trim(nodes)) return nothing_moves(all);
    }
    if (nodes.size() < static_cast<size_t>(std::max(spec_.min_ops, 1)))
      return miss(
          nodes[0], "structure",
          fmt::format("there {} of its kind here; the rule needs at least {}",
                      nodes.size() == 1 ? "is one node" : fmt::format("are {} nodes", nodes.size()),
                      spec_.min_ops));
    if (nodes.size() == 1 && g_.node(nodes[0]).body) return;
    Match m{&rule_, nodes[0], {}, std::move(nodes), {}, {}};
    m.bindings.node_lists["region"] = m.nodes;
    m.outputs = leaving(g_, m.nodes);
    if (m.outputs.empty()) return;
    if (!spec_.multi_output && m.outputs.size() > 1) {
      bool any = false;
      for (auto& part : of_one_result(m.nodes))
        // One node may have several results: then the part is all of the region.
        if (part.size() < m.nodes.size() &&
            part.size() >= static_cast<size_t>(std::max(spec_.min_ops, 2)))
          any = true, finish(std::move(part), out);
      if (any) return;
      return miss(m.root, "structure",
                  fmt::format("{} values leave the region; the rule allows one", m.outputs.size()));
    }
    Judgement j = judge(rule_, rule_.where, m, ctx_, [&] { return accept(m); });
    m.let = std::move(j.let);
    if (auto& r = j.refused) {
      r->rule = &rule_;
      r->root = m.root;
      r->matched_nodes = static_cast<int>(m.nodes.size());
      if (!refusal_.empty() && r->why.find(refusal_) == std::string::npos)
        r->why += (r->why.empty() ? "" : ": ") + refusal_;
      refusal_.clear();
      if (ctx_.trace)
        for (NodeId n : m.nodes) ctx_.trace->refused.emplace_back(*r).root = n;
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
  std::vector<bool> moves_;              // by node: a movement
  std::vector<uint32_t> seen_;           // by value: the last section that reads it
  std::vector<uint32_t> section_of_;     // by node: the section it is in
  std::vector<uint32_t> place_;          // by node: its place in that section
  uint32_t section_ = 0;                 // the number of the one being filled
  std::vector<bool> inside_, computed_;  // by value: may stay inside; arithmetic was done for it
  const bool takes_movements_;
  std::string refusal_;  // what the contract last said
};

}  // namespace

std::vector<Match> match_regions(const Rule& rule, const MatchContext& ctx,
                                 std::vector<Rejection>* misses) {
  const RegionSpec& s = rule.region;
  if (!s.around_ops.empty() || !s.around_classes.empty())
    return match_row_regions(rule, ctx, misses);
  return Regions(rule, ctx, misses).run();
}

EdgeRefusal refused_edges(const Rule& rule, const MatchContext& ctx) {
  struct Asked {  // the regions keep references to the others
    Asked(const Rule& rule, const MatchContext& context)
        : ctx(context), regions(rule, ctx, &misses) {
      regions.prepare();
    }
    MatchContext ctx;
    std::vector<Rejection> misses;
    Regions regions;
  };
  return [asked = std::make_shared<Asked>(rule, ctx)](NodeId from, ValueId v, NodeId to) {
    return asked->regions.refused(from, v, to);
  };
}

}  // namespace ferrule
