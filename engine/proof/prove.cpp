#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/proof/cpu_clock.h"
#include "engine/proof/edit.h"
#include "engine/proof/trial.h"

namespace ferrule {

std::string_view name(ConditionProof::State s) {
  switch (s) {
    case ConditionProof::State::killed:
      return "killed";
    case ConditionProof::State::implied:
      return "implied";
    default:
      return "open";
  }
}

namespace {

/// Pairs of mutations tried for one rule, over all its cases.
constexpr size_t kPairs = 12000;

/// What the whole rule did to a graph, in short.
struct Verdict {
  bool fired = false;
  std::string id;   ///< what declined
  Truth truth = Truth::no;
};

struct Sample {
  std::string text;
  std::unique_ptr<Graph> graph;
  bool valid = false;
  std::optional<Verdict> verdict = {};
};

class Prover {
 public:
  /// What a target has no kernel for, and what would not pay, must be right all the same.
  Prover(const Rule& rule, const ProofContext& ctx) : rule_(rule), ctx_(ctx) {
    std::erase_if(rule_.where, [](const Condition& c) { return c.cls != ConditionClass::sound; });
    out_.rule = rule.id;
    deadline_ = thread_seconds() + ctx.seconds;
  }

  RewriteProof run() {
    if (rule_.kind != RuleKind::rewrite) return std::move(out_);
    scope_.types = rule_.types;
    for (const PatternLine& l : rule_.match.lines) scope(*l.expr);
    gather();
    for (Sample& s : samples_)
      if (s.valid && in_time()) check(s);
    for (const Condition& c : rule_.where)
      if (c.cls == ConditionClass::sound) out_.conditions.push_back(drop(c));
    return std::move(out_);
  }

 private:
  bool in_time() {
    if (thread_seconds() < deadline_) return true;
    out_.in_time = false;
    return false;
  }

  /// The firing cases, the holding ones (they violate one condition each), and the mutations of
  /// both.
  void gather() {
    int number = 0;
    for (const RuleTest& t : rule_.tests) {
      ++number;
      std::string where = fmt::format("case {}", number);
      if (!t.model.empty()) {
        auto g = case_graph(t.model, ctx_);
        if (!g) continue;
        if (t.edits.empty()) add(where, std::make_unique<Graph>(std::move(*g)));
        continue;
      }
      edited(t, where);
    }
    size_t cases = samples_.size();
    for (size_t i = 0; i < cases && in_time(); ++i) {
      for (const Mutation& m : mutations(*samples_[i].graph, scope_)) {
        if (!in_time()) return;
        add(samples_[i].text + ": " + m.text, changed(*samples_[i].graph, {&m}));
      }
      pairs(i, cases);
    }
  }

  /// The case without what follows the match: operators behind it allow fewer changes. Null where there are none.
  std::unique_ptr<Graph> bared(const Graph& g) const {
    Trial t = attempt_rule(rule_, g, ctx_.target, ctx_);
    if (!t.fired) return nullptr;
    const Node& root = g.node(t.match.root);
    if (root.outputs.size() != 1 || g.escapes(root.outputs[0])) return nullptr;
    auto out = g.clone();
    out->set_output(0, root.outputs[0]);
    out->remove_dead();
    Trial again = attempt_rule(rule_, *out, ctx_.target, ctx_);
    return again.fired ? std::move(out) : nullptr;
  }
  static std::unique_ptr<Graph> changed(const Graph& g, std::initializer_list<const Mutation*> how) {
    auto out = g.clone();
    for (const Mutation* m : how) m->apply(*out);
    return out;
  }

  /// Two changes at once: a mistake often needs an attribute and a size that go together. Pairs with a change of an
  /// operator come first (most conditions are about operators), then the rest, both in an order drawn once, as many as
  /// kPairs allow. Only graphs that are valid, and on which the rule without its sound conditions fires, are kept: the
  /// others say nothing.
  void pairs(size_t sample, size_t cases) {
    auto alone = bared(*samples_[sample].graph);
    const std::string text = samples_[sample].text;
    const auto base = alone ? std::move(alone) : samples_[sample].graph->clone();
    const std::vector<Mutation> single = mutations(*base, scope_);
    Rule bare = rule_;
    std::erase_if(bare.where, [](const Condition& c) { return c.cls == ConditionClass::sound; });
    std::vector<std::pair<uint32_t, uint32_t>> order;
    for (uint32_t a = 0; a < single.size(); ++a)
      for (uint32_t b = a + 1; b < single.size(); ++b) order.emplace_back(a, b);
    auto first = std::partition(order.begin(), order.end(), [&](const auto& p) { return single[p.first].of_operator; });
    std::mt19937 random(static_cast<uint32_t>(sample) + 1);
    shuffle(order.begin(), first, random);
    shuffle(first, order.end(), random);
    order.resize(std::min(order.size(), kPairs / cases));
    for (auto [a, b] : order) {
      if (!in_time()) return;
      auto g = changed(*base, {&single[a], &single[b]});
      ++out_.graphs;
      if (!g->sort() || !infer_again(*g) || !same_outputs(*g)) continue;
      ++out_.valid;
      Trial t = attempt_rule(bare, *g, ctx_.target, ctx_);
      if (!t.fired && t.broken.empty()) continue;
      samples_.push_back({fmt::format("{}: {}, {}", text, single[a].text, single[b].text), std::move(g), true});
    }
  }
  /// As std::shuffle, but the same with every standard library.
  template <class It>
  static void shuffle(It begin, It end, std::mt19937& random) {
    for (auto n = end - begin; n > 1; --n) std::swap(begin[n - 1], begin[static_cast<int64_t>(random() % static_cast<uint64_t>(n))]);
  }

  /// What the pattern says about the graphs worth trying.
  void scope(const PatternExpr& e) {
    scope_.near |= e.near;
    std::set<std::string> set(e.ops.begin(), e.ops.end());
    for (const auto& [key, f] : ctx_.ops->all())
      if (std::ranges::any_of(e.classes, [&](const std::string& c) { return std::ranges::find(f.classes, c) != f.classes.end(); }))
        set.insert(key);
    if (set.size() > 1) scope_.siblings.push_back(std::move(set));
    for (const auto& a : e.args) scope(*a);
    for (const auto& [_, c] : e.choices) scope(*c);
  }

  void edited(const RuleTest& t, const std::string& where) {
    for (const RuleTest& base : rule_.tests) {
      if (!base.fires || base.model.empty() || (!t.of.empty() && base.name != t.of)) continue;
      auto g = case_graph(base.model, ctx_);
      if (!g) return;
      Trial trial = attempt_rule(rule_, *g, ctx_.target, ctx_);
      Bindings bound;
      if (trial.fired) bound = trial.match.bindings;
      if (apply_edits(*g, t.edits, bound, where))
        add(where, std::make_unique<Graph>(std::move(*g)));
      return;
    }
  }

  void add(std::string text, std::unique_ptr<Graph> g) {
    Sample s{std::move(text), std::move(g), false};
    s.valid = s.graph->sort() && infer_again(*s.graph) && same_outputs(*s.graph);
    ++out_.graphs;
    out_.valid += s.valid;
    samples_.push_back(std::move(s));
  }

  static bool same_outputs(const Graph& g) {
    return std::ranges::all_of(
        g.outputs(), [&](ValueId v) { return g.value(v).type.dtype != DType::undefined; });
  }

  /// Asked once for all conditions.
  static const Verdict& judge(Sample& s, const Trial& t) {
    return s.verdict.emplace(Verdict{t.fired, t.nearest.id, t.nearest.truth});
  }
  const Verdict& verdict(Sample& s) const {
    return s.verdict ? *s.verdict : judge(s, attempt_rule(rule_, *s.graph, ctx_.target, ctx_));
  }

  void check(Sample& s) {
    Trial t = try_rule(rule_, *s.graph, ctx_.target, ctx_);
    judge(s, t);
    if (!t.broken.empty()) out_.wrong.push_back(s.text + ": " + t.broken);
    if (!t.fired || !t.broken.empty()) return;
    ++out_.fired;
    auto d = difference(*s.graph, *t.after, rule_, ctx_, kRounds);
    out_.compared += d.has_value();
    if (d && !d->empty() && !only_rounding(rule_, *s.graph, ctx_.target, ctx_)) out_.wrong.push_back(s.text + ": " + *d);
  }

  /// Without the condition: a graph on which only it keeps the rule from giving a wrong result?
  ConditionProof drop(const Condition& c) {
    ConditionProof p;
    p.id = c.id;
    Rule weaker = rule_;
    std::erase_if(weaker.where, [&](const Condition& x) { return x.id == c.id; });
    int violated = 0, invalid = 0, guaranteed = 0;
    for (Sample& s : samples_) {
      if (!in_time()) break;
      const Verdict& with = verdict(s);
      if (with.fired) continue;
      Trial without = attempt_rule(weaker, *s.graph, ctx_.target, ctx_);
      if (!without.fired && without.broken.empty()) {
        // Only this condition stood in the way, and without it the engine does (D7, an unknown
        // fact, or D9).
        guaranteed += with.id == c.id && (without.nearest.id == "D7" || without.nearest.id == "D9");
        continue;
      }
      if (!s.valid) {
        ++invalid;
        continue;
      }
      // A fact that is not known is no violation, but what goes wrong there counts.
      violated += with.id != c.id || with.truth == Truth::no;
      if (without.fired) run_to_rest(without, weaker, *s.graph, ctx_.target, ctx_);
      std::string what = without.broken;
      if (what.empty()) {
        what = difference(*s.graph, *without.after, rule_, ctx_, kRounds).value_or("");
        if (what.empty() || only_rounding(weaker, *s.graph, ctx_.target, ctx_)) continue;
      }
      p.state = ConditionProof::State::killed;
      p.how = s.text + ": " + what;
      return p;
    }
    if (violated == 0 && invalid + guaranteed > 0) p.state = ConditionProof::State::implied;
    p.how =
        violated
            ? fmt::format("{} graphs violate it, all give the same result without it", violated)
        : invalid + guaranteed
            ? fmt::format(
                  "of the graphs that violate it, {} are invalid and {} the engine declines anyway",
                  invalid, guaranteed)
            : fmt::format("none of {} graphs violates it alone", samples_.size());
    return p;
  }

  Rule rule_;
  const ProofContext& ctx_;
  RewriteProof out_;
  double deadline_ = 0;  ///< in thread_seconds()
  std::vector<Sample> samples_;
  MutationScope scope_;
};

}  // namespace

RewriteProof prove_rewrite(const Rule& rule, const ProofContext& ctx) {
  return Prover(rule, ctx).run();
}

}  // namespace ferrule
