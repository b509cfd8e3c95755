#include "engine/graph/copy.h"

namespace ferrule {

void add_value(const Graph& from, ValueId v, Graph& to, std::map<ValueId, ValueId>& map) {
  const Value& value = from.value(v);
  if (value.dead || map.contains(v)) return;
  const std::string name = to.fresh_name(value.name);
  const ValueId made =
      value.constant ? to.add_constant(name, *value.constant) : to.add_value(name, value.type);
  if (!value.constant) to.set_contents(made, value.contents);
  map[v] = made;
}

void add_nodes(const Graph& from, std::span<const NodeId> nodes, Graph& to,
               std::map<ValueId, ValueId>& map) {
  for (NodeId id : nodes) {
    const Node& node = from.node(id);
    Node n = of_operator(node);
    n.rule = node.rule, n.origins = node.origins, n.body = node.body, n.roles = node.roles;
    n.name = to.find_node(node.name) ? to.fresh_name(node.name) : node.name;
    for (ValueId v : node.inputs) n.inputs.push_back(v ? map.at(v) : ValueId{});
    for (ValueId v : node.outputs) n.outputs.push_back(v ? map.at(v) : ValueId{});
    for (const auto& [key, sub] : node.subgraphs) n.subgraphs.emplace_back(key, copied(*sub, map));
    to.add_node(std::move(n));
  }
}

void add_nodes(const Graph& from, Graph& to, std::map<ValueId, ValueId>& map) {
  for (ValueId v : from.values()) add_value(from, v, to, map);
  add_nodes(from, from.order(), to, map);
}

std::unique_ptr<Graph> copied(const Graph& from, const std::map<ValueId, ValueId>& outside) {
  auto to = std::make_unique<Graph>();
  to->name = from.name;
  std::map<ValueId, ValueId> map;
  for (ValueId v : from.inputs()) map[v] = to->add_input(from.value(v).name, from.value(v).type);
  each_capture(from, [&](ValueId id, const Value& v) {
    map[id] = to->add_capture(v.name, v.type, outside.at(v.outer));
  });
  add_nodes(from, *to, map);
  for (ValueId v : from.outputs()) to->add_output(map.at(v));
  return to;
}

}  // namespace ferrule
