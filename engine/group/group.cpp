#include "engine/group/group.h"

#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/group/bind_roles.h"
#include "engine/match/pattern_matcher.h"

namespace ferrule {

Accept accepts_group(const Rule& rule, std::span<const NodeId> nodes, const MatchContext& ctx,
                     std::shared_ptr<const Body>* made) {
  if (!ctx.target) return answer::unknown({});
  const std::string& contract = rule.contract;
  auto body = std::make_shared<const Body>(make_body(ctx.graph, nodes));
  if (made) *made = body;
  std::vector<NodeId> order = body->graph.order();
  NodeId anchor;  // none: the contract is one of all nodes
  for (NodeId n : order)
    if (!anchor && contract_of(body->graph.node(n), ctx.ops) == contract) anchor = n;
  return accepts(body->graph, order, anchor, contract, *ctx.target, ctx.ops, ctx.explain,
                 &ctx.graph);
}

std::optional<Rejection> judge_roles(const Rule& rule, Match& m, const MatchContext& ctx) {
  Judgement j = judge(rule, rule.where, m, ctx);
  if (j.refused) return std::move(j.refused);
  auto bound = bind_roles(rule, m, j.let, ctx);
  if (auto* r = std::get_if<Rejection>(&bound)) return std::move(*r);
  BoundRoles& b = std::get<BoundRoles>(bound);
  // It would be formed again without end.
  if (b.nodes.size() == 1 && ctx.graph.node(b.nodes[0]).body)
    return no_match(rule, m.root,
                    ctx.explain ? node_text(ctx.graph, b.nodes[0]) + " is a group already" : "");
  m.let = std::move(j.let);
  m.nodes = std::move(b.nodes), m.outputs = b.body->outputs;
  m.body = std::move(b.body), m.roles = std::move(b.roles);
  return std::nullopt;
}

Attempt judge_group(const Rule& rule, Match m, const MatchContext& ctx) {
  Judgement j =
      judge(rule, rule.where, m, ctx, [&] { return accepts_group(rule, m.nodes, ctx, &m.body); });
  m.let = std::move(j.let);
  if (!j.refused) return m;
  j.refused->rule = &rule;
  j.refused->root = m.root;
  j.refused->matched_nodes = static_cast<int>(m.nodes.size());
  return std::move(*j.refused);
}

std::string joined_names(const Graph& g, std::span<const NodeId> nodes, std::string_view between) {
  std::string out;
  for (NodeId n : nodes) out += (out.empty() ? "" : std::string(between)) + g.node(n).name;
  return out;
}

std::string group_name(const Rule& rule, const Match& m, const MatchContext& ctx) {
  const EvalContext eval{ctx.graph, m.bindings, ctx.ops, m.let, ctx.target};
  auto list = [&](const char* name) -> const std::vector<NodeId>* {
    auto it = m.bindings.node_lists.find(name);
    return it == m.bindings.node_lists.end() ? nullptr : &it->second;
  };
  const bool around = !rule.region.around_ops.empty() || !rule.region.around_classes.empty();
  std::string_view rest = rule.name;
  std::string out;
  while (!rest.empty()) {
    size_t tail = list("tail") ? rest.find("{tail}") : rest.npos,
           region = list("region") ? rest.find("{region}") : rest.npos;
    size_t at = std::min(tail, region);
    out += interpolate(rest.substr(0, at), eval);
    if (at == rest.npos) break;
    std::string names = tail < region
                            ? joined_names(ctx.graph, *list("tail"), " + ")
                            : joined_names(ctx.graph, *list("region"), around ? " + " : ", ");
    if (names.empty() && out.ends_with(" + ")) out.resize(out.size() - 3);
    out += names;
    rest.remove_prefix(at + (tail < region ? 6 : 8));
  }
  return out.empty() ? joined_names(ctx.graph, m.nodes, " + ") : out;
}

namespace {

/// Whether the body, made earlier, still is that of these nodes: groups that were formed since then
/// may have taken values away.
bool still_fits(const Graph& g, const Body* body, std::span<const NodeId> nodes) {
  if (!body || !std::ranges::equal(body->nodes, nodes)) return false;
  auto lives = [&](ValueId v) { return !g.value(v).dead; };
  return std::ranges::all_of(body->inputs, lives) && std::ranges::all_of(body->outputs, lives);
}

}  // namespace

NodeId form_group(Graph& g, std::span<const NodeId> nodes, std::string contract, std::string rule,
                  std::string name, std::shared_ptr<const Body> made,
                  std::shared_ptr<const Roles> roles) {
  const bool fits = still_fits(g, made.get(), nodes);
  FERRULE_ASSERT(fits || !roles, "roles of other operands than the group has");
  if (!fits) made = std::make_shared<const Body>(make_body(g, nodes));
  const Body& body = *made;
  Node group;
  group.op = "group." + contract;
  group.domain = "ferrule";
  group.rule = std::move(rule);
  group.origins = body.origins;
  group.inputs = body.inputs;
  group.order = g.node(nodes.back()).order;
  for (ValueId v : body.outputs)
    g.detach_output(g.value(v).producer, static_cast<size_t>(g.value(v).producer_slot));
  group.outputs = body.outputs;
  for (size_t i = nodes.size(); i-- > 0;) {
    for (ValueId v : g.node(nodes[i]).outputs)
      FERRULE_ASSERT(!v || g.value(v).uses.empty(), "a value inside a group that is still read");
    g.remove_node(nodes[i]);
  }
  group.name = std::move(name);
  group.body = std::shared_ptr<const Graph>(made, &body.graph);
  group.roles = std::move(roles);
  return g.add_node(std::move(group));
}

Result<NodeId> make_group(Graph& g, std::span<const NodeId> nodes, std::string contract,
                          std::string rule, std::string name) {
  if (!convex(g, nodes))
    return error(Code::rule_broken, node_text(g, nodes[0]), rule,
                 "would group nodes between which a path leaves and comes back");
  return form_group(g, nodes, std::move(contract), std::move(rule), std::move(name));
}

std::string too_many_inputs(const Graph& g, NodeId n, size_t read, int most) {
  return fmt::format("{} reads {}; the rule allows {} (its parameter max_inputs)", node_text(g, n),
                     counted(read, "tensor"), most);
}

}  // namespace ferrule
