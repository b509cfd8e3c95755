// The graph's tables and their mutators. A value with many readers keeps an index of its uses, so
// that taking one away costs the same however many there are; sort() is a stable Kahn's algorithm.
#include "engine/graph/graph.h"

#include <algorithm>
#include <queue>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

constexpr size_t kManyUses = 64;  // above this a value's uses are indexed
uint64_t key(Use u) { return (uint64_t{u.node.index} << 32) | static_cast<uint32_t>(u.slot); }

template <class T>
void trim(std::vector<T>& ids) {
  while (!ids.empty() && !ids.back()) ids.pop_back();
}

}  // namespace

void list_changed() { FERRULE_ASSERT(false, "a list of a graph changed under a loop over it"); }

// --- reading

std::unique_ptr<Graph> Graph::clone() const {
  auto out = std::make_unique<Graph>();
  out->name = name;
  out->made_constants_ = made_constants_;
  out->nodes_.reserve(nodes_.size() + nodes_.size() / 2);  // what is cloned is changed
  out->values_.reserve(values_.size() + values_.size() / 2);
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i].dead)
      out->values_.push_back({}).dead = true;
    else
      out->values_.push_back(values_[i]);
  out->inputs_ = inputs_;
  out->outputs_ = outputs_;
  out->value_names_ = value_names_;
  out->node_names_ = node_names_;
  out->many_uses_ = many_uses_;
  out->next_suffix_ = next_suffix_;
  out->live_ = live_;
  out->sorted_ = sorted_;
  out->sorted_slots_ = sorted_slots_;
  out->thinned_ = thinned_, out->rewired_ = rewired_, out->nested_ = nested_;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    Node& c = out->nodes_.push_back({});
    if (n.dead) {
      c.dead = true;
      continue;
    }
    c.op = n.op, c.domain = n.domain, c.name = n.name, c.inputs = n.inputs, c.outputs = n.outputs;
    c.attrs = n.attrs, c.body = n.body, c.roles = n.roles, c.rule = n.rule, c.origins = n.origins;
    c.since_opset = n.since_opset, c.order = n.order;
    for (const auto& [attribute, sub] : n.subgraphs)
      c.subgraphs.emplace_back(attribute, sub->clone());
  }
  return out;
}

void Graph::reserve(size_t nodes, size_t values) {
  nodes_.reserve(nodes);
  values_.reserve(values);
  node_names_.reserve(nodes);
  value_names_.reserve(values);
}

Node of_operator(const Node& n) {
  Node out;
  out.op = n.op, out.domain = n.domain, out.attrs = n.attrs, out.since_opset = n.since_opset;
  return out;
}

Node identity(ValueId from, ValueId to) {
  Node out;
  out.op = identity_operator();
  out.inputs = {from};
  out.outputs = {to};
  return out;
}

std::map<ValueId, ValueId> around_body(const Node& group) {
  const Graph& body = *group.body;
  std::map<ValueId, ValueId> out;
  for (size_t k = 0; k < body.inputs().size(); ++k) out.emplace(body.inputs()[k], group.inputs[k]);
  for (size_t k = 0; k < body.outputs().size(); ++k)
    out.emplace(body.outputs()[k], group.outputs[k]);
  return out;
}

const Graph* subgraph(const Node& n, std::string_view attribute) {
  for (const auto& [key, graph] : n.subgraphs)
    if (key == attribute) return graph.get();
  return nullptr;
}

std::vector<ValueId> Graph::values() const {
  std::vector<ValueId> out;
  for (uint32_t i = 0; i < values_.size(); ++i)
    if (!values_[i].dead) out.push_back(ValueId{i});
  return out;
}

std::vector<ValueId> Graph::constants() const {
  std::vector<ValueId> out;
  for (uint32_t i = 0; i < values_.size(); ++i)
    if (!values_[i].dead && values_[i].constant) out.push_back(ValueId{i});
  return out;
}

std::vector<NodeId> Graph::order() const {
  if (!thinned_ && sorted_.size() == live_) return sorted_;
  std::vector<NodeId> out;
  out.reserve(live_);
  for (NodeId n : sorted_)
    if (!nodes_[n.index].dead) out.push_back(n);
  for (size_t i = sorted_.empty() ? 0 : sorted_slots_; i < nodes_.size(); ++i)
    if (!nodes_[i].dead) out.push_back(NodeId{static_cast<uint32_t>(i)});
  auto before = [&](NodeId a, NodeId b) {
    int x = nodes_[a.index].order, y = nodes_[b.index].order;
    return x != y ? x < y : a.index < b.index;
  };
  const bool as_sorted = !sorted_.empty() && sorted_slots_ == nodes_.size();
  if (!as_sorted && !std::ranges::is_sorted(out, before)) std::ranges::sort(out, before);
  return out;
}

ValueId Graph::find_value(std::string_view name) const {
  return {value_names_.find(name, [&](uint32_t v) -> std::string_view { return values_[v].name; })};
}

NodeId Graph::find_node(std::string_view name) const {
  return {node_names_.find(name, [&](uint32_t n) -> std::string_view { return nodes_[n].name; })};
}

std::string Graph::fresh_name(std::string_view base) const {
  std::string stem(base.empty() ? "v" : base);
  if (!taken(stem)) return stem;
  int& next = next_suffix_.try_emplace(stem, 1).first->second;
  for (;; ++next)
    if (std::string s = stem + "_" + std::to_string(next); !taken(s)) return s;
}

// --- changing

void Graph::add_use(ValueId v, Use u) {
  if (!v) return;
  auto& uses = values_[v.index].uses;
  uses.push_back(u);
  if (uses.size() > kManyUses / 2)  // fewer have no index
    if (auto it = many_uses_.find(v.index); it != many_uses_.end())
      it->second[key(u)] = static_cast<uint32_t>(uses.size() - 1);
}

void Graph::drop_use(ValueId v, Use u) {
  if (!v) return;
  auto& uses = values_[v.index].uses;
  auto index = many_uses_.find(v.index);
  if (index == many_uses_.end() && uses.size() > kManyUses) {
    index = many_uses_.try_emplace(v.index).first;
    for (size_t i = 0; i < uses.size(); ++i) index->second[key(uses[i])] = static_cast<uint32_t>(i);
  }
  if (index == many_uses_.end()) {
    auto it = std::ranges::find(uses, u);
    FERRULE_ASSERT(it != uses.end(), "a use that was never recorded");
    uses.erase(it);
    return;
  }
  auto at = index->second.find(key(u));
  FERRULE_ASSERT(at != index->second.end(), "a use that was never recorded");
  uint32_t slot = at->second;
  index->second.erase(at);
  if (slot + 1 != uses.size()) {
    uses[slot] = uses.back();
    index->second[key(uses[slot])] = slot;
  }
  uses.pop_back();
  if (uses.size() <= kManyUses / 2) many_uses_.erase(index);
}

ValueId Graph::add_value(std::string name, Type type) {
  if (name.empty()) name = fresh_name("v");
  ValueId id{static_cast<uint32_t>(values_.size())};
  FERRULE_ASSERT(!find_value(name), "two values of one name in a graph");
  value_names_.add(name, id.index);
  Value& v = values_.push_back({});
  v.name = std::move(name);
  v.type = std::move(type);
  return id;
}

ValueId Graph::add_input(std::string name, Type type) {
  ValueId v = add_value(std::move(name), std::move(type));
  values_[v.index].is_input = true;
  inputs_.push_back(v);
  return v;
}

namespace {
Type type_of(const Tensor& t) { return Type{t.dtype(), Shape(t.dims().begin(), t.dims().end())}; }
}  // namespace

ValueId Graph::add_constant(std::string name, Tensor value) {
  ValueId v = add_value(std::move(name), type_of(value));
  values_[v.index].constant = std::move(value);
  return v;
}

ValueId Graph::add_capture(std::string name, Type type, ValueId outer) {
  ValueId v = add_value(std::move(name), std::move(type));
  values_[v.index].outer = outer;
  return v;
}

void Graph::add_output(ValueId v) {
  values_[v.index].is_output = true;
  outputs_.push_back(v);
  output_slots_.clear();
}

namespace {
void index_outputs(const std::vector<ValueId>& outputs,
                   std::unordered_multimap<uint32_t, uint32_t>& slots) {
  if (!slots.empty()) return;
  for (uint32_t k = 0; k < outputs.size(); ++k) slots.emplace(outputs[k].index, k);
}
}  // namespace

/// Every slot that holds `from`.
void Graph::replace_output(ValueId from, ValueId to) {
  if (outputs_.size() <= kManyUses) {
    std::ranges::replace(outputs_, from, to);
    return;
  }
  index_outputs(outputs_, output_slots_);
  auto [first, last] = output_slots_.equal_range(from.index);
  std::vector<uint32_t> slots;
  for (auto it = first; it != last; ++it) slots.push_back(it->second);
  output_slots_.erase(first, last);
  for (uint32_t k : slots) {
    outputs_[k] = to;
    output_slots_.emplace(to.index, k);
  }
}

void Graph::set_output(size_t k, ValueId v) {
  const ValueId before = outputs_[k];
  if (outputs_.size() > kManyUses) {
    index_outputs(outputs_, output_slots_);
    auto [first, last] = output_slots_.equal_range(before.index);
    output_slots_.erase(
        std::find_if(first, last, [&](const auto& entry) { return entry.second == k; }));
    output_slots_.emplace(v.index, static_cast<uint32_t>(k));
    values_[before.index].is_output = output_slots_.contains(before.index);
    outputs_[k] = v;
  } else {
    outputs_[k] = v;
    values_[before.index].is_output = contains(outputs_, before);
  }
  values_[v.index].is_output = true;
}

NodeId Graph::add_node(Node node) {
  NodeId id{static_cast<uint32_t>(nodes_.size())};
  trim(node.inputs);
  trim(node.outputs);
  if (node.name.empty()) {
    std::string base = node.op.text();
    if (!node.outputs.empty() && node.outputs[0]) base += "_" + values_[node.outputs[0].index].name;
    node.name = fresh_name(base);
  } else if (find_node(node.name)) {
    node.name = fresh_name(node.name);
  }
  node_names_.add(node.name, id.index);
  if (node.order == 0) node.order = static_cast<int>(nodes_.size());
  node.dead = false;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (!node.outputs[i]) continue;
    Value& v = values_[node.outputs[i].index];
    FERRULE_ASSERT(!v.producer && !v.is_input && !v.constant && !v.dead, "a value produced twice");
    v.producer = id;
    v.producer_slot = static_cast<int>(i);
  }
  for (size_t i = 0; i < node.inputs.size(); ++i)
    add_use(node.inputs[i], {id, static_cast<int>(i)});
  for (ValueId v : captures(node)) add_use(v, {id, Use::kCapture});
  nested_ |= !node.subgraphs.empty();
  nodes_.push_back(std::move(node));
  ++live_;
  rewired_ = true;
  return id;
}

void Graph::kill_value(ValueId v) {
  Value& value = values_[v.index];
  value_names_.erase(value.name, v.index);
  std::vector<Use>().swap(
      value.uses);  // a table with as many dead entries as live ones should not cost twice
  value.type.shape.reset();
  value.dead = true;
  value.producer = {};
  value.constant.reset();
  value.contents.reset();
}

void Graph::remove_node(NodeId n) {
  Node& node = nodes_[n.index];
  FERRULE_ASSERT(!node.dead, "a node removed twice");
  for (ValueId v : node.outputs) {
    if (!v) continue;
    FERRULE_ASSERT(values_[v.index].uses.empty() && !values_[v.index].is_output,
                   "a node removed whose result is in use");
    kill_value(v);
  }
  for (size_t i = 0; i < node.inputs.size(); ++i)
    drop_use(node.inputs[i], {n, static_cast<int>(i)});
  for (ValueId v : captures(node)) drop_use(v, {n, Use::kCapture});
  node_names_.erase(node.name, n.index);
  std::vector<ValueId>().swap(node.inputs);
  std::vector<ValueId>().swap(node.outputs);
  std::vector<std::string>().swap(node.origins);
  node.subgraphs.clear();
  node.body.reset();
  node.dead = true;
  --live_;
  thinned_ = true;
}

void Graph::detach_output(NodeId n, size_t slot) {
  auto& out = nodes_[n.index].outputs;
  Value& v = values_[out[slot].index];
  v.producer = {};
  v.producer_slot = 0;
  out[slot] = {};
  trim(out);
}

void Graph::set_input(NodeId n, size_t slot, ValueId v) {
  auto& in = nodes_[n.index].inputs;
  if (slot >= in.size()) in.resize(slot + 1);
  Use use{n, static_cast<int>(slot)};
  drop_use(in[slot], use);
  in[slot] = v;
  add_use(v, use);
  trim(in);
  rewired_ = true;
}

void Graph::set_attr(NodeId n, std::string name, Attr value) {
  nodes_[n.index].attrs.set(std::move(name), std::move(value));
}

void Graph::set_constant(ValueId v, Tensor t) {
  Value& value = values_[v.index];
  FERRULE_ASSERT(!value.is_input || !value.producer, "a graph input with a producer");
  if (value.producer) {
    auto& out = nodes_[value.producer.index].outputs;
    out[value.producer_slot] = {};
    trim(out);
  }
  value.producer = {};
  value.producer_slot = 0;
  value.outer = {};
  value.type = type_of(t);
  value.contents.reset();
  value.constant = std::move(t);
}

void Graph::rename(ValueId v, std::string name) {
  Value& value = values_[v.index];
  if (value.name == name) return;
  FERRULE_ASSERT(!find_value(name), "two values of one name in a graph");
  value_names_.erase(value.name, v.index);
  value.name = std::move(name);
  value_names_.add(value.name, v.index);
}

void Graph::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  rewired_ = true;
  if (values_[from.index].is_output) {
    const Value& target = values_[to.index];
    bool taken = target.is_output || target.is_input || target.constant || target.outer;
    std::string kept = values_[from.index].name;
    values_[from.index].is_output = false;
    rename(from, fresh_name(kept + "_before"));
    ValueId out = to;
    if (taken) {
      out = add_value(kept, values_[from.index].type);
      Node copy = identity(to, out);
      if (NodeId p = values_[from.index].producer) {
        copy.order = nodes_[p.index].order;
        copy.origins = nodes_[p.index].origins;
      }
      add_node(std::move(copy));
    } else {
      rename(to, kept);
    }
    values_[out.index].is_output = true;
    replace_output(from, out);
  }
  std::vector<Use> uses = std::move(values_[from.index].uses);
  values_[from.index].uses.clear();
  many_uses_.erase(from.index);
  for (Use u : uses) {
    Node& n = nodes_[u.node.index];
    if (u.slot != Use::kCapture) {
      n.inputs[u.slot] = to;
      add_use(to, u);
      continue;
    }
    for (auto& [_, sub] : n.subgraphs)
      for (uint32_t i = 0; i < sub->values_.size(); ++i)
        if (Value& v = sub->values_[i]; v.outer == from) v.outer = to;
    if (std::ranges::find(values_[to.index].uses, u) == values_[to.index].uses.end())
      add_use(to, u);
  }
}

int Graph::remove_dead() {
  auto unused = [&](ValueId v) {
    return !v || (values_[v.index].uses.empty() && !values_[v.index].is_output);
  };
  std::vector<NodeId> work;
  for (uint32_t i = 0; i < nodes_.size(); ++i)
    if (!nodes_[i].dead) work.push_back(NodeId{i});
  // Nested graphs first: a capture that nothing in them reads any more is no use of the outer
  // value.
  for (NodeId id : work) {
    Node& n = nodes_[id.index];
    if (n.subgraphs.empty()) continue;
    std::vector<ValueId> before = captures(n), after;
    for (auto& [_, sub] : n.subgraphs) sub->remove_dead();
    after = captures(n);
    for (ValueId v : before)
      if (!std::ranges::binary_search(after, v)) drop_use(v, {id, Use::kCapture});
  }
  int removed = 0;
  while (!work.empty()) {
    NodeId id = work.back();
    work.pop_back();
    if (nodes_[id.index].dead || !std::ranges::all_of(nodes_[id.index].outputs, unused)) continue;
    std::vector<ValueId> read = nodes_[id.index].inputs;
    for (ValueId v : captures(nodes_[id.index])) read.push_back(v);
    remove_node(id);
    ++removed;
    for (ValueId v : read)
      if (v && values_[v.index].producer) work.push_back(values_[v.index].producer);
  }
  for (uint32_t i = 0; i < values_.size(); ++i)
    if (const Value& v = values_[i];
        !v.dead && !v.producer && !v.is_input && !v.is_output && v.uses.empty())
      kill_value(ValueId{i});
  return removed;
}

Status Graph::sort() {
  if (!thinned_ && !rewired_ && !nested_) return {};
  std::vector<NodeId> now = order();
  std::vector<uint32_t> waiting(nodes_.size(), 0), rank(nodes_.size(), 0);
  for (uint32_t i = 0; i < now.size(); ++i) rank[now[i].index] = i;
  bool sorted = true;
  auto look = [&](NodeId id) {
    auto after = [&](ValueId v) {
      if (!v || !values_[v.index].producer) return;
      ++waiting[id.index];
      sorted &= rank[values_[v.index].producer.index] < rank[id.index];
    };
    const Node& n = nodes_[id.index];
    for (ValueId v : n.inputs) after(v);
    if (n.subgraphs.empty()) return;
    for (ValueId v : captures(n)) after(v);
  };
  if (rewired_ || nested_) std::ranges::for_each(now, look);
  if (sorted) {
    for (uint32_t i = 0; i < now.size(); ++i) nodes_[now[i].index].order = static_cast<int>(i) + 1;
    sorted_ = std::move(now);
    sorted_slots_ = nodes_.size();
    thinned_ = rewired_ = false;
    return {};
  }
  sorted_.clear();
  sorted_.reserve(now.size());
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;
  for (NodeId id : now)
    if (waiting[id.index] == 0) ready.push(rank[id.index]);
  int position = 0;
  while (!ready.empty()) {
    NodeId id = now[ready.top()];
    ready.pop();
    nodes_[id.index].order = ++position;
    sorted_.push_back(id);
    for (ValueId v : nodes_[id.index].outputs)
      if (v)
        for (Use u : values_[v.index].uses)
          if (--waiting[u.node.index] == 0) ready.push(rank[u.node.index]);
  }
  sorted_slots_ = nodes_.size();
  if (static_cast<size_t>(position) == now.size()) {
    thinned_ = rewired_ = false;
    return {};
  }
  sorted_.clear();
  return error(Code::graph_cycle, name, cycle_text(waiting));
}

/// Some cycle among the nodes still waiting, as names: every one of them has a waiting producer.
std::string Graph::cycle_text(const std::vector<uint32_t>& waiting) const {
  auto at = std::ranges::find_if(waiting, [](uint32_t w) { return w > 0; });
  NodeId id{static_cast<uint32_t>(at - waiting.begin())};
  std::vector<NodeId> path;
  std::vector<bool> seen(nodes_.size());
  while (!seen[id.index]) {
    seen[id.index] = true;
    path.push_back(id);
    std::vector<ValueId> read = nodes_[id.index].inputs;
    for (ValueId v : captures(nodes_[id.index])) read.push_back(v);
    for (ValueId v : read)
      if (NodeId p = v ? values_[v.index].producer : NodeId{}; p && waiting[p.index] > 0) {
        id = p;
        break;
      }
  }
  auto start = std::ranges::find(path, id);
  std::string text;
  size_t shown = 0;
  for (auto it = path.end(); it != start && shown < 8; ++shown)
    text += (text.empty() ? "" : " -> ") + escape(nodes_[(--it)->index].name);
  if (static_cast<size_t>(path.end() - start) > shown) text += " -> …";
  return text;
}

std::vector<ValueId> captures(const Node& n) {
  std::vector<ValueId> out;
  for (const auto& [_, sub] : n.subgraphs)
    each_capture(*sub, [&](ValueId, const Value& v) { out.push_back(v.outer); });
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace ferrule
