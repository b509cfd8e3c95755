// Siblings are found bucket by bucket: nodes that the pattern fits, by the value they share, then
// by their keys, in topological order. A set grows by nodes that do not depend on its members and
// whose conditions hold with it; a node that is left over may start another set. Between two merges
// positions in the topological order must stay what they were where paths are looked for, so sets
// whose stretches of it overlap wait for the next round.
#include "engine/group/merge.h"
#include "engine/base/join.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "engine/base/diagnostics.h"
#include "engine/graph/open_sizes.h"
#include "engine/group/budget.h"
#include "engine/group/group.h"
#include "engine/match/facts.h"
#include "engine/match/index.h"
#include "engine/match/pattern_matcher.h"
#include "engine/rewrite/siblings.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

constexpr const char* kOver = "shared";  // what a set shares, beside the names of its first
constexpr int kTries = 8;                // sets a node is tried in
constexpr int kReach = 1024;  // siblings stand at most so far apart in the topological order

/// A node that the pattern fits.
struct PendingMatch {
  Match match;
  std::optional<std::string> key;  // worked out where somebody else shares the operand
  int tries = 0;
  bool taken = false;
};

/// What can be reached from a growing set of nodes, as far as the topological order says it
/// matters.
class Reach {
 public:
  explicit Reach(const Graph& g) : g_(g) {}
  bool near(NodeId n) const { return members_.empty() || g_.node(n).order - first_ <= kReach; }
  bool depends(NodeId n) const { return seen_.contains(n); }
  void add(NodeId member) {
    if (members_.empty()) first_ = g_.node(member).order;
    members_.push_back(member);
    std::vector<NodeId> work = {member};
    while (!work.empty()) {
      const NodeId n = work.back();
      work.pop_back();
      for (ValueId v : g_.node(n).outputs)
        if (v)
          for (const Use& u : g_.value(v).uses)
            if (near(u.node) && seen_.insert(u.node).second) work.push_back(u.node);
    }
  }
  const std::vector<NodeId>& members() const { return members_; }

 private:
  const Graph& g_;
  int first_ = 0;
  std::vector<NodeId> members_;
  std::unordered_set<NodeId> seen_;
};

class Merges {
 public:
  Merges(const Rule& rule, const MatchContext& ctx, std::vector<Rejection>* misses)
      : rule_(rule), spec_(rule.merge), ctx_(ctx), g_(ctx.graph), misses_(misses) {}

  std::vector<Match> run() {
    if (!misses_) find_single();
    collect();
    for (auto& [over, bucket] : buckets_) sets(over, bucket);
    report();
    std::ranges::sort(found_, {}, [&](const Match& m) {
      return std::pair(g_.node(m.nodes[0]).order, m.nodes[0].index);
    });
    return std::move(found_);
  }

 private:
  using Bucket = std::vector<size_t>;  // into candidates_, topological order

  void collect() {
    const Rule* one = &rule_;
    RuleIndex index({&one, 1}, ctx_.ops);
    for (NodeId n : g_.order()) {
      if (index.ranks_at(g_.node(n)).empty() || !shares(g_.node(n))) continue;
      Attempt a = match_structure(rule_, n, ctx_);
      if (auto* r = std::get_if<Rejection>(&a)) {
        if (misses_) misses_->push_back(std::move(*r));
        continue;
      }
      Match& m = std::get<Match>(a);
      if (m.nodes.size() != 1 || g_.node(n).outputs.size() != 1 || !g_.node(n).subgraphs.empty())
        continue;
      if (!single_.empty() && judge(rule_, single_, m, ctx_).refused) continue;
      const size_t k = candidates_.size();
      for (ValueId v : shared(m)) buckets_[v].push_back(k);
      candidates_.push_back({std::move(m), {}});
    }
  }

  /// Conditions on a node alone, whatever its siblings are. Where nobody asks for reasons
  /// they come first: of a hundred thousand readers that are too small none is then compared with
  /// another.
  void find_single() {
    if (std::ranges::any_of(rule_.parameters, [](const Param& p) { return !p.scoped.empty(); }))
      return;
    std::set<std::string> joint = {"siblings", kOver};
    auto mentions = [&](const Expr& e) {
      return std::ranges::any_of(ferrule::names(e),
                                 [&](const std::string& n) { return joint.contains(n); });
    };
    for (const auto& [name, e] : rule_.let)
      if (mentions(*e)) joint.insert(name);
    for (const Condition& c : rule_.where)
      if (!c.scope && c.expr && !mentions(*c.expr)) single_.push_back(c);
  }

  /// Cheaply: whether anything that the node reads is read often enough; where reasons are asked
  /// for, by anybody else.
  bool shares(const Node& n) const {
    const size_t least = misses_ ? 2 : static_cast<size_t>(spec_.min);
    return std::ranges::any_of(n.inputs, [&](ValueId v) {
      return v && !g_.constant(v) && g_.value(v).uses.size() >= least;
    });
  }

  /// What a candidate may share, constants aside.
  std::vector<ValueId> shared(const Match& m) const {
    std::vector<ValueId> out;
    if (auto it = m.bindings.values.find(spec_.over); it != m.bindings.values.end())
      out = {it->second};
    if (auto it = m.bindings.value_lists.find(spec_.over); it != m.bindings.value_lists.end())
      out = it->second;
    std::ranges::sort(out);
    out.erase(std::unique(out.begin(), out.end()), out.end());
    std::erase_if(out, [&](ValueId v) { return !v || g_.constant(v); });
    return out;
  }

  EvalContext eval_of(const Match& m) const {
    return {g_, m.bindings, ctx_.ops, m.let, ctx_.target};
  }

  /// Whether all keys are known.
  bool keys(PendingMatch& c) {
    if (c.key) return true;
    Match& m = c.match;
    for (const auto& [name, e] : rule_.let) m.let.emplace_back(name, evaluate(*e, eval_of(m)));
    std::string key;
    for (size_t k = 0; k < spec_.keys.size(); ++k) {
      const Val v = evaluate(*spec_.keys[k].expr, eval_of(m));
      if (const auto* u = std::get_if<Val::Unknown>(&v.v))
        return miss(m.root, "key", [&] { return undecided(g_, u->fact); }, Truth::unknown);
      key += str(v, g_) + "\n";
    }
    c.key = std::move(key);
    return true;
  }

  /// Sets of one value's readers.
  void sets(ValueId over, Bucket bucket) {
    if (bucket.size() < static_cast<size_t>(spec_.min)) return;
    std::erase_if(bucket, [&](size_t c) { return candidates_[c].taken || !keys(candidates_[c]); });
    std::map<std::string_view, Bucket> by_key;
    for (size_t c : bucket) by_key[*candidates_[c].key].push_back(c);
    if (misses_) explain_keys(bucket, by_key);
    for (auto& [_, list] : by_key)
      if (list.size() >= static_cast<size_t>(spec_.min))
        for (size_t from = 0; from < list.size();) {
          const PendingMatch& c = candidates_[list[from]];
          if (c.taken || c.tries >= kTries || !grow(over, std::span(list).subspan(from))) ++from;
        }
  }

  /// A set that begins with the first of the list.
  bool grow(ValueId over, std::span<const size_t> list) {
    std::vector<size_t> set;
    Reach reach(g_);
    for (size_t c : list) {
      PendingMatch& candidate = candidates_[c];
      if (set.size() == static_cast<size_t>(spec_.max) || !reach.near(candidate.match.root)) break;
      if (candidate.taken || candidate.tries >= kTries) continue;
      ++candidate.tries;
      if (joins(over, set, reach, c)) {
        set.push_back(c);
        reach.add(candidate.match.root);
      } else if (set.empty()) {
        return false;
      }
    }
    if (set.size() < static_cast<size_t>(spec_.min)) return false;
    const Match& first = candidates_[set[0]].match;
    Match m{&rule_, first.root, first.bindings, reach.members(), {}, first.let};
    m.bindings.node_lists["siblings"] = m.nodes;
    m.bindings.values[kOver] = over;
    for (NodeId n : m.nodes) m.outputs.push_back(g_.output(n));
    for (size_t c : set) candidates_[c].taken = true;
    found_.push_back(std::move(m));
    return true;
  }

  /// Whether the candidate may stand beside the set.
  bool joins(ValueId over, const std::vector<size_t>& set, const Reach& reach, size_t c) {
    const PendingMatch& candidate = candidates_[c];
    const NodeId root = candidate.match.root;
    if (reach.depends(root))
      return miss(root, "D3", [&] {
        return fmt::format("a path leads to {} from {}", node_text(g_, root),
                           names(reach.members()));
      });
    if (spec_.axis)
      if (std::string why = in_the_way(over, set, candidate); !why.empty())
        return miss(root, "structure", [&] { return why; });
    std::vector<NodeId> nodes = reach.members();
    nodes.push_back(root);
    Match trial{&rule_, root, candidate.match.bindings, nodes, {g_.output(root)}, {}};
    trial.bindings.node_lists["siblings"] = nodes;
    trial.bindings.values[kOver] = over;
    auto accepts = [&] {
      const std::span<const NodeId> one(&root, 1);
      return accepts_group(rule_, spec_.axis ? one : nodes, ctx_);
    };
    auto r = judge(rule_, rule_.where, trial, ctx_, accepts).refused;
    if (r) keep(std::move(*r), root, static_cast<int>(nodes.size()));
    return !r;
  }

  std::string in_the_way(ValueId over, const std::vector<size_t>& set,
                         const PendingMatch& c) const {
    auto how = joining(over, c.match);
    if (!how) return how.error().message;
    const Sibling mine(g_, c.match.root);
    std::string why = set.empty() ? unlike(g_, mine, mine, *how) : "";
    // What is like one that lacks a constant need not be like the others: all are asked.
    for (size_t k = 0; k < set.size() && why.empty(); ++k)
      why = unlike(g_, Sibling(g_, candidates_[set[k]].match.root), mine, *how);
    if (!set.empty() && why.empty()) {  // the axes of those in the set are equal
      const Match& first = candidates_[set[0]].match;
      const auto its = joining(over, first);
      if (!its || its->axis != how->axis || its->weights != how->weights)
        why = fmt::format("{} is joined along another axis", node_text(g_, first.root));
    }
    return why.empty() ? why : fmt::format("not one computation with other constants: {}", why);
  }

 public:
  Result<Joining> joining(ValueId over, const Match& m) const {
    auto no = [&](std::string text) {
      return error(Code::rewrite_declined, rule_.id, std::move(text));
    };
    Joining how;
    how.over = over;
    how.fill = spec_.fill;
    const Type& t = g_.value(g_.output(m.root)).type;
    if (!t.known()) return no("the type of " + value_text(g_, g_.output(m.root)) + " is not known");
    auto axis_of = [&](const Expr& e, int rank) -> Result<size_t> {
      const Val v = evaluate(e, eval_of(m));
      const auto* i = std::get_if<int64_t>(&v.v);
      if (!i || *i < -rank || *i >= rank)
        return no(fmt::format("axis {} of rank {}", str(v, g_), rank));
      return static_cast<size_t>(*i < 0 ? *i + rank : *i);
    };
    how.rank = static_cast<size_t>(t.rank());
    FERRULE_ASSIGN(how.axis, axis_of(*spec_.axis.expr, t.rank()));
    if (!(*t.shape)[how.axis].constant())
      return no(fmt::format("the size of {} along axis {} is not known",
                            value_text(g_, g_.output(m.root)), how.axis));
    const Sibling s(g_, m.root);
    const Node& anchor = s.graph().node(s.nodes()[0]);
    for (const auto& [slot, e] : spec_.weights) {
      const Tensor* w =
          slot < anchor.inputs.size() ? s.graph().constant(anchor.inputs[slot]) : nullptr;
      FERRULE_ASSIGN(how.weights[slot],
                     axis_of(*e.expr, w ? static_cast<int>(w->dims().size()) : 1));
    }
    return how;
  }

 private:
  // --- why not

  std::string names(const std::vector<NodeId>& nodes) const {
    return joined(nodes, [&](NodeId n) { return node_text(g_, n); });
  }

  void keep(Rejection r, NodeId n, int matched) {
    if (!misses_) return;
    r.rule = &rule_;
    r.root = n;
    r.matched_nodes = matched;
    auto [it, fresh] = refused_.try_emplace(n, r);
    if (!fresh && nearness(r) > nearness(it->second)) it->second = std::move(r);
  }

  template <class F>
  bool miss(NodeId n, const char* id, F&& why, Truth truth = Truth::no) {
    if (!misses_) return false;
    Rejection r;
    const std::string_view name = id;
    r.stage = name == "key"  ? Rejection::Stage::condition
              : name == "D3" ? Rejection::Stage::guarantee
                             : Rejection::Stage::structure;
    r.cls = ConditionClass::kernel;
    r.id = id;
    r.truth = truth;
    r.why = why();
    keep(std::move(r), n, 1);
    return false;
  }

  /// Each node whose keys no other has, against the one before it.
  /// "attr(conv, 'strides')" -> "strides", "kernel_size(conv)" -> "kernel size".
  static std::string key_words(std::string text) {
    if (const size_t quote = text.find('\''); quote != text.npos)
      return text.substr(quote + 1, text.find('\'', quote + 1) - quote - 1);
    text = text.substr(0, text.find('('));
    if (text == "resolved_pads") return "pads";
    std::ranges::replace(text, '_', ' ');
    return text == "dtype" ? "element type" : text;
  }

  void explain_keys(const Bucket& bucket, const std::map<std::string_view, Bucket>& by_key) {
    for (size_t k = 0; k < bucket.size() && bucket.size() > 1; ++k) {
      const PendingMatch& c = candidates_[bucket[k]];
      if (by_key.at(*c.key).size() >= static_cast<size_t>(spec_.min)) continue;
      const PendingMatch& other = candidates_[bucket[k ? k - 1 : 1]];
      std::string differ;
      for (const auto& key : spec_.keys) {
        const std::string mine = str(evaluate(*key.expr, eval_of(c.match)), g_);
        const std::string theirs = str(evaluate(*key.expr, eval_of(other.match)), g_);
        if (mine != theirs)
          differ += fmt::format("{}{} ({} and {})", differ.empty() ? "" : ", ", key_words(key.text),
                                mine, theirs);
      }
      if (!differ.empty())
        miss(c.match.root, "key", [&] {
          return fmt::format("{} and {} differ in {}", node_text(g_, c.match.root),
                             node_text(g_, other.match.root), differ);
        });
    }
  }

  /// A node that no other joined: because there is none, too few, or for what they were refused.
  void alone(const PendingMatch& c, const std::map<NodeId, Rejection>& tried) {
    const NodeId n = c.match.root;
    const std::vector<ValueId> over = shared(c.match);
    const std::string read = over.empty() ? "what it reads" : value_text(g_, over[0]);
    size_t others = 0;
    for (ValueId v : over)
      for (size_t k : std::span(buckets_[v]).first(std::min<size_t>(buckets_[v].size(), kReach))) {
        const NodeId o = candidates_[k].match.root;
        if (o == n) continue;
        if (v == over[0]) ++others;
        if (auto it = tried.find(o); it != tried.end()) {
          Rejection r = it->second;
          r.why = fmt::format("{} did not join {}: {}", node_text(g_, o), node_text(g_, n), r.why);
          return keep(std::move(r), n, 1);
        }
      }
    miss(n, "structure", [&] {
      return others == 0 ? fmt::format("{} has no sibling: no other node of its kind reads {}",
                                       node_text(g_, n), read)
                         : fmt::format("{} of its kind {} {} beside {}; the rule takes {} or more",
                                       counted(others, "node"), others == 1 ? "reads" : "read",
                                       read, node_text(g_, n), spec_.min);
    });
  }

  void report() {
    if (!misses_) return;
    const std::map<NodeId, Rejection> tried = refused_;
    for (const PendingMatch& c : candidates_)
      if (!c.taken && !tried.contains(c.match.root)) alone(c, tried);
    std::unordered_set<NodeId> taken;
    for (const Match& m : found_) taken.insert(m.nodes.begin(), m.nodes.end());
    for (auto& [n, r] : refused_)
      if (!taken.contains(n)) misses_->push_back(std::move(r));
  }

  const Rule& rule_;
  const MergeSpec& spec_;
  const MatchContext& ctx_;
  const Graph& g_;
  std::vector<Rejection>* misses_;
  std::vector<Condition> single_;
  std::vector<PendingMatch> candidates_;
  std::map<ValueId, Bucket> buckets_;
  std::vector<Match> found_;
  std::map<NodeId, Rejection> refused_;  // the nearest of each node
};

/// One computation with joined constants, in place of the siblings.
class Joiner {
 public:
  Joiner(const Semantics& ops, Graph& g, const Match& m, Joining how)
      : ops_(ops), g_(g), m_(m), how_(std::move(how)) {
    for (NodeId n : m.nodes) {
      siblings_.emplace_back(g, n);
      sizes_.push_back(*(*g.value(g.output(n)).type.shape)[how_.axis].constant());
    }
  }

  Result<NodeId> run(std::string name) {
    std::vector<NodeId> nodes;
    for (size_t k = 0; k < siblings_[0].nodes().size(); ++k) {
      FERRULE_ASSIGN(NodeId n, add(k));
      nodes.push_back(n);
    }
    const std::vector<NodeId> siblings = m_.nodes;
    parts(made_.back(), name);
    siblings_.clear();
    for (NodeId n : siblings) g_.remove_node(n);
    return make_group(g_, nodes, m_.rule->contract, m_.rule->id, std::move(name));
  }

 private:
  /// Whether it may be so: what the model declares of sizes need not follow from the operands.
  bool joins(const Type& got, const Type& want) const {
    if (!got.shape || got.shape->size() != want.shape->size()) return false;
    for (size_t k = 0; k < want.shape->size(); ++k) {
      const Dim &g = (*got.shape)[k], &w = (*want.shape)[k];
      const bool decided = k == how_.axis || (g.is_constant() && w.is_constant());
      if (decided && !(g == w)) return false;
    }
    return true;
  }
  Type joined(Type t) const {
    int64_t total = 0;
    for (int64_t s : sizes_) total += s;
    (*t.shape)[how_.axis] = Dim(total);
    return t;
  }

  Result<NodeId> add(size_t k) {
    const Sibling& like = siblings_[0];
    const Node& from = like.graph().node(like.nodes()[k]);
    Node n = of_operator(from);
    n.order = g_.node(m_.nodes.back()).order;
    n.rule = m_.rule->id;
    if (k == 0) n.origins = origins();
    size_t inputs = 0;
    for (const Sibling& s : siblings_)
      inputs = std::max(inputs, s.graph().node(s.nodes()[k]).inputs.size());
    for (size_t slot = 0; slot < inputs; ++slot) n.inputs.push_back(operand(k, slot));
    while (!n.inputs.empty() && !n.inputs.back()) n.inputs.pop_back();
    const Type want = joined(like.graph().value(from.outputs[0]).type);
    made_.push_back(g_.add_value(g_.fresh_name(g_.value(like.result()).name + ".all"), want));
    n.outputs = {made_.back()};
    n.name = g_.fresh_name(from.name);
    auto inferred = infer_node(ops_, g_, n);
    if (!inferred)
      return error(Code::rule_broken, node_text(g_, m_.root), m_.rule->id,
                   "joins what cannot be one node: " + inferred.error().message);
    const Inferred& got = *inferred;
    if (got.types.empty() || got.types[0].dtype != want.dtype || !joins(got.types[0], want))
      return error(Code::rule_broken, node_text(g_, m_.root), m_.rule->id,
                   fmt::format("joins what does not lie along axis {}: {} instead of {}", how_.axis,
                               got.types.empty() ? "nothing" : str(got.types[0]), str(want)));
    return g_.add_node(std::move(n));
  }

  ValueId operand(size_t k, size_t slot) {
    const Sibling& like = siblings_[0];
    const ValueId v = like.graph().input(like.nodes()[k], slot);
    if (v && like.maker(v) >= 0) return made_[like.maker(v)];
    if (v && like.outside(v) == how_.over) return how_.over;
    auto t = joined_constant(g_, siblings_, k, slot, how_, sizes_);
    if (!t) return {};
    return g_.add_constant(g_.fresh_name(g_.value(like.result()).name + ".joined"), std::move(*t));
  }

  std::vector<std::string> origins() const {
    std::vector<std::string> out;
    for (NodeId s : m_.nodes)
      for (const std::string& o : g_.node(s).origins)
        if (!contains(out, o)) out.push_back(o);
    return out;
  }

  /// Readers of a sibling read its part.
  void parts(ValueId whole, const std::string& name) {
    Node n = take_apart(g_, whole, static_cast<int64_t>(how_.axis), sizes_);
    n.name = g_.fresh_name("split(" + name + ")");
    n.rule = m_.rule->id;
    n.order = g_.node(m_.nodes.back()).order;
    for (const Sibling& s : siblings_) {
      const ValueId from = s.result();
      const ValueId to =
          g_.add_value(g_.fresh_name(g_.value(from).name + "_part"), g_.value(from).type);
      g_.set_contents(to, g_.value(from).contents);
      const std::string kept = g_.value(from).name;
      g_.replace_uses(from, to);
      if (g_.value(from).name == kept) g_.rename(from, g_.fresh_name(kept + "_in"));
      if (g_.value(to).name != kept && !g_.find_value(kept)) g_.rename(to, kept);
      n.outputs.push_back(to);
    }
    g_.add_node(std::move(n));
  }

  const Semantics& ops_;
  Graph& g_;
  const Match& m_;
  Joining how_;
  std::vector<Sibling> siblings_;
  std::vector<int64_t> sizes_;
  std::vector<ValueId> made_;  // by node of a sibling
};

}  // namespace

std::vector<Match> match_merges(const Rule& rule, const MatchContext& ctx,
                                std::vector<Rejection>* misses) {
  return Merges(rule, ctx, misses).run();
}

Attempt match_merge(const Rule& rule, NodeId node, const MatchContext& ctx) {
  std::vector<Rejection> misses;
  for (Match& m : match_merges(rule, ctx, &misses))
    if (contains(m.nodes, node)) return std::move(m);
  for (Rejection& r : misses)
    if (r.root == node) return std::move(r);
  Attempt a = match_structure(rule, node, ctx);
  if (auto* r = std::get_if<Rejection>(&a)) return std::move(*r);
  return no_match(rule, node,
                  node_text(ctx.graph, node) + " has no sibling: nothing else reads what it reads",
                  1);
}

Result<NodeId> make_merge(Graph& g, const Match& m, const MatchContext& ctx) {
  std::string name = group_name(*m.rule, m, ctx);
  if (m.rule->name.empty())
    name = joined(m.nodes, [&](NodeId n) { return g.node(n).name; }, " || ");
  if (!m.rule->merge.axis)
    return make_group(g, m.nodes, m.rule->contract, m.rule->id, std::move(name));
  const ValueId over = m.bindings.values.at(kOver);
  FERRULE_ASSIGN(Joining how, Merges(*m.rule, ctx, nullptr).joining(over, m));
  return Joiner(ctx.ops, g, m, std::move(how)).run(std::move(name));
}

namespace {

class MergePhase {
 public:
  MergePhase(const PhaseContext& ctx, std::string_view phase)
      : ctx_(ctx), g_(ctx.graph), phase_(phase), budget_(ctx, phase) {}

  Status run() {
    for (const auto& rule : ctx_.rules.rules) {
      if (!rule->enabled || rule->phase != phase_ || rule->kind != RuleKind::merge) continue;
      for (bool changed = true; changed;) {
        FERRULE_TRY(g_.sort());
        FERRULE_ASSIGN(changed, round(*rule));
      }
    }
    return {};
  }

 private:
  Result<bool> round(const Rule& rule) {
    FERRULE_TRY(budget_.more());
    const MatchContext mc = ctx_.match_context(g_, budget_.steps);
    std::vector<Rejection> misses;
    const std::vector<Match> found = match_merges(rule, mc, ctx_.near_misses ? &misses : nullptr);
    int last = -1;  // the stretch of the order that changed ends here
    for (const Match& m : found) {
      // What they share may have become a part of another merge's result.
      if (g_.node(m.nodes.front()).order <= last ||
          g_.value(m.bindings.values.at(kOver)).uses.empty())
        continue;
      last = g_.node(m.nodes.back()).order;
      FERRULE_TRY(fire(rule, m, mc));
    }
    if (found.empty() && ctx_.near_misses)
      std::ranges::move(misses, std::back_inserter(*ctx_.near_misses));
    return !found.empty();
  }

  Status fire(const Rule& rule, const Match& m, const MatchContext& mc) {
    Step step{std::string(phase_), rule.id, "merge", {}, {}, {}};
    for (NodeId n : m.nodes) step.before.push_back(g_.node(n).name);
    step.root = g_.node(m.root).name;
    FERRULE_TRY(budget_.formed(rule));
    FERRULE_ASSIGN(NodeId made, make_merge(g_, m, mc));
    step.after.push_back(g_.node(made).name);
    step.text = "Merging layers: " + g_.node(made).name;
    ctx_.journal.steps.push_back(std::move(step));
    return {};
  }

  const PhaseContext& ctx_;
  Graph& g_;
  std::string_view phase_;
  GroupBudget budget_;
};

}  // namespace

Status merge_phase(const PhaseContext& ctx, std::string_view phase) {
  return MergePhase(ctx, phase).run();
}

}  // namespace ferrule
