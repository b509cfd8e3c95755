// One attempt: the structure (pattern_matcher.h), then what the engine guarantees for every rule
// (D1 to D3; D4 to D6 and D8 are seen while matching), then the rule's element types and
// conditions. An embedding that fails one of these is given up for the next one; the rejection
// tells of the one that came furthest.
#include "engine/match/match_rule.h"
#include "engine/base/join.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "engine/base/diagnostics.h"
#include "engine/contract/accepts.h"
#include "engine/graph/open_sizes.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/match/trace.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

/// Names whose values may have other users, as values.
std::vector<ValueId> kept(const Rule& rule, const Bindings& b) {
  std::vector<ValueId> out;
  for (const std::string& name : rule.shared)
    if (auto it = b.values.find(name); it != b.values.end()) out.push_back(it->second);
  return out;
}

/// D1, D2, D3. nullopt: they hold.
std::optional<Rejection> guarantees(const Rule& rule, const Match& m, const MatchContext& ctx) {
  const Graph& g = ctx.graph;
  std::vector<ValueId> free = kept(rule, m.bindings);
  free.insert(free.end(), m.outputs.begin(), m.outputs.end());
  std::ranges::sort(free);
  auto reject = [&](const char* id, auto&& text) {
    Rejection r;
    r.stage = Rejection::Stage::guarantee;
    r.id = id;
    if (ctx.explain) r.why = text();
    return r;
  };
  for (NodeId id : m.nodes)
    for (ValueId v : g.node(id).outputs) {
      if (!v || std::ranges::binary_search(free, v)) continue;
      if (g.value(v).is_output)
        return reject("D2", [&] {
          return value_text(g, v) + " is an output of the model, so it has to be written to memory";
        });
      for (const Use& u : g.value(v).uses) {
        if (contains(m.nodes, u.node) && u.slot != Use::kCapture) continue;
        if (u.slot == Use::kCapture)
          return reject("D2", [&] {
            return value_text(g, v) + " is read by a nested graph of " + node_text(g, u.node);
          });
        return reject("D1", [&] {
          return fmt::format("{} is also read by {}, which the rule does not take in",
                             value_text(g, v), node_text(g, u.node));
        });
      }
    }
  bool single = free.size() == 1;  // one value leaves: nothing can come back
  if (!single && !convex(g, m.nodes))
    return reject(
        "D3", [] { return "a path leaves the match and comes back: one node would make a cycle"; });
  return std::nullopt;
}

std::optional<Rejection> types(const Rule& rule, const Match& m, const MatchContext& ctx) {
  if (rule.types.empty() || m.outputs.empty() || !m.outputs[0]) return std::nullopt;
  DType have = ctx.graph.value(m.outputs[0]).type.dtype;
  if (contains(rule.types, have)) return std::nullopt;
  Rejection r;
  r.stage = Rejection::Stage::condition;
  r.id = "types";
  r.truth = have == DType::undefined ? Truth::unknown : Truth::no;
  if (!ctx.explain) return r;
  r.why =
      have == DType::undefined
          ? fmt::format("the element type of {} is not known", value_text(ctx.graph, m.outputs[0]))
          : fmt::format("{} is {}, the rule is for {}", value_text(ctx.graph, m.outputs[0]),
                        name(have), joined(rule.types, [](DType t) { return name(t); }));
  return r;
}

const Val& value_for(const Param& p, const Graph& g, const Match& m) {
  for (auto it = p.scoped.rbegin(); it != p.scoped.rend(); ++it)
    if ((*it->first)(g, m)) return it->second;
  return p.value;
}

bool ignored(const Rule& rule, const Condition& c, const MatchContext& ctx) {
  if (c.cls != ConditionClass::profit || ctx.ignore_profit.empty() || c.id == kOff) return false;
  std::string full = rule.id + "." + c.id;
  return std::ranges::any_of(ctx.ignore_profit,
                             [&](const std::string& p) { return glob_match(p, full); });
}

}  // namespace

int nearness(const Rejection& r) {
  int stage = r.stage == Rejection::Stage::structure   ? 0
              : r.stage == Rejection::Stage::guarantee ? 1
                                                       : 2;
  return (stage << 20) + (std::min(r.passed_conditions, 1000) << 10) +
         std::min(r.matched_nodes, 1000);
}

std::optional<Rejection> ask(const Rule& rule, const std::vector<Condition>& where, const Match& m,
                             const MatchContext& ctx, const EvalContext& eval,
                             const std::function<Accept()>& accepts) {
  std::optional<Rejection> refused;
  int passed = 0;
  // All must hold. Where no report is wanted, the expensive ones are asked last.
  const bool any_order = !ctx.explain && !ctx.trace;
  for (size_t k = 0; k < where.size() * (any_order ? 2 : 1); ++k) {
    const Condition& c = where[k % where.size()];
    if (any_order && c.asks_contract != (k >= where.size())) continue;
    if (c.scope && !(*c.scope)(ctx.graph, m)) {
      ++passed;
      continue;
    }
    std::string detail;
    Accept said = answer::yes();
    if (!c.expr && accepts)
      said = accepts();
    else if (c.expr && !ignored(rule, c, ctx))
      said.truth = evaluate_condition(*c.expr, eval, ctx.explain ? &detail : nullptr);
    const Truth t = said.truth;
    if (said.id.empty()) said.id = c.id;
    if (t == Truth::yes) {
      ++passed;
      if (ctx.trace) ctx.trace->conditions.push_back({&c, t, {}, said.id});
      continue;
    }
    Rejection r;
    r.stage = Rejection::Stage::condition;
    r.id = said.id;
    r.cls = c.cls;
    r.truth = t;
    r.passed_conditions = passed;
    r.total_conditions = static_cast<int>(where.size());
    if (ctx.explain) {
      // Of what is absent, sizes decide nothing.
      const bool lacks = detail.ends_with(" is absent");
      r.why = t == Truth::unknown && !lacks ? undecided(ctx.graph, detail + said.reason)
              : c.expr                      ? interpolate(c.why, eval)
                                            : said.reason;
      r.hint = interpolate(c.hint, eval);
      r.detail = std::move(detail);
      if (r.why.empty()) r.why = r.detail;
    }
    if (ctx.trace) ctx.trace->conditions.push_back({&c, t, r.why, r.id, r.detail});
    if (!refused) refused = std::move(r);
    if (!ctx.trace) return refused;  // a trace goes on to the last condition
  }
  if (refused) refused->passed_conditions = passed;
  return refused;
}

Judgement judge(const Rule& rule, const std::vector<Condition>& where, const Match& m,
                const MatchContext& ctx, const std::function<Accept()>& accepts) {
  Judgement out;
  if (out.refused = types(rule, m, ctx); out.refused) return out;
  EvalContext eval{ctx.graph, m.bindings, ctx.ops, out.let, ctx.target};
  for (const Param& p : rule.parameters) out.let.emplace_back(p.name, value_for(p, ctx.graph, m));
  if (ctx.target)
    eval.accepts_strided = [&](ValueId v) {
      return ferrule::accepts_strided(ctx.graph, v, *ctx.target, ctx.ops);
    };
  for (const auto& [name, expr] : rule.let) out.let.emplace_back(name, evaluate(*expr, eval));
  if (ctx.trace) ctx.trace->conditions.clear(), ctx.trace->members = m.nodes;
  out.refused = ask(rule, where, m, ctx, eval, accepts);
  return out;
}

Attempt match_structure(const Rule& rule, NodeId root, const MatchContext& ctx,
                        const AlsoAsked& also) {
  Rejection best;
  best.rule = &rule;
  best.root = root;
  best.id = "structure";
  best.total_conditions = static_cast<int>(rule.where.size());
  bool judged = false;
  Match found;
  MatchTrace furthest;
  Matcher matcher(rule, ctx);
  auto accept = [&](Embedding& e) {
    Match m{&rule, root, std::move(e.bindings), std::move(e.nodes), std::move(e.outputs), {}};
    if (ctx.trace) ctx.trace->conditions.clear(), ctx.trace->members = m.nodes;
    std::optional<Rejection> r = guarantees(rule, m, ctx);
    if (!r && also) r = also(m);
    if (!r) {
      found = std::move(m);
      return true;
    }
    r->matched_nodes = static_cast<int>(m.nodes.size());
    if (!judged || nearness(*r) > nearness(best)) {
      r->rule = &rule;
      r->root = root;
      r->total_conditions = static_cast<int>(rule.where.size());
      best = std::move(*r);
      if (ctx.trace) furthest = *ctx.trace;
    }
    judged = true;
    return false;
  };
  bool hit = matcher.run(root, std::ref(accept));
  if (hit) return found;
  if (!judged) {
    best.fixed = matcher.structural();
    matcher.describe(best);
  } else if (ctx.trace)
    *ctx.trace = std::move(furthest);
  return best;
}

Attempt match_rule(const Rule& rule, NodeId root, const MatchContext& ctx) {
  return match_structure(rule, root, ctx, [&](Match& m) {
    Judgement j = judge(rule, rule.where, m, ctx);
    m.let = std::move(j.let);
    return std::move(j.refused);
  });
}

namespace {

/// Looks for a path that leaves `nodes` and comes back, along the edges (down) or against them, one
/// edge a step. What the topological order puts beyond the nodes leads nowhere.
class Escape {
 public:
  Escape(const Graph& g, std::span<const NodeId> nodes, bool down)
      : g_(g), nodes_(nodes), down_(down) {
    for (NodeId n : nodes) {
      bound_ = n == nodes[0] ? g.node(n).order
               : down        ? std::max(bound_, g.node(n).order)
                             : std::min(bound_, g.node(n).order);
      if (nodes.size() > kFew) many_.insert(n);
      open(n, true);
    }
  }
  enum class Step : uint8_t { more, none, found };
  Step step() {
    if (work_.empty()) return Step::none;
    Place& p = work_.back();
    const bool inside = p.inside;
    const NodeId next = neighbour(p);
    if (!next) return work_.pop_back(), Step::more;
    if (member(next)) return inside ? Step::more : Step::found;
    const int order = g_.node(next).order;
    if ((down_ ? order <= bound_ : order >= bound_) && seen_.insert(next).second) open(next, false);
    return Step::more;
  }

 private:
  static constexpr size_t kFew = 16;
  /// Where the edges of a value (down) or of a node (up) have been followed to.
  struct Place {
    uint32_t id;
    uint32_t edge;
    bool inside;
  };
  bool member(NodeId n) const { return many_.empty() ? contains(nodes_, n) : many_.contains(n); }

  void open(NodeId n, bool inside) {
    if (!down_) return work_.push_back({n.index, 0, inside});
    for (ValueId v : g_.node(n).outputs)
      if (v && !g_.value(v).uses.empty()) work_.push_back({v.index, 0, inside});
  }

  /// The node behind the next edge; none: there is no further one.
  NodeId neighbour(Place& p) {
    if (down_) {
      const auto& uses = g_.value(ValueId{p.id}).uses;
      return p.edge < uses.size() ? uses[p.edge++].node : NodeId{};
    }
    const Node& n = g_.node(NodeId{p.id});
    while (p.edge < n.inputs.size())
      if (const ValueId v = n.inputs[p.edge++]; v && g_.value(v).producer)
        return g_.value(v).producer;
    const std::vector<ValueId>& more = captures(NodeId{p.id}, n);
    while (p.edge < n.inputs.size() + more.size())
      if (const NodeId maker = g_.value(more[p.edge++ - n.inputs.size()]).producer) return maker;
    return {};
  }

  const std::vector<ValueId>& captures(NodeId id, const Node& n) {
    static const std::vector<ValueId> kNone;
    if (n.subgraphs.empty()) return kNone;
    auto [it, fresh] = captures_.try_emplace(id);
    if (fresh) it->second = ferrule::captures(n);
    return it->second;
  }

  const Graph& g_;
  std::span<const NodeId> nodes_;
  const bool down_;
  int bound_ = 0;  // of the order
  std::unordered_set<NodeId> many_, seen_;
  std::unordered_map<NodeId, std::vector<ValueId>> captures_;
  std::vector<Place> work_;
};

}  // namespace

/// From both ends, an edge each in turn: a value with many readers makes one of the two walks long,
/// and the other, which says the same, ends at once.
bool convex(const Graph& g, std::span<const NodeId> nodes) {
  Escape down(g, nodes, true), up(g, nodes, false);
  for (;;)
    for (Escape* walk : {&down, &up}) {
      const Escape::Step s = walk->step();
      if (s != Escape::Step::more) return s == Escape::Step::none;
    }
}

}  // namespace ferrule
