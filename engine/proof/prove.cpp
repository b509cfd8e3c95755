#include <algorithm>
#include <chrono>

#include "engine/base/diagnostics.h"
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

using Clock = std::chrono::steady_clock;

struct Sample {
  std::string text;
  std::unique_ptr<Graph> graph;
  bool valid = false;
};

class Prover {
 public:
  /// What a target has no kernel for, and what would not pay, must be right all the same.
  Prover(const Rule& rule, const ProofContext& ctx) : rule_(rule), ctx_(ctx) {
    std::erase_if(rule_.where, [](const Condition& c) { return c.cls != ConditionClass::sound; });
    out_.rule = rule.id;
    deadline_ = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(ctx.seconds * 1000));
  }

  RewriteProof run() {
    if (rule_.kind != RuleKind::rewrite) return std::move(out_);
    gather();
    for (const Sample& s : samples_)
      if (s.valid && in_time()) check(s);
    for (const Condition& c : rule_.where)
      if (c.cls == ConditionClass::sound) out_.conditions.push_back(drop(c));
    return std::move(out_);
  }

 private:
  bool in_time() {
    if (Clock::now() < deadline_) return true;
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
    for (size_t i = 0; i < cases && in_time(); ++i)
      for (Mutation& m : mutations(*samples_[i].graph, rule_.types)) {
        if (!in_time()) break;
        add(samples_[i].text + ": " + m.text, std::move(m.graph));
      }
  }

  void edited(const RuleTest& t, const std::string& where) {
    for (const RuleTest& base : rule_.tests) {
      if (!base.fires || base.model.empty() || (!t.of.empty() && base.name != t.of)) continue;
      auto g = case_graph(base.model, ctx_);
      if (!g) return;
      Trial trial = try_rule(rule_, *g, ctx_.target, ctx_);
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

  void check(const Sample& s) {
    Trial t = try_rule(rule_, *s.graph, ctx_.target, ctx_);
    if (!t.broken.empty()) out_.wrong.push_back(s.text + ": " + t.broken);
    if (!t.fired || !t.broken.empty()) return;
    ++out_.fired;
    auto d = difference(*s.graph, *t.after, rule_, ctx_, kRounds);
    out_.compared += d.has_value();
    if (d && !d->empty()) out_.wrong.push_back(s.text + ": " + *d);
  }

  /// Without the condition: a graph on which only it keeps the rule from giving a wrong result?
  ConditionProof drop(const Condition& c) {
    ConditionProof p;
    p.id = c.id;
    Rule weaker = rule_;
    std::erase_if(weaker.where, [&](const Condition& x) { return x.id == c.id; });
    int violated = 0, invalid = 0, guaranteed = 0;
    for (const Sample& s : samples_) {
      if (!in_time()) break;
      Trial without = try_rule(weaker, *s.graph, ctx_.target, ctx_);
      Trial with = try_rule(rule_, *s.graph, ctx_.target, ctx_);
      if (with.fired) continue;
      if (!without.fired && without.broken.empty()) {
        // Only this condition stood in the way, and without it the engine does (D7, an unknown
        // fact).
        guaranteed += with.nearest.id == c.id && without.nearest.id == "D7";
        continue;
      }
      if (!s.valid) {
        ++invalid;
        continue;
      }
      // A fact that is not known is no violation, but what goes wrong there counts.
      violated += with.nearest.id != c.id || with.nearest.truth == Truth::no;
      std::string what = without.broken;
      if (what.empty())
        what = difference(*s.graph, *without.after, rule_, ctx_, kRounds).value_or("");
      if (what.empty()) continue;
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
  Clock::time_point deadline_;
  std::vector<Sample> samples_;
};

}  // namespace

RewriteProof prove_rewrite(const Rule& rule, const ProofContext& ctx) {
  return Prover(rule, ctx).run();
}

}  // namespace ferrule
