// Edges that stay in memory. An edge counts if at least one of its layers moves more than it
// computes: then the bytes are time. Convolutions and products over many channels compute more; all
// other layers, and convolutions with few multiplications for each result, do not. What only has
// another view of a value is looked through.
#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/why/inquiry.h"

namespace ferrule::why {
namespace {

constexpr int64_t kMuchWork =
    64;  // multiplications for a result from which on a layer computes more than it moves

/// Multiplications for each result of the layer's heaviest constant operand; 0: it has none.
int64_t work(const Graph& g, const Node& n) {
  int64_t most = 0;
  for (ValueId v : n.inputs)
    if (const Tensor* t = g.constant(v); t && t->rank() >= 2 && t->dims()[0] > 0)
      most = std::max(most, t->numel() / t->dims()[0]);
  return most;
}

class Edges {
 public:
  explicit Edges(Inquiry::State& s) : s_(s), g_(s.o.plan.graph) {
    for (size_t k = 0; k < s.o.plan.layers.size(); ++k)
      if (s.o.plan.layers[k].node) layer_[s.o.plan.layers[k].node] = k;
    for (const Layer& l : s.o.plan.layers) contract_[l.name] = l.contract;
  }

  std::vector<MissedEdge> run(size_t top) {
    for (NodeId n : g_.order()) {
      if (transparent(n)) continue;
      for (ValueId v : g_.node(n).outputs)
        if (v && !placed(n, v)) edge(n, v);
    }
    std::ranges::stable_sort(found_, std::greater<>(), &MissedEdge::bytes);
    if (found_.size() > top) found_.resize(top);
    for (MissedEdge& e : found_) explain(e);
    return std::move(found_);
  }

 private:
  const Layer& layer(NodeId n) const { return s_.o.plan.layers[layer_.at(n)]; }
  bool transparent(NodeId n) const { return layer(n).contract == "view" || layer(n).reorder_from; }

  /// A movement's result that was there already: its operands lie in it, or it lies in its operand.
  bool placed(NodeId n, ValueId v) const {
    return std::ranges::any_of(g_.node(n).inputs,
                               [&](ValueId x) { return x && (lies_in(x, v) || lies_in(v, x)); });
  }

  bool memory_bound(NodeId n) const {
    const std::string& c = layer(n).contract;
    if (!anchored(c)) return true;
    const int64_t w = work(g_, g_.node(n));
    return c != "gemm" && w > 0 && w < kMuchWork;
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
    const Type& type = g_.value(v).type;
    const auto dims = type.shape ? constant_shape(*type.shape) : std::nullopt;
    int64_t size = -1;
    if (dims) {
      int64_t numel = 1;
      for (int64_t d : *dims) numel *= d;
      size = size_bytes(type.dtype, numel);
    }
    for (const auto& [to, read] : all) {
      if (!seen.insert(to).second || (!memory_bound(from) && !memory_bound(to))) continue;
      MissedEdge e;
      e.from = layer(from).name, e.to = layer(to).name;
      e.producer = maker(from, v), e.consumer = reader(to, read);
      e.value = g_.value(v).name, e.type = str(type);
      e.bytes = size < 0 ? -1 : size * 2;
      found_.push_back(std::move(e));
    }
  }

  /// The node of the model that makes the value inside the layer.
  std::string maker(NodeId id, ValueId v) const {
    const Node& n = g_.node(id);
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

  void explain(MissedEdge& e) {
    e.cls = "structure";
    std::vector<Draft> all = s_.candidates({e.producer, e.consumer}, nullptr);
    std::erase_if(all, [](const Draft& c) {
      return c.c.rule->kind == RuleKind::rewrite &&
             c.found.rejection.stage == Rejection::Stage::structure;
    });
    const bool structure = !all.empty() && all[0].c.state == Considered::State::refused &&
                           all[0].found.rejection.stage == Rejection::Stage::structure;
    const std::string &x = contract_.at(e.from), &y = contract_.at(e.to);
    if (structure && anchored(x) && anchored(y)) {
      e.reason = fmt::format("each is built around an operator of its own ({} and {})", x, y);
      return;
    }
    if (all.empty()) {
      e.reason =
          fmt::format("no rule takes {} and {} together", escape(e.producer), escape(e.consumer));
      return;
    }
    // Changes of the model are advice only where they were tried.
    std::erase_if(all[0].proposals, [](const Proposal& p) {
      return p.change && p.unlock.kind == Unlock::Kind::edit;
    });
    Trials none(s_.o, 0);
    try_unlocks(all[0], none, {});
    const Considered& c = all[0].c;
    e.rule = c.rule->id;
    e.reason = c.state == Considered::State::off    ? "it is off"
               : c.state == Considered::State::lost ? "lost to " + c.lost_to
                                                    : c.rejection.why;
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
  std::vector<MissedEdge> found_;
};

}  // namespace

std::vector<MissedEdge> Inquiry::missed(size_t top) { return Edges(*state_).run(top); }

}  // namespace ferrule::why
