#include "engine/graph/verify.h"

#include <algorithm>
#include <set>
#include <span>

namespace ferrule {
namespace {

/// Checks one graph; `outer` is the enclosing graph of a nested one, null at the top.
class Verifier {
 public:
  Verifier(const Graph& g, const Graph* outer) : g_(g), outer_(outer) {}

  Status run() {
    FERRULE_TRY(interface());
    for (uint32_t i = 0; i < g_.node_slots(); ++i)
      if (!g_.node({i}).dead) FERRULE_TRY(node({i}));
    sort_expected();
    for (uint32_t i = 0; i < g_.value_slots(); ++i)
      if (!g_.value({i}).dead) FERRULE_TRY(value({i}));
    return order();
  }

 private:
  template <class... Args>
  tl::unexpected<Error> broken(const std::string& place, fmt::format_string<Args...> text,
                               Args&&... args) const {
    std::string where = g_.name.empty() ? place : "graph " + escape(g_.name, 60) + ", " + place;
    return error(Code::model_invalid, where, fmt::format(text, std::forward<Args>(args)...));
  }
  std::string at(NodeId n) const {
    return fmt::format("node \"{}\" ({})", escape(g_.node(n).name, 60), escape(g_.node(n).op, 60));
  }
  std::string at(ValueId v) const {
    return v.index < g_.value_slots() ? fmt::format("value \"{}\"", escape(g_.value(v).name, 60))
                                      : fmt::format("value #{}", v.index);
  }
  bool alive(ValueId v) const { return v.index < g_.value_slots() && !g_.value(v).dead; }

  /// By value; those of one value stay in the order of the nodes and slots that read it.
  void sort_expected() {
    first_.assign(g_.value_slots() + 1, 0);
    for (const auto& [v, _] : found_) ++first_[v.index + 1];
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    expected_.resize(found_.size());
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    for (const auto& [v, use] : found_) expected_[next[v.index]++] = use;
  }

  Status interface() {
    for (ValueId v : g_.inputs())
      if (!alive(v) || !g_.value(v).is_input)
        return broken(at(v), "is listed as a graph input but is none");
    for (ValueId v : g_.outputs())
      if (!alive(v) || !g_.value(v).is_output)
        return broken(at(v), "is listed as a graph output but is none");
    listed_.assign(g_.value_slots(), false);
    for (ValueId v : g_.outputs()) listed_[v.index] = true;
    std::set<ValueId> inputs(g_.inputs().begin(), g_.inputs().end());
    if (inputs.size() != g_.inputs().size()) return broken("", "a value is a graph input twice");
    return {};
  }

  Status node(NodeId id) {
    const Node& n = g_.node(id);
    if (g_.find_node(n.name) != id) return broken(at(id), "its name is not unique");
    if ((!n.inputs.empty() && !n.inputs.back()) || (!n.outputs.empty() && !n.outputs.back()))
      return broken(at(id), "absent slots at the end are not trimmed");
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (!n.inputs[i]) continue;
      if (!alive(n.inputs[i])) return broken(at(id), "input {} does not exist", i);
      found_.emplace_back(n.inputs[i], Use{id, static_cast<int>(i)});
    }
    for (size_t i = 0; i < n.outputs.size(); ++i) {
      if (!n.outputs[i]) continue;
      if (!alive(n.outputs[i])) return broken(at(id), "output {} does not exist", i);
      const Value& v = g_.value(n.outputs[i]);
      if (v.producer != id || v.producer_slot != static_cast<int>(i))
        return broken(at(id), "output {} has another producer", i);
    }
    for (const auto& [key, sub] : n.subgraphs) {
      if (!sub) return broken(at(id), "nested graph {} is missing", escape(key, 60));
      FERRULE_TRY(Verifier(*sub, &g_).run());
    }
    for (ValueId v : captures(n)) found_.emplace_back(v, Use{id, Use::kCapture});
    return n.body ? group(id) : Status{};
  }

  Status group(NodeId id) const {
    const Node& n = g_.node(id);
    FERRULE_TRY(Verifier(*n.body, nullptr).run());
    if (n.body->inputs().size() != n.inputs.size() || n.body->outputs().size() != n.outputs.size())
      return broken(at(id), "has {} inputs and {} outputs, its body {} and {}", n.inputs.size(),
                    n.outputs.size(), n.body->inputs().size(), n.body->outputs().size());
    for (size_t i = 0; i < n.inputs.size(); ++i)
      if (n.inputs[i])
        FERRULE_TRY(
            agree(id, "input", i, g_.value(n.inputs[i]), n.body->value(n.body->inputs()[i])));
    for (size_t i = 0; i < n.outputs.size(); ++i)
      if (n.outputs[i])
        FERRULE_TRY(
            agree(id, "output", i, g_.value(n.outputs[i]), n.body->value(n.body->outputs()[i])));
    return {};
  }

  Status agree(NodeId id, const char* what, size_t i, const Value& a, const Value& b) const {
    bool same = a.type.dtype == b.type.dtype || a.type.dtype == DType::undefined ||
                b.type.dtype == DType::undefined;
    if (a.type.shape && b.type.shape) {
      same = same && a.type.shape->size() == b.type.shape->size();
      for (size_t k = 0; same && k < a.type.shape->size(); ++k)
        same = equal((*a.type.shape)[k], (*b.type.shape)[k]) != Truth::no;
    }
    if (same) return {};
    return broken(at(id), "{} {} is {}, in its body {}", what, i, str(a.type), str(b.type));
  }

  Status value(ValueId id) {
    const Value& v = g_.value(id);
    if (v.name.empty() || g_.find_value(v.name) != id)
      return broken(at(id), "its name is not unique");
    // An overridable initializer is a graph input with a default.
    int sources = bool(v.producer) + v.is_input + (v.constant && !v.is_input) + bool(v.outer);
    bool needed = !v.uses.empty() || v.is_output;
    if (sources > 1) return broken(at(id), "has more than one definition");
    if (sources == 0 && needed) return broken(at(id), "is read but produced by nothing");
    if (v.producer) {
      bool known = v.producer.index < g_.node_slots() && !g_.node(v.producer).dead;
      if (!known || g_.output(v.producer, static_cast<size_t>(v.producer_slot)) != id)
        return broken(at(id), "its producer does not know it");
    }
    if (v.outer) {
      bool fine = outer_ && v.outer.index < outer_->value_slots() && !outer_->value(v.outer).dead;
      if (!fine) return broken(at(id), "captures a value that does not exist");
    }
    const auto want =
        std::span(expected_).subspan(first_[id.index], first_[id.index + 1] - first_[id.index]);
    if (!std::ranges::equal(want, v.uses)) {
      std::vector<Use> have = v.uses;
      std::ranges::sort(have);
      std::ranges::sort(want);
      if (!std::ranges::equal(want, have))
        return broken(at(id), "has {} uses recorded, {} nodes' slots read it", v.uses.size(),
                      want.size());
    }
    if (v.is_output && !listed_[id.index])
      return broken(at(id), "is marked as a graph output but not listed");
    if (v.constant) {
      Shape dims(v.constant->dims().begin(), v.constant->dims().end());
      if (v.type.dtype != v.constant->dtype() || v.type.shape != dims)
        return broken(at(id), "is a constant {} typed {}", str(Type{v.constant->dtype(), dims}),
                      str(v.type));
    }
    if (v.contents && v.type.shape)
      if (auto n = product(*v.type.shape).constant(); n && *n != std::ssize(*v.contents))
        return broken(at(id), "has {} known elements but type {}", v.contents->size(), str(v.type));
    return {};
  }

  /// Acyclic: as many nodes become ready as there are.
  Status order() const {
    std::vector<int> waiting(g_.node_slots(), 0);
    std::vector<NodeId> ready;
    size_t live = 0, reached = 0;
    for (uint32_t i = 0; i < g_.value_slots(); ++i) {
      const Value& v = g_.value({i});
      if (!v.dead && v.producer)
        for (const Use& u : v.uses) ++waiting[u.node.index];
    }
    for (uint32_t i = 0; i < g_.node_slots(); ++i) {
      if (g_.node({i}).dead) continue;
      ++live;
      if (waiting[i] == 0) ready.push_back({i});
    }
    while (!ready.empty()) {
      NodeId n = ready.back();
      ready.pop_back();
      ++reached;
      for (ValueId v : g_.node(n).outputs)
        if (v)
          for (const Use& u : g_.value(v).uses)
            if (--waiting[u.node.index] == 0) ready.push_back(u.node);
    }
    if (live != g_.live_nodes())
      return broken("", "{} live nodes, {} counted", live, g_.live_nodes());
    if (reached == live) return {};
    for (uint32_t i = 0; i < g_.node_slots(); ++i)
      if (!g_.node({i}).dead && waiting[i] > 0)
        return broken(at(NodeId{i}), "lies on or behind a cycle");
    return {};
  }

  const Graph& g_;
  const Graph* outer_;
  std::vector<std::pair<ValueId, Use>> found_;  // who reads what, node by node
  std::vector<uint32_t> first_;                 // by value: where its readers begin in expected_
  std::vector<Use> expected_;
  std::vector<bool> listed_;  // values that are graph outputs
};

}  // namespace

Status verify(const Graph& g) { return Verifier(g, nullptr).run(); }

}  // namespace ferrule
