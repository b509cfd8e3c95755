#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/proof/any_target.h"
#include "engine/proof/cpu_clock.h"
#include "engine/proof/samples.h"
#include "engine/proof/shrink.h"
#include "engine/rule/contract.h"
#include "engine/rule/provable.h"

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

/// Distinct instances on which the rule fires that a proof looks for; more where the pattern leaves
/// modes open, so that each combination comes with flags, numbers and sizes of its own.
constexpr size_t kDistinct = 1500, kOfModes = 30, kMostDistinct = 3000;
/// Drawn at once: of those that run others are made.
constexpr int kBatch = 40;
/// Graphs tried before a condition is said to be open.
constexpr size_t kBeforeOpen = 4000;
/// Of the time for a rule, until when: drawing and comparing must leave some for pairs of changes
/// and for the conditions, and goes on with what those leave.
constexpr double kDrawing = 0.35, kAiming = 0.5, kPairing = 0.6, kDrawingOn = 0.75, kAimingOn = 0.9;
/// Of the time, at most, for graphs whose inputs have more than so many elements.
constexpr double kOfLarge = 0.15, kLarge = 8192;
/// At most, at a time.
constexpr double kAimingSeconds = 1.5, kShrinking = 1;

class Prover {
 public:
  /// What a target has no kernel for, and what would not pay, must be right all the same.
  Prover(const Rule& rule, const ProofContext& ctx)
      : rule_(sound_only(rule)),
        ctx_(ctx),
        begin_(thread_seconds()),
        samples_(rule_, ctx, out_, begin_ + ctx.seconds * kDrawing) {
    out_.rule = rule.id;
  }

  RewriteProof run() {
    if (!provable(rule_)) return std::move(out_);
    samples_.cases(true);
    check();
    drawn();
    aim(kAiming);
    samples_.until(begin_ + ctx_.seconds * kPairing);
    samples_.pairs();
    check();
    for (const Condition& c : rule_.where) {
      ConditionProof p = drop(c);
      // What the time cut short is not decided.
      if (out_.in_time || p.state == ConditionProof::State::killed)
        out_.conditions.push_back(std::move(p));
    }
    samples_.until(begin_ + ctx_.seconds * kDrawingOn);
    if (out_.wrong.empty() && !out_.exhausted) drawn();
    if (out_.wrong.empty()) aim(kAimingOn);
    out_.instances = static_cast<int>(kinds_.size());
    return std::move(out_);
  }

 private:
  void drawn() {
    const size_t distinct = std::clamp(kOfModes * samples_.hints().modes, kDistinct, kMostDistinct);
    while (kinds_.size() < distinct && !out_.exhausted && samples_.in_time()) {
      samples_.draw(kBatch);
      check();
    }
  }
  void aim(double until) {
    samples_.until(std::min(begin_ + ctx_.seconds * until, thread_seconds() + kAimingSeconds));
    while (samples_.aim()) check();
  }
  static Rule sound_only(Rule rule) {
    auto other = [](const Condition& c) { return c.cls != ConditionClass::sound; };
    std::erase_if(rule.where, other);
    if (rule.kernel) {
      auto any = std::make_shared<Contract>(*rule.kernel);
      std::erase_if(any->conditions, other);
      rule.kernel = std::move(any);
    }
    ask_any_target(rule);
    return rule;
  }
  bool in_time() {
    if (thread_seconds() < begin_ + ctx_.seconds) return true;
    out_.in_time = false;
    return false;
  }

  /// The samples that came since the last time.
  void check() {
    for (; checked_ < samples_.all().size() && in_time(); ++checked_) {
      Sample& s = samples_.all()[checked_];
      if (s.valid)
        check(s);
      else
        judge(s, attempt_rule(rule_, *s.graph, ctx_.target, ctx_));
    }
  }
  static void judge(Sample& s, const Trial& t) {
    s.declined_by = t.fired ? "" : t.nearest.id;
    s.truth = t.nearest.truth;
  }

  void check(Sample& s) {
    Trial t = try_rule(rule_, *s.graph, ctx_.target, ctx_);
    judge(s, t);
    // What does not run says nothing of a rule.
    if (!t.broken.empty() &&
        agreement(*s.graph, *s.graph, Numerics::exact, ctx_, seed(s)).ran > 0) {
      out_.wrong.push_back(s.text + ": " + t.broken);
      if (out_.example.empty()) out_.example = to_text({s.graph->clone(), {t.broken, {}}});
    }
    if (!t.fired || t.unsaid || !t.broken.empty()) return;
    ++out_.fired;
    const bool large = is_large(*s.graph);
    if (large && of_large_ > ctx_.seconds * kOfLarge) return;
    const double begin = thread_seconds();
    Agreement a = agreement_of(rule_, *s.graph, *t.after, ctx_.target, ctx_, seed(s));
    if (large) of_large_ += thread_seconds() - begin;
    if (a.ran && kinds_.insert(kind_of_instance(*s.graph)).second) samples_.ran(checked_);
    out_.compared += a.ran > 0;
    out_.needed = std::max(out_.needed, a.needed);
    if (!a.wrong) return;
    out_.wrong.push_back(s.text + ": " + a.wrong->text);
    if (out_.example.empty())
      out_.example = to_text(
          shrunk(rule_, {s.graph->clone(), std::move(*a.wrong)}, ctx_, seed(s), kShrinking));
  }
  static bool is_large(const Graph& g) {
    return std::ranges::any_of(g.inputs(), [&](ValueId v) {
      const auto dims =
          g.value(v).type.shape ? constant_shape(*g.value(v).type.shape) : std::nullopt;
      double all = 1;
      for (size_t k = 0; dims && k < dims->size(); ++k) all *= static_cast<double>((*dims)[k]);
      return all > kLarge;
    });
  }
  uint64_t seed(const Sample& s) { return static_cast<uint64_t>(&s - samples_.all().data()) + 1; }

  /// That nothing needs a condition is said after many graphs only, however slow the processor is:
  /// draws more of them, if so many have not been seen.
  bool more() {
    const size_t before = samples_.all().size();
    if (before >= kBeforeOpen || out_.exhausted) return false;
    samples_.until(begin_ + ctx_.seconds);
    samples_.draw(kBatch);
    check();
    return samples_.all().size() > before;
  }

  /// Without the condition: a graph on which only it keeps the rule from giving a wrong result?
  ConditionProof drop(const Condition& c) {
    ConditionProof p;
    p.id = c.id;
    Rule weaker = rule_;
    std::erase_if(weaker.where, [&](const Condition& x) { return x.id == c.id; });
    int violated = 0, invalid = 0, guaranteed = 0;
    bool unseen = false;
    for (size_t k = 0; in_time() && (k < samples_.all().size() || more()); ++k) {
      const Sample& s = samples_.all()[k];
      if (s.declined_by.empty()) continue;
      Trial without = attempt_rule(weaker, *s.graph, ctx_.target, ctx_);
      if (!without.fired && without.broken.empty()) {
        // Only this condition stood in the way, and without it the engine does (D7, an unknown
        // fact, or D9).
        guaranteed +=
            s.declined_by == c.id && (without.nearest.id == "D7" || without.nearest.id == "D9");
        continue;
      }
      unseen |= without.fired && s.declined_by == c.id && s.truth == Truth::unknown;
      if (!s.valid) {
        ++invalid;
        continue;
      }
      // A fact that is not known is no violation, but what goes wrong there counts.
      violated += s.declined_by != c.id || s.truth == Truth::no;
      if (without.fired) run_to_rest(without, weaker, *s.graph, ctx_.target, ctx_);
      if (without.unsaid) continue;
      std::string what = without.broken;
      if (what.empty()) {
        const Agreement a =
            agreement_of(weaker, *s.graph, *without.after, ctx_.target, ctx_, seed(s));
        if (!a.wrong) continue;
        what = a.wrong->text;
      }
      p.state = ConditionProof::State::killed;
      p.how = s.text + ": " + what;
      return p;
    }
    if (violated == 0 && guaranteed > 0 && unseen) {
      p.state = ConditionProof::State::killed;
      p.how = "the engine declines graphs that violate it, but not where their sizes are open";
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
            : fmt::format("none of {} graphs violates it alone", samples_.all().size());
    return p;
  }

  const Rule rule_;
  const ProofContext& ctx_;
  const double begin_;
  RewriteProof out_;
  Samples samples_;
  size_t checked_ = 0;
  std::set<uint64_t> kinds_;
  double of_large_ = 0;  ///< seconds
};

}  // namespace

RewriteProof prove_rewrite(const Rule& rule, const ProofContext& ctx) {
  return Prover(rule, ctx).run();
}

}  // namespace ferrule
