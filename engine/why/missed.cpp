// Edges that stay in memory: a value that one layer writes and another reads. What only has another
// view of a value is looked through, and what lies in another value already is no edge; both are
// counted, so that the list can say what it leaves out.
#include <algorithm>
#include <functional>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/why/inquiry.h"

namespace ferrule::why {
namespace {

class Edges {
 public:
  Edges(Inquiry::State& s, int tries) : s_(s), g_(s.o.plan.graph), trials_(s.o, s.sizes, tries) {
    for (size_t k = 0; k < s.o.plan.layers.size(); ++k)
      if (s.o.plan.layers[k].node) layer_[s.o.plan.layers[k].node] = k;
    for (const Layer& l : s.o.plan.layers) contract_[l.name] = l.contract;
  }

  Missed run(size_t top) {
    for (NodeId n : g_.order()) {
      if (transparent(n)) {
        ++(layer(n).reorder_from ? out_.copies : out_.views);
        continue;
      }
      for (ValueId v : g_.node(n).outputs)
        if (v && placed(n, v))
          ++out_.placed;
        else if (v)
          edge(n, v);
    }
    out_.all = out_.edges.size();
    std::ranges::stable_sort(out_.edges, std::greater<>(), &MissedEdge::bytes);
    if (out_.edges.size() > top) out_.edges.resize(top);
    for (MissedEdge& e : out_.edges) explain(e);
    return std::move(out_);
  }

 private:
  const Layer& layer(NodeId n) const { return s_.o.plan.layers[layer_.at(n)]; }
  bool transparent(NodeId n) const { return layer(n).contract == "view" || layer(n).reorder_from; }

  /// A movement's result that was there already: its operands lie in it, or it lies in its operand.
  bool placed(NodeId n, ValueId v) const {
    return std::ranges::any_of(g_.node(n).inputs,
                               [&](ValueId x) { return x && (lies_in(x, v) || lies_in(v, x)); });
  }

  /// Who really reads the value, and what it is called there. What lies in another value is read
  /// through it.
  void readers(ValueId v, std::vector<std::pair<NodeId, ValueId>>& out) const {
    for (const Use& u : g_.value(v).uses) {
      bool through = false;
      for (ValueId y : g_.node(u.node).outputs)
        if (y && (transparent(u.node) || lies_in(v, y) || lies_in(y, v)))
          readers(y, out), through = true;
      if (!through) out.emplace_back(u.node, v);
    }
  }
  bool lies_in(ValueId part, ValueId whole) const {
    auto it = s_.o.plan.slices.find(part);
    return it != s_.o.plan.slices.end() && it->second.whole == whole;
  }

  void edge(NodeId from, ValueId v) {
    std::vector<std::pair<NodeId, ValueId>> all;
    readers(v, all);
    std::set<NodeId> seen;
    for (const auto& [to, read] : all) {
      if (!seen.insert(to).second) continue;
      const bool part = s_.sizes.bytes(g_.value(read).type) <= s_.sizes.bytes(g_.value(v).type);
      const Type& type = g_.value(part ? read : v).type;
      MissedEdge e;
      e.from = layer(from).name, e.to = layer(to).name;
      e.producer = maker(from, v), e.consumer = reader(to, read);
      e.value = g_.value(v).name, e.type = str(type), e.sized = str(s_.sizes.sized(type));
      e.bytes = s_.sizes.bytes(type);
      e.open = !type.shape || !constant_shape(*type.shape);
      out_.edges.push_back(std::move(e));
    }
  }

  /// Where a rule made one node of several, what follows it takes the result apart, and stands for
  /// none of them: its n-th result is the n-th sibling's.
  std::string sibling(const Node& apart, ValueId v) const {
    const Node* whole = nullptr;
    for (ValueId at = apart.inputs[0]; at && (!whole || whole->origins.empty());) {
      whole = g_.producer(at);
      at = whole && !whole->inputs.empty() ? whole->inputs[0] : ValueId{};
    }
    if (!whole || whole->origins.empty()) return apart.name;
    const size_t all = whole->origins.size(), parts = apart.outputs.size();
    size_t k = 0;
    while (k < parts && apart.outputs[k] != v) ++k;
    if (k == parts || all % parts) return whole->origins.back();
    return whole->origins[(k + 1) * (all / parts) - 1];
  }

  /// The node of the model that makes the value inside the layer.
  std::string maker(NodeId id, ValueId v) const {
    const Node& n = g_.node(id);
    if (n.origins.empty() && !n.inputs.empty()) return sibling(n, v);
    if (n.body)
      for (size_t k = 0; k < n.outputs.size(); ++k)
        if (n.outputs[k] == v)
          if (const Node* p = n.body->producer(n.body->outputs()[k]); p && !p->origins.empty())
            return p->origins.back();
    return n.origins.empty() ? n.name : n.origins.back();
  }
  std::string reader(NodeId id, ValueId v) const {
    const Node& n = g_.node(id);
    if (n.body)
      for (size_t k = 0; k < n.inputs.size(); ++k)
        if (n.inputs[k] == v)
          for (const Use& u : n.body->value(n.body->inputs()[k]).uses)
            if (const Node& r = n.body->node(u.node); !r.origins.empty()) return r.origins.front();
    return n.origins.empty() ? n.name : n.origins.front();
  }

  /// A rule that could have made the edge's two ends one layer, of which both are a part.
  static bool owns(const Draft& c) {
    const RuleKind kind = c.c.rule->kind;
    return kind != RuleKind::merge && kind != RuleKind::rewrite;
  }

  static bool structure(const Draft& c) {
    return c.c.state == Considered::State::refused &&
           c.found.rejection.stage == Rejection::Stage::structure;
  }
  /// Where a pattern does not fit, it says something of the edge if it took one of its nodes and
  /// missed the other, or took both and most of what it needs.
  bool elsewhere(const Draft& c, const std::vector<std::string>& ends) {
    const NodeId at = failed_at(c.found);
    if (!structure(c) || !at || c.c.rule->match.lines.empty()) return false;
    std::vector<NodeId> took{c.found.root};
    for (const auto& [_, n] : c.found.trace.nodes) took.push_back(n);
    const Subjects nodes = s_.attempts.subjects(*c.found.graph, ends);
    auto meets = [&](const std::vector<NodeId>& end) {
      return std::ranges::any_of(took, [&](NodeId n) { return n != at && contains(end, n); });
    };
    const bool first = meets(nodes[0]), second = meets(nodes[1]);
    const bool most = c.c.matched_nodes > 2 && 2 * c.c.matched_nodes > c.c.pattern_nodes;
    return !(first && second && most) && !(contains(nodes[0], at) && second) &&
           !(contains(nodes[1], at) && first);
  }

  void explain(MissedEdge& e) {
    e.cls = "structure";
    const std::vector<std::string> ends{e.producer, e.consumer};
    // A node that a rule put in stands for none of the model's.
    for (const auto& [end, layer] : {std::pair(e.producer, e.from), std::pair(e.consumer, e.to)})
      if (!s_.ops.contains(end) && !s_.nested.contains(end)) {
        e.reason = fmt::format("layer \"{}\" was put in by a rule, and is no node of the model",
                               escape(layer));
        return;
      }
    std::vector<Draft> all = s_.candidates(ends, nullptr);
    std::erase_if(all, [&](const Draft& c) { return elsewhere(c, ends); });
    // What recognises or prepares is the reason where no rule that fuses came near.
    if (std::ranges::any_of(all, owns)) std::erase_if(all, std::not_fn(owns));
    if (all.empty()) all = s_.not_removed(ends, e.bytes);
    const std::string &x = contract_.at(e.from), &y = contract_.at(e.to);
    const bool apart = anchored(x) && anchored(y);
    auto built_around = [&] {
      e.reason = fmt::format(
          "each is built around an operator of its own ({} and {}), and no rule fuses two such "
          "layers",
          x, y);
    };
    if (apart && (all.empty() || structure(all[0]))) return built_around();
    if (all.empty()) all = s_.at_one_end(ends, nullptr, ends, e.bytes);
    if (all.empty()) {
      e.reason = s_.otherwise(ends);
      return;
    }
    // What does not fire without the other readers of a value either has another reason.
    constexpr size_t kTried = 4;
    size_t best = 0;
    for (size_t k = 0; k < std::min(all.size(), kTried); ++k) {
      std::erase_if(all[k].proposals, [](const Proposal& p) {
        return p.change && p.unlock.kind == Unlock::Kind::edit && p.change->alone.empty();
      });
      try_unlocks(all[k], trials_, ends);
      best = all[k].refuted ? best : k;
      if (!all[k].refuted) break;
    }
    if (apart && all[best].refuted) return built_around();
    const Considered& c = all[best].c;
    e.rule = c.rule->id;
    e.reason = why::reason(c);
    if (c.state == Considered::State::refused && c.rejection.stage == Rejection::Stage::condition)
      e.cls = name(c.rejection.cls);
    if (c.state == Considered::State::refused && c.rejection.stage == Rejection::Stage::guarantee)
      e.cls = "sound";
    e.unlocks = c.unlocks;
  }

  Inquiry::State& s_;
  const Graph& g_;
  std::map<NodeId, size_t> layer_;
  std::map<std::string, std::string> contract_;
  Trials trials_;
  Missed out_;
};

}  // namespace

Missed Inquiry::missed(size_t top, int tries) { return Edges(*state_, tries).run(top); }
const std::string& Inquiry::assumed() const { return state_->sizes.assumed(); }

}  // namespace ferrule::why
