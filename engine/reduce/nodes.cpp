// Passes over nodes, outputs, operands and attributes.
#include <algorithm>

#include "engine/reduce/state.h"

namespace ferrule::reduce {
namespace {

constexpr char kSlash = '\x1f';  // between a path's parts; names may hold anything else

void add_places(const Graph& g, const std::string& path, std::vector<Place>& out) {
  out.push_back({&g, path});
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    for (size_t k = 0; k < n.subgraphs.size(); ++k)
      add_places(*n.subgraphs[k].second, path + n.name + kSlash + std::to_string(k) + kSlash, out);
  }
}

/// Who reads a value: nodes that stay, and nodes that are cut.
struct Readers {
  bool inside = false, outside = false;
};
Readers readers(const Graph& g, ValueId v, const std::set<NodeId>& cut) {
  Readers r;
  for (const Use& u : g.value(v).uses) (cut.contains(u.node) ? r.outside : r.inside) = true;
  return r;
}

bool wanted(const Graph& g, ValueId v) {
  return v && (!g.value(v).uses.empty() || g.value(v).is_output);
}

/// The graph without these nodes. Results are what nothing inside reads and what was one;
/// `exposed`: also what the nodes that are cut read, since another reader may matter. `fixed`:
/// shapes and what is made of constants stay constants.
Edit cut(State& s, const std::set<NodeId>& nodes, bool exposed, bool fixed) {
  const Graph& g = s.graph();
  Edit edit;
  GraphEdit& e = edit[&g];
  e.cut = nodes;
  e.outputs.emplace();
  for (NodeId id : g.order()) {
    const std::vector<ValueId>& made = g.node(id).outputs;
    if (!nodes.contains(id) &&
        std::ranges::none_of(made, [&](ValueId v) { return wanted(g, v); })) {
      e.outputs->push_back(made[0]);  // the failure may be in what nothing reads
      continue;
    }
    for (ValueId v : made) {
      if (!v) continue;
      const Readers r = readers(g, v, nodes);
      if (nodes.contains(id)) {
        const Tensor* t = fixed && r.inside ? s.values().fixed(g, v) : nullptr;
        if (t) e.constants[v] = *t;
      } else if (g.value(v).is_output || (r.outside && (exposed || !r.inside))) {
        e.outputs->push_back(v);
      }
    }
  }
  return edit;
}

/// Operands that may stand for a result: of its very type first.
std::vector<ValueId> substitutes(const Graph& g, const Node& n, ValueId result) {
  const Type& want = g.value(result).type;
  std::vector<ValueId> same, alike;
  for (ValueId v : n.inputs) {
    if (!v || g.value(v).type.dtype != want.dtype) continue;
    const Type& t = g.value(v).type;
    const bool equal = t.shape && want.shape && *t.shape == *want.shape;
    auto& to = equal ? same : alike;
    if (!contains(to, v)) to.push_back(v);
  }
  same.insert(same.end(), alike.begin(), alike.end());
  return same;
}

/// The node's results become its operands, the `choice`-th of those that fit. False: there are none
/// so many, or nothing reads the node.
bool bypass(const Graph& g, const std::string& at, size_t choice, Edit& edit) {
  const auto found = node_at(g, at);
  if (!found) return false;
  const auto& [of, id] = *found;
  bool some = false;
  for (ValueId v : of->node(id).outputs) {
    if (!wanted(*of, v)) continue;
    const std::vector<ValueId> all = substitutes(*of, of->node(id), v);
    if (choice >= all.size()) return false;
    edit[of].aliases[v] = all[choice];
    some = true;
  }
  return some;
}

std::vector<std::string> names(const Graph& g, const std::vector<ValueId>& values) {
  std::vector<std::string> out;
  for (ValueId v : values) out.push_back(g.value(v).name);
  return out;
}

/// Whatever `keys_of` lists for each node is left out, piece by piece: items are "node, line break,
/// key".
template <class Keys, class Without>
void sweep_details(State& s, const Keys& keys_of, const Without& without) {
  std::vector<std::string> items;
  for (const std::string& at : all_nodes(s.graph())) {
    const auto [of, id] = *node_at(s.graph(), at);
    for (const std::string& key : keys_of(*of, of->node(id))) items.push_back(at + '\n' + key);
  }
  sweep(std::move(items), [&](std::span<const std::string> part) {
    Edit edit;
    for (const std::string& item : part) {
      const size_t end = item.rfind('\n');
      const auto found = node_at(s.graph(), item.substr(0, end));
      if (found) without(*found->first, found->second, item.substr(end + 1), edit[found->first]);
    }
    return s.attempt(edit);
  });
}

}  // namespace

std::vector<Place> places(const Graph& g) {
  std::vector<Place> out;
  add_places(g, "", out);
  return out;
}

size_t count_nodes(const Graph& g) {
  size_t n = 0;
  for (const Place& p : places(g)) n += p.graph->live_nodes();
  return n;
}

std::vector<std::string> all_nodes(const Graph& g) {
  std::vector<std::string> out;
  for (const Place& p : places(g))
    for (NodeId id : p.graph->order()) out.push_back(p.path + p.graph->node(id).name);
  return out;
}

std::optional<std::pair<const Graph*, NodeId>> node_at(const Graph& g, const std::string& at) {
  const Graph* of = &g;
  size_t begin = 0;
  for (size_t end; (end = at.find(kSlash, begin)) != std::string::npos;) {
    const NodeId outer = of->find_node(at.substr(begin, end - begin));
    const size_t next = at.find(kSlash, end + 1);
    const size_t k = static_cast<size_t>(std::stoul(at.substr(end + 1, next - end - 1)));
    if (!outer || k >= of->node(outer).subgraphs.size()) return std::nullopt;
    of = of->node(outer).subgraphs[k].second.get();
    begin = next + 1;
  }
  const NodeId id = of->find_node(at.substr(begin));
  if (!id) return std::nullopt;
  return std::pair{of, id};
}

void cut_nodes(State& s) {
  std::vector<std::string> items;
  for (NodeId id : s.graph().order()) items.push_back(s.graph().node(id).name);
  sweep(std::move(items), [&](std::span<const std::string> part) {
    std::set<NodeId> nodes;
    for (const std::string& name : part)
      if (NodeId id = s.graph().find_node(name)) nodes.insert(id);
    if (nodes.empty()) return true;
    for (bool fixed : {true, false})
      for (bool exposed : {false, true})
        if (s.attempt(cut(s, nodes, exposed, fixed))) return true;
    return false;
  });
}

void inline_graphs(State& s) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string& at : all_nodes(s.graph())) {
      const auto [of, id] = *node_at(s.graph(), at);
      for (size_t k = 0; k < of->node(id).subgraphs.size() && !again; ++k) {
        Edit edit;
        edit[of].inlined[id] = k;
        again = s.attempt(edit);
      }
      if (again) break;
    }
  }
}

void bypass_nodes(State& s) {
  sweep(all_nodes(s.graph()), [&](std::span<const std::string> part) {
    for (size_t choice = 0;; ++choice) {
      Edit edit;
      bool some = false;
      for (const std::string& at : part) some |= bypass(s.graph(), at, choice, edit);
      if (!some) return false;
      if (s.attempt(edit)) return true;
      if (part.size() > 1) return false;
    }
  });
}

void drop_outputs(State& s) {
  sweep(names(s.graph(), s.graph().outputs()), [&](std::span<const std::string> part) {
    const Graph& g = s.graph();
    Edit edit;
    auto& kept = edit[&g].outputs.emplace();
    for (ValueId v : g.outputs())
      if (!contains(part, g.value(v).name)) kept.push_back(v);
    return !kept.empty() && s.attempt(edit);
  });
  auto unread = [](const Graph& g, const Node& n) {
    std::vector<std::string> out;
    for (size_t k = 1; k < n.outputs.size(); ++k)
      if (n.outputs[k] && !wanted(g, n.outputs[k])) out.push_back(std::to_string(k));
    return out;
  };
  sweep_details(s, unread, [](const Graph&, NodeId id, const std::string& slot, GraphEdit& e) {
    e.no_output.insert({id, std::stoul(slot)});
  });
}

void drop_details(State& s) {
  auto operands = [](const Graph&, const Node& n) {
    std::vector<std::string> out;
    for (size_t k = 0; k < n.inputs.size(); ++k)
      if (n.inputs[k]) out.push_back(std::to_string(k));
    return out;
  };
  sweep_details(s, operands, [](const Graph&, NodeId id, const std::string& slot, GraphEdit& e) {
    e.no_input.insert({id, std::stoul(slot)});
  });
  sweep_details(s, operands, [](const Graph&, NodeId id, const std::string& slot, GraphEdit& e) {
    e.fewer_inputs.insert({id, std::stoul(slot)});
  });
  auto attributes = [](const Graph&, const Node& n) {
    std::vector<std::string> out;
    for (const auto& [name, _] : n.attrs.items()) out.push_back(name);
    return out;
  };
  sweep_details(s, attributes, [](const Graph&, NodeId id, const std::string& name, GraphEdit& e) {
    e.attrs[{id, name}] = std::nullopt;
  });
}

void join_inputs(State& s) {
  sweep(names(s.graph(), s.graph().inputs()), [&](std::span<const std::string> part) {
    if (part.size() != 1) return false;
    const Graph& g = s.graph();
    const ValueId v = g.find_value(part[0]);
    for (ValueId other : g.inputs()) {
      if (other == v) return false;
      if (str(g.value(other).type) != str(g.value(v).type)) continue;
      Edit edit;
      edit[&g].aliases[v] = other;
      if (s.attempt(edit)) return true;
    }
    return false;
  });
}

}  // namespace ferrule::reduce
