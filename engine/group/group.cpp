// The group phase and how a group is made; absorb.cpp finds tails, region.cpp regions.
#include "engine/group/group.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

#include "engine/base/diagnostics.h"
#include "engine/match/index.h"
#include "engine/match/matcher.h"
#include "engine/group/merge.h"
#include "engine/semantics/movement.h"
#include "engine/plan/place.h"
#include "engine/group/window.h"

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

/// Copies nodes into a body graph, flattening groups.
class BodyBuilder {
 public:
  BodyBuilder(const Graph& g, std::span<const NodeId> nodes) : g_(g), inside_(count_values(g, nodes)) {
    out_.nodes.assign(nodes.begin(), nodes.end());
    if (nodes.size() > kFew) members_.assign(nodes.begin(), nodes.end()), std::ranges::sort(members_);
    reserve();
    for (NodeId n : nodes) add(n);
    for (NodeId n : nodes)
      for (ValueId v : g.node(n).outputs)
        if (v && leaves(v)) {
          out_.outputs.push_back(v);
          out_.graph.add_output(inside_.at(v));
        }
  }
  Body take() { return std::move(out_); }

 private:
  static constexpr size_t kFew = 16;

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
      if (!n.body) values += static_cast<size_t>(std::ranges::count_if(n.inputs, [&](ValueId v) { return v && !made_inside(v); }));
      origins += n.origins.size();
    }
    out_.graph.reserve(count, values);
    out_.origins.reserve(origins);
    few_origins_ = origins <= 4 * kFew;
  }

  bool member(NodeId n) const {
    return members_.empty() ? std::ranges::find(out_.nodes, n) != out_.nodes.end() : std::ranges::binary_search(members_, n);
  }
  bool made_inside(ValueId v) const {
    const NodeId p = g_.value(v).producer;
    return p && member(p);
  }
  bool leaves(ValueId v) const {
    const Value& value = g_.value(v);
    return value.is_output || std::ranges::any_of(value.uses, [&](const Use& u) { return !member(u.node); });
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
    known = out_.graph.add_input(out_.graph.fresh_name(from.name), from.constant ? Type{} : from.type);
    if (from.constant) out_.graph.set_constant(known, *from.constant);
    else if (from.contents) out_.graph.set_contents(known, from.contents);
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
    Node c;
    c.op = n.op, c.domain = n.domain, c.name = n.name, c.attrs = n.attrs, c.rule = n.rule;
    c.origins = n.origins, c.since_opset = n.since_opset;
    c.inputs.reserve(n.inputs.size()), c.outputs.reserve(n.outputs.size());
    return c;
  }

  const Graph& g_;
  std::vector<NodeId> members_;         // of more than a few, sorted
  ValueMap inside_;                     // outer -> body
  bool few_origins_ = false;
  std::set<std::string_view> seen_;     // origins, where they are more
  Body out_;
};

std::string joined(const Graph& g, const std::vector<NodeId>& nodes, std::string_view between) {
  std::string out;
  for (NodeId n : nodes) out += (out.empty() ? "" : std::string(between)) + g.node(n).name;
  return out;
}

}  // namespace

Body make_body(const Graph& g, std::span<const NodeId> nodes) {
  return BodyBuilder(g, nodes).take();
}

/// Movements have contracts of their own, and generated kernels take them, too.
static bool can_anchor(const Graph& g, NodeId n, std::string_view contract, const OpTable& ops) {
  return contract_of(g, g.node(n), ops) == contract || (contract == "pointwise" && is_movement(g.node(n)));
}

Accept accepts_group(const Graph& g, Match& m, std::string_view contract, const Target& target, const OpTable& ops) {
  auto body = std::make_shared<const Body>(make_body(g, m.nodes));
  m.body = body;
  std::vector<NodeId> order = body->graph.order();
  if (is_joint_contract(contract)) return accepts(body->graph, order, {}, contract, target, ops);
  NodeId anchor;
  for (NodeId n : order)
    if (!anchor && can_anchor(body->graph, n, contract, ops)) anchor = n;
  if (!anchor)
    return {Truth::no, fmt::format("no node that a {} kernel could be made of", contract)};
  return accepts(body->graph, order, anchor, contract, target, ops);
}

std::string group_name(const Rule& rule, const Match& m, const MatchContext& ctx) {
  EvalContext eval{ctx.graph, &m.bindings, ctx.target, ctx.ops, {}, &m.let};
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
    std::string names = tail < region ? joined(*ctx.graph, *list("tail"), " + ")
                                      : joined(*ctx.graph, *list("region"), around ? " + " : ", ");
    if (names.empty() && out.ends_with(" + ")) out.resize(out.size() - 3);
    out += names;
    rest.remove_prefix(at + (tail < region ? 6 : 8));
  }
  return out.empty() ? joined(*ctx.graph, m.nodes, " + ") : out;
}

namespace {

/// Whether the body, made earlier, still is that of these nodes: groups that were formed since then may have taken
/// values away.
bool still_fits(const Graph& g, const Body* body, std::span<const NodeId> nodes) {
  if (!body || !std::ranges::equal(body->nodes, nodes)) return false;
  auto lives = [&](ValueId v) { return !g.value(v).dead; };
  return std::ranges::all_of(body->inputs, lives) && std::ranges::all_of(body->outputs, lives);
}

/// make_group for nodes that are known to be convex; `made`: their body, if one was made already.
NodeId form_group(Graph& g, std::span<const NodeId> nodes, std::string contract, std::string rule,
                  std::string name, std::shared_ptr<const Body> made = nullptr) {
  if (!still_fits(g, made.get(), nodes)) made = std::make_shared<const Body>(make_body(g, nodes));
  const Body& body = *made;
  Node group;
  group.op = "group." + contract;
  group.domain = "ferrule";
  group.rule = std::move(rule);
  group.origins = body.origins;
  group.inputs = body.inputs;
  group.order = g.node(nodes.back()).order;
  for (ValueId v : body.outputs) g.detach_output(g.value(v).producer, static_cast<size_t>(g.value(v).producer_slot));
  group.outputs = body.outputs;
  for (size_t i = nodes.size(); i-- > 0;) {
    for (ValueId v : g.node(nodes[i]).outputs)
      FERRULE_ASSERT(!v || g.value(v).uses.empty(), "a value inside a group that is still read");
    g.remove_node(nodes[i]);
  }
  group.name = std::move(name);
  group.body = std::shared_ptr<const Graph>(made, &body.graph);
  return g.add_node(std::move(group));
}

}  // namespace

Result<NodeId> make_group(Graph& g, std::span<const NodeId> nodes, std::string contract,
                          std::string rule, std::string name) {
  if (!convex(g, nodes))
    return error(Code::rule_broken, node_text(g, nodes[0]), rule,
                 "would group nodes between which a path leaves and comes back");
  return form_group(g, nodes, std::move(contract), std::move(rule), std::move(name));
}

Attempt match_any(const Rule& rule, NodeId node, const MatchContext& ctx) {
  if (rule.kind == RuleKind::rewrite) return match_rule(rule, node, ctx);
  if (rule.kind == RuleKind::absorb) return match_absorb(rule, node, ctx);
  if (rule.kind == RuleKind::merge) return match_merge(rule, node, ctx);
  if (rule.kind == RuleKind::place) return match_place(rule, node, ctx);
  if (rule.kind == RuleKind::window) return match_window(rule, node, ctx);
  std::vector<Rejection> misses;
  for (Match& m : match_regions(rule, ctx, &misses))
    if (std::ranges::find(m.nodes, node) != m.nodes.end()) return std::move(m);
  for (Rejection& r : misses)
    if (r.root == node) return std::move(r);
  return no_match(rule, node, node_text(*ctx.graph, node) + " is in no region of this rule");
}

namespace {

class GroupPhase {
 public:
  GroupPhase(const PassContext& ctx, std::string_view phase)
      : ctx_(ctx), g_(*ctx.graph), phase_(phase) {}

  Status run() {
    for (const auto& r : ctx_.rules->rules)
      if (r->enabled && r->phase == phase_ && (r->kind == RuleKind::absorb || r->kind == RuleKind::window || r->kind == RuleKind::region)) rules_.push_back(r.get());
    if (rules_.empty()) return {};
    FERRULE_TRY(g_.sort());
    index_.emplace(rules_, ctx_.ops);
    roots_.resize(rules_.size());
    tried_.assign(rules_.size(), -1);
    for (NodeId n : g_.order()) add_roots(n);
    // Grouping only ever takes nodes away, so this ends; a rule that matches groups may extend
    // them.
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t rank = 0; rank < rules_.size(); ++rank) {
        if (std::exchange(tried_[rank], fires_) == fires_) continue;  // nothing changed since the last time
        const bool absorbs = rules_[rank]->kind != RuleKind::region;
        FERRULE_ASSIGN(bool hit, absorbs ? absorb(rank) : regions(*rules_[rank]));
        changed |= hit;
      }
    }
    if (ctx_.near_misses)
      for (auto& [_, r] : misses_) ctx_.near_misses->push_back(std::move(r));
    return g_.sort();
  }

 private:
  MatchContext match_context() {
    return {&g_,
            ctx_.ops,
            ctx_.target,
            ctx_.limits,
            &steps_,
            ctx_.ignore_profit,
            ctx_.near_misses != nullptr};
  }

  Status in_time() const {
    if (ctx_.cancel && ctx_.cancel->stopped())
      return error(Code::cancelled, std::string(phase_), "time or caller");
    return {};
  }

  void add_roots(NodeId n) {
    for (uint32_t rank : index_->ranks_at(g_.node(n))) roots_[rank].push_back(n);
  }

  /// Anchors from the last to the first: where both operands of an Add are convolutions, the later
  /// takes it.
  Result<bool> absorb(uint32_t rank) {
    std::vector<NodeId>& known = roots_[rank];
    std::erase_if(known, [&](NodeId n) { return g_.node(n).dead; });
    std::vector<NodeId> roots = known;  // those of groups made here come with the next pass
    std::ranges::sort(roots, std::greater<>(), [&](NodeId n) { return std::pair(g_.node(n).order, n.index); });
    bool changed = false;
    for (NodeId root : roots) {
      if (g_.node(root).dead || (!ctx_.near_misses && !index_->promising(rank, g_, root))) continue;
      FERRULE_TRY(in_time());
      MatchContext mc = match_context();
      Attempt a = match_any(*rules_[rank], root, mc);
      if (auto* r = std::get_if<Rejection>(&a)) {
        if (ctx_.near_misses) misses_[{r->rule->id, r->root}] = std::move(*r);
        continue;
      }
      FERRULE_TRY(fire(*rules_[rank], std::get<Match>(a), rules_[rank]->kind == RuleKind::window ? "window" : "absorb"));
      changed = true;
    }
    return changed;
  }

  Result<bool> regions(const Rule& rule) {
    FERRULE_TRY(g_.sort());
    MatchContext mc = match_context();
    std::vector<Rejection> misses;
    std::vector<Match> found = match_regions(rule, mc, ctx_.near_misses ? &misses : nullptr);
    for (Rejection& r : misses) misses_[{r.rule->id, r.root}] = std::move(r);
    for (Match& m : found) {
      FERRULE_TRY(in_time());
      FERRULE_TRY(fire(rule, m, "region"));
    }
    return !found.empty();
  }

  Status fire(const Rule& rule, const Match& m, const char* kind) {
    Step step{std::string(phase_), rule.id, kind, {}, {}, {}};
    for (NodeId n : m.nodes) step.before.push_back(g_.node(n).name);
    step.root = g_.node(m.root).name;
    auto tail = m.bindings.node_lists.find("tail");
    std::vector<NodeId> first, rest;
    for (NodeId n : m.nodes) {
      bool behind = tail != m.bindings.node_lists.end()
                        ? std::ranges::find(tail->second, n) != tail->second.end()
                        : n != m.nodes[0];
      (behind ? rest : first).push_back(n);
    }
    step.text = "Fusing " + joined(g_, first, " + ") +
                (rest.empty() ? "" : " with " + joined(g_, rest, ", "));
    std::string name = group_name(rule, m, match_context());
    NodeId made = form_group(g_, m.nodes, rule.contract, rule.id, std::move(name), m.body);
    ++fires_;
    add_roots(made);
    step.after.push_back(g_.node(made).name);
    if (ctx_.journal) ctx_.journal->steps.push_back(std::move(step));
    return {};
  }

  const PassContext& ctx_;
  Graph& g_;
  std::string_view phase_;
  int64_t steps_ = 0, fires_ = 0;
  std::vector<const Rule*> rules_;
  std::optional<RuleIndex> index_;
  std::vector<std::vector<NodeId>> roots_;  // by rule: where its pattern may match
  std::vector<int64_t> tried_;              // by rule: how many groups there were when it began its last pass
  std::map<std::pair<std::string_view, NodeId>, Rejection> misses_;  // by rule id: the same order in every run
};

}  // namespace

Status group_phase(const PassContext& ctx, std::string_view phase) {
  FERRULE_TRY(GroupPhase(ctx, phase).run());
  FERRULE_TRY(merge_phase(ctx, phase));
  return place_phase(ctx, phase);
}

}  // namespace ferrule
