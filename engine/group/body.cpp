#include "engine/group/body.h"

#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

/// A map between two graphs' values: filled once, asked often, thrown away.
class ValueMap {
 public:
  explicit ValueMap(size_t values) {
    size_t size = 8;
    while (size < 2 * values) size *= 2;
    places_.resize(size);
  }
  /// The entry of the key; none if it is new.
  ValueId& operator[](ValueId key) {
    if (2 * (used_ + 1) > places_.size()) grow();
    Place& p = place(key);
    if (!p.key) p.key = key, ++used_;
    return p.value;
  }
  ValueId at(ValueId key) {
    const Place& p = place(key);
    FERRULE_ASSERT(p.key, "a value that is in no map");
    return p.value;
  }

 private:
  struct Place {
    ValueId key, value;
  };
  Place& place(ValueId key) {
    const size_t mask = places_.size() - 1;
    size_t i = key.index * 0x9e3779b9u & mask;
    while (places_[i].key && places_[i].key != key) i = (i + 1) & mask;
    return places_[i];
  }
  void grow() {
    std::vector<Place> before(2 * places_.size());
    before.swap(places_);
    for (const Place& p : before)
      if (p.key) place(p.key) = p;
  }
  std::vector<Place> places_;
  size_t used_ = 0;
};

/// Some nodes, asked for one after another.
class Members {
 public:
  explicit Members(std::span<const NodeId> nodes) : nodes_(nodes) {
    constexpr size_t kFew = 16;
    if (nodes.size() <= kFew) return;
    sorted_.assign(nodes.begin(), nodes.end());
    std::ranges::sort(sorted_);
  }
  bool operator()(NodeId n) const {
    return sorted_.empty() ? std::ranges::find(nodes_, n) != nodes_.end()
                           : std::ranges::binary_search(sorted_, n);
  }

 private:
  std::span<const NodeId> nodes_;
  std::vector<NodeId> sorted_;  // of more than a few
};

std::vector<ValueId> leaving(const Graph& g, std::span<const NodeId> nodes, const Members& member) {
  std::vector<ValueId> out;
  for (NodeId n : nodes)
    for (ValueId v : g.node(n).outputs)
      if (v && (g.value(v).is_output || std::ranges::any_of(g.value(v).uses, [&](const Use& u) {
                  return !member(u.node);
                })))
        out.push_back(v);
  return out;
}

/// Copies nodes into a body graph, flattening groups.
class BodyBuilder {
 public:
  BodyBuilder(const Graph& g, std::span<const NodeId> nodes)
      : g_(g), member_(nodes), inside_(count_values(g, nodes)) {
    out_.nodes.assign(nodes.begin(), nodes.end());
    reserve();
    for (NodeId n : nodes) add(n);
    out_.outputs = leaving(g, nodes, member_);
    for (ValueId v : out_.outputs) out_.graph.add_output(inside_.at(v));
  }
  Body take() { return std::move(out_); }

 private:
  static size_t count_values(const Graph& g, std::span<const NodeId> nodes) {
    size_t count = 0;
    for (NodeId n : nodes) count += g.node(n).inputs.size() + g.node(n).outputs.size();
    return count;
  }

  void reserve() {
    size_t count = 0, values = 0, origins = 0;
    for (NodeId id : out_.nodes) {
      const Node& n = g_.node(id);
      count += n.body ? n.body->node_slots() : 1;
      values += n.body ? n.body->value_slots() : n.outputs.size();
      if (!n.body)
        values += static_cast<size_t>(
            std::ranges::count_if(n.inputs, [&](ValueId v) { return v && !made_inside(v); }));
      origins += n.origins.size();
    }
    out_.graph.reserve(count, values);
    out_.origins.reserve(origins);
    constexpr size_t kFew = 64;
    few_origins_ = origins <= kFew;
  }

  bool made_inside(ValueId v) const {
    const NodeId p = g_.value(v).producer;
    return p && member_(p);
  }

  /// Whether no node before has this origin.
  bool fresh(const std::string& origin) {
    if (few_origins_) return std::ranges::find(out_.origins, origin) == out_.origins.end();
    return seen_.insert(origin).second;
  }

  ValueId copy_value(const Value& from) {
    ValueId v = out_.graph.add_value(out_.graph.fresh_name(from.name), from.type);
    if (from.contents) out_.graph.set_contents(v, from.contents);
    return v;
  }

  ValueId input(ValueId v) {
    if (!v) return {};
    ValueId& known = inside_[v];
    if (known) return known;
    const Value& from = g_.value(v);
    known =
        out_.graph.add_input(out_.graph.fresh_name(from.name), from.constant ? Type{} : from.type);
    if (from.constant)
      out_.graph.set_constant(known, *from.constant);
    else if (from.contents)
      out_.graph.set_contents(known, from.contents);
    out_.inputs.push_back(v);
    return known;
  }

  void add(NodeId id) {
    const Node& n = g_.node(id);
    for (const std::string& o : n.origins)
      if (fresh(o)) out_.origins.push_back(o);
    if (!n.body) {
      Node c = plain(n);
      for (ValueId v : n.inputs) c.inputs.push_back(input(v));
      for (ValueId v : n.outputs)
        c.outputs.push_back(v ? inside_[v] = copy_value(g_.value(v)) : ValueId{});
      out_.graph.add_node(std::move(c));
      return;
    }
    const Graph& b = *n.body;
    ValueMap map(b.value_slots());  // the inner body's values -> ours
    for (size_t k = 0; k < n.inputs.size(); ++k) map[b.inputs()[k]] = input(n.inputs[k]);
    for (NodeId inner : b.order()) {
      Node c = plain(b.node(inner));
      for (ValueId v : b.node(inner).inputs) c.inputs.push_back(v ? map.at(v) : ValueId{});
      for (ValueId v : b.node(inner).outputs)
        c.outputs.push_back(v ? map[v] = copy_value(b.value(v)) : ValueId{});
      out_.graph.add_node(std::move(c));
    }
    for (size_t k = 0; k < n.outputs.size(); ++k)
      if (n.outputs[k]) inside_[n.outputs[k]] = map.at(b.outputs()[k]);
  }

  static Node plain(const Node& n) {
    Node c = of_operator(n);
    c.name = n.name, c.rule = n.rule, c.origins = n.origins;
    c.inputs.reserve(n.inputs.size()), c.outputs.reserve(n.outputs.size());
    return c;
  }

  const Graph& g_;
  const Members member_;
  ValueMap inside_;  // outer -> body
  bool few_origins_ = false;
  std::set<std::string_view> seen_;  // origins, where they are more
  Body out_;
};

}  // namespace

Body make_body(const Graph& g, std::span<const NodeId> nodes) {
  return BodyBuilder(g, nodes).take();
}

std::vector<ValueId> leaving(const Graph& g, std::span<const NodeId> nodes) {
  return leaving(g, nodes, Members(nodes));
}

}  // namespace ferrule
