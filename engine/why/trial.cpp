// The model fused once more, with something changed, to see whether the change does what is said of
// it.
#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/semantics/infer.h"
#include "engine/why/internal.h"

namespace ferrule::why {
namespace {

constexpr size_t kNodes =
    4000;  // fused again for one answer, in all; a model is fused at least once

/// The one input that something computes or that the model is given, and its slot; none if there
/// are several.
std::optional<size_t> data_slot(const Graph& g, NodeId n) {
  std::optional<size_t> slot;
  for (size_t k = 0; k < g.node(n).inputs.size(); ++k) {
    const ValueId v = g.input(n, k);
    if (!v || g.constant(v)) continue;
    if (slot) return std::nullopt;
    slot = k;
  }
  return slot;
}

}  // namespace

Status move_chain(const Semantics& ops, Graph& g, const std::vector<std::string>& chain,
                  const std::string& behind) {
  std::vector<NodeId> nodes;
  for (const std::string& name : chain) nodes.push_back(g.find_node(name));
  auto refuse = [&](const char* why) {
    return error(Code::usage, chain.empty() ? "" : chain[0], why);
  };
  for (size_t k = 0; k < nodes.size(); ++k) {
    if (!nodes[k] || g.node(nodes[k]).outputs.size() != 1 || !data_slot(g, nodes[k]))
      return refuse("no chain");
    if (k > 0 && g.input(nodes[k], *data_slot(g, nodes[k])) != g.output(nodes[k - 1]))
      return refuse("no chain");
    const Value& y = g.value(g.output(nodes[k]));
    if (y.is_output || y.uses.size() != 1 || y.uses[0].slot == Use::kCapture)
      return refuse("its result is read elsewhere");
  }
  if (nodes.empty()) return refuse("no chain");
  const size_t first = *data_slot(g, nodes[0]);
  const ValueId x = g.input(nodes[0], first), z = g.output(nodes.back());
  const Use reader = g.value(z).uses[0];
  if (g.value(x).type.dtype != g.value(z).type.dtype) return refuse("it changes the element type");
  g.set_input(reader.node, static_cast<size_t>(reader.slot), x);
  if (behind.empty()) return {};
  const NodeId n = g.find_node(behind);
  if (n != reader.node || g.node(n).outputs.size() != 1)
    return refuse("the chain is not in front of that node");
  const ValueId y = g.output(n);
  g.replace_uses(y, z);
  g.set_input(nodes[0], first, y);
  FERRULE_TRY(g.sort());
  for (NodeId c : nodes) {  // their results have the new place's shape
    Type t = g.value(g.output(c)).type;
    t.shape = g.value(y).type.shape;
    g.set_type(g.output(c), t);
    FERRULE_TRY(infer(ops, g, c));
  }
  return {};
}

namespace {

/// The same text for the same change.
std::string text(const Change& c) {
  std::string out = c.target + "|" + c.behind;
  for (const Rule* r : c.enable) out += "|+" + r->id;
  for (const std::string& d : c.disable) out += "|-" + d;
  for (const std::string& p : c.ignore_profit) out += "|!" + p;
  for (const std::string& n : c.bypass) out += "|~" + n;
  if (!c.alone.empty()) out += "|=" + c.alone;
  for (const std::string& n : c.readers) out += "|<" + n;
  return out;
}

/// The value is read by these nodes only, and the others read an input in its place. errors: usage
/// where the model has no such value, or nobody else reads it.
Status leave_alone(Graph& g, const std::string& value, const std::vector<std::string>& readers) {
  const ValueId v = g.find_value(value);
  auto refuse = [&](const char* why) { return error(Code::usage, value, why); };
  if (!v || !g.value(v).type.known()) return refuse("the model has no such value");
  const ValueId other = g.add_input(g.fresh_name(value + ".other"), g.value(v).type);
  const std::vector<Use> uses = g.value(v).uses;
  size_t left = 0;
  for (const Use& u : uses) {
    if (u.slot == Use::kCapture) return refuse("a nested graph reads it");
    if (contains(readers, g.node(u.node).name))
      ++left;
    else
      g.set_input(u.node, static_cast<size_t>(u.slot), other);
  }
  if (left == 0 || left == uses.size()) return refuse("none of them reads it, or nobody else");
  return {};
}

}  // namespace

Trials::Trials(const Observed& o, const Sizes& sizes, int budget)
    : o_(o), sizes_(sizes), budget_(budget) {
  const size_t affordable = kNodes / std::max<size_t>(o.model->live_nodes(), 1);
  budget_ = std::min(budget_, static_cast<int>(std::max<size_t>(affordable, 1)));
}

int64_t Trials::traffic(const Graph& fused, const Knowledge& knowledge) const {
  if (!o_.traffic) return -1;
  return o_.traffic(fused, knowledge, [&](const Type& t) { return sizes_.sized(t); }).value_or(-1);
}

Result<Trials::Outcome> Trials::fused(const Change& change) const {
  Knowledge k = *o_.knowledge;
  EngineOptions options = o_.options;
  options.snapshots = options.near_misses = false;
  for (auto& r : k.rules.rules) {
    const bool on = contains(change.enable, r.get());
    if (!on && !contains(change.disable, r->id)) continue;
    auto other = std::make_shared<Rule>(*r);
    other->enabled = on;
    r = std::move(other);
  }
  if (!change.target.empty()) {
    FERRULE_ASSIGN(k.target, load_target(options.rule_dirs, change.target));
    FERRULE_TRY(use_profile(k.target, options.profile));
  }
  options.ignore_profit.insert(options.ignore_profit.end(), change.ignore_profit.begin(),
                               change.ignore_profit.end());
  Graph g = std::move(*o_.model->clone());
  if (!change.bypass.empty())
    FERRULE_TRY(move_chain(o_.knowledge->ops, g, change.bypass, change.behind));
  if (!change.alone.empty()) FERRULE_TRY(leave_alone(g, change.alone, change.readers));
  FERRULE_TRY(g.sort());
  FERRULE_ASSIGN(Fused f, fuse(std::move(g), k, options));
  const int64_t bytes = traffic(f.graph, k);
  return Outcome{std::move(f.graph), bytes};
}

std::optional<Trials::Tried> Trials::layer(const Change& asked,
                                           const std::vector<std::string>& names) {
  Change change = asked;
  if (!change.alone.empty())
    change.readers.insert(change.readers.end(), names.begin(), names.end());
  auto [it, fresh] = known_.try_emplace(text(change));
  if (fresh) {
    if (budget_ <= 0) return known_.erase(it), std::nullopt;
    --budget_;
    if (auto g = fused(change)) it->second = std::make_shared<const Outcome>(std::move(*g));
  }
  if (!it->second)  // the graph so changed is none
    return change.alone.empty() ? std::optional(Tried{}) : std::nullopt;
  const Graph& g = it->second->graph;
  if (!now_) now_ = traffic(*o_.fused.snapshots.back().graph, *o_.knowledge);
  Tried out;
  // With other readers it is another model, whose bytes say nothing of this one.
  if (*now_ >= 0 && it->second->traffic >= 0 && change.alone.empty())
    out.saves = *now_ - it->second->traffic;
  auto holds = [](const Node& n, const std::string& name) { return contains(n.origins, name); };
  size_t now = 1;
  std::set<std::string> layers;  // that hold a single node, as it is
  if (names.size() == 1)
    for (NodeId n : o_.plan.graph.order())
      if (const Node& node = o_.plan.graph.node(n); holds(node, names[0]))
        now = std::max(now, node.origins.size()), layers.insert(node.name);
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (!std::ranges::all_of(names, [&](const std::string& name) { return holds(n, name); }))
      continue;
    if (names.size() > 1 || n.origins.size() > now || (out.saves > 0 && !layers.contains(n.name))) {
      out.layer = n.name;
      return out;
    }
  }
  return out;
}

}  // namespace ferrule::why
