#include "engine/proof/arbiter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/diagnostics.h"
#include "engine/interpreter/interpreter.h"
#include "engine/proof/values.h"
#include "engine/rewrite/replacement.h"

namespace ferrule {
namespace {

using Values = std::vector<std::optional<Tensor>>;

/// A tie that rounds up in one order and down in the other is found by half of the evaluations.
constexpr int kEvaluations = 24;
/// Of what was seen to move: a few evaluations of a few operations do not find the worst.
constexpr double kSafety = 8, kUlps = 4;
/// Sums of products are rounded at every step, in either order: ulps of the result for each term.
constexpr double kUlpsOfTerm = 1.0 / 8;
/// What may be lost to underflow, in least subnormals: what scales of everyday size make of one,
/// two of them where the type holds much smaller numbers than those. More is no reassociation.
constexpr double kLostOfF16 = 256, kLost = 1024;
/// How near what is left comes to the f64 value where the other graph has lost it, relative to it.
constexpr double kNear = 1e-2;
/// The same where the graph before is as far off: one digit of a subnormal number is half of it.
constexpr double kFewDigits = 0.5;

/// Evaluates a graph in f64, exactly or (noise) with everything a little off.
class Evaluator {
 public:
  /// `folded`: its constants were computed by a rewrite.
  Evaluator(const Graph& g, const Semantics& ops, const Limits& limits, bool folded)
      : g_(g), ops_(ops), folded_(folded) {
    options_.ops = &ops;
    options_.limits = &limits;
    options_.f64 = true;
    for (ValueId v : g.outputs())
      if (const DType t = g.value(v).type.dtype;
          is_float(t) && float_limits(t).precision < results_)
        results_ = float_limits(t).precision, shortest_ = t;
  }

  /// All values of the graph; nullopt: a node does not run.
  std::optional<Values> run(const std::vector<Tensor>& inputs, Draw* noise) const {
    Values all(g_.value_slots());
    for (uint32_t i = 0; i < all.size(); ++i)
      if (const Tensor* t = g_.constant(ValueId{i})) {
        // Rounded to the type of the results, as arithmetic is.
        const bool longer = is_float(t->dtype()) && float_limits(t->dtype()).precision > results_;
        all[i] = wide(*t, longer ? shortest_ : t->dtype(), noise);
        if (noise && is_float(t->dtype()))
          all[i] = as_constant(*all[i], ValueId{i}, t->dtype(), *noise);
      }
    for (size_t k = 0; k < g_.inputs().size(); ++k)
      if (k < inputs.size()) all[g_.inputs()[k].index] = wide(inputs[k], inputs[k].dtype(), noise);
    for (NodeId n : g_.order())
      if (!step(g_.node(n), all, noise)) return std::nullopt;
    return all;
  }

 private:
  static Tensor wide(const Tensor& t, DType declared, Draw* noise) {
    if (!is_float(t.dtype())) return t;
    Tensor out = converted(t, DType::f64);
    return noise ? moved(out, declared, *noise) : out;
  }
  static Tensor moved(const Tensor& t, DType declared, Draw& noise) {
    const double u = std::max(float_limits(declared).epsilon(),
                              std::numeric_limits<double>::epsilon());  // of f64: what f64 can hold
    auto [out, bytes] = Tensor::allocate(DType::f64, t.dims());
    // Often all of it: what turns a comparison or a rounding round is the worst case.
    auto by = [&] {
      return noise.chance(50) ? (noise.chance(50) ? 1 : -1) : noise.between(-1.0, 1.0);
    };
    std::ranges::transform(t.as<double>(), static_cast<double*>(bytes),
                           [&](double d) { return d * (1 + u * by()); });
    return out;
  }

  /// What D9 (number_class.h) lets a folded constant lose is within the bound, what it declines is
  /// no instance. A subnormal constant may be taken for 0, as D9 takes it and as processors do that
  /// flush such numbers, and is off by half of the least one: f16 holds an epsilon of 1e-6 as such
  /// a number, and what drops it is wrong. A weight that is summed up with others is off
  /// by half a unit in the last place of the largest of them, at least by that of the smallest
  /// normal number, which is half the least subnormal: weights that underflow beside normal ones
  /// lose no more than those do by rounding. The sum is then off by that times its operands, which
  /// may be many ulps of a result in which the larger terms are absent or cancel (5e-6 of it were
  /// seen with conv_scale); no order of summation promises more, and a bound by element would
  /// refuse to fold layers that have a few tiny weights.
  Tensor as_constant(const Tensor& t, ValueId v, DType declared, Draw& noise) const {
    const FloatLimits l = float_limits(declared);
    const double least = std::ldexp(1.0, l.min_exponent);
    // f16 is computed in f32, where its subnormal numbers are normal ones.
    const bool flushed = l.min_exponent <= float_limits(DType::f32).min_exponent;
    const std::span<const double> values = t.as<double>();
    const bool weights =
        folded_ && t.numel() > 1 && summed(v) &&
        std::ranges::any_of(values, [&](double d) { return std::abs(d) >= least; });
    auto [out, bytes] = Tensor::allocate(DType::f64, t.dims());
    std::ranges::transform(values, static_cast<double*>(bytes), [&](double d) {
      const bool subnormal = d != 0 && std::abs(d) < least;
      if (subnormal && flushed && noise.chance(50)) return 0.0;
      return weights || subnormal ? d + l.smallest() / 2 * noise.between(-1.0, 1.0) : d;
    });
    return out;
  }
  /// As D9 has it: by operators that are no formulas.
  bool summed(ValueId v) const {
    return std::ranges::all_of(g_.value(v).uses, [&](const Use& u) {
      return u.slot != Use::kCapture && !ops_.find(g_.node(u.node));
    });
  }

  /// Whether the node turns numbers of one type into the same numbers of a type that holds fewer,
  /// fewer than the results do: roundings to the type of the results are those of arithmetic.
  bool rounds(const Node& n, DType to) const {
    const DType from =
        n.inputs.empty() || !n.inputs[0] ? DType::undefined : g_.value(n.inputs[0]).type.dtype;
    return is_int(from) || (is_float(from) && size_bits(from) > size_bits(to) &&
                            float_limits(to).precision < results_);
  }

  bool step(const Node& n, Values& all, Draw* noise) const {
    std::vector<const Tensor*> in;
    for (ValueId v : n.inputs) in.push_back(v && all[v.index] ? &*all[v.index] : nullptr);
    auto out = interpret_node(g_, n, in, options_);
    if (!out) return false;
    for (size_t k = 0; k < n.outputs.size() && k < out->size(); ++k) {
      if (!n.outputs[k]) continue;
      const DType declared = g_.value(n.outputs[k]).type.dtype;
      Tensor& t = (*out)[k];
      // An idempotent operator makes no error of its own: it gives one of its operands, or a whole
      // number that it meant.
      if (is_float(declared) && t.dtype() == DType::f64)
        t = rounds(n, declared) ? converted(converted(t, declared), DType::f64)
            : noise && !ops_.in_class(n, "idempotent") ? moved(t, declared, *noise)
                                                       : std::move(t);
      all[n.outputs[k].index] = std::move(t);
    }
    return true;
  }

  const Graph& g_;
  const Semantics& ops_;
  bool folded_;
  InterpreterOptions options_;
  DType shortest_ = DType::undefined;
  int results_ = 64;  ///< bits of precision; none is a float: more than any has
};

/// From here on the exponential of a number leaves f16, of all types first.
constexpr double kLarge = 11;

/// What a run in the graph's own types met that a result may be off by, whatever the order of its
/// arithmetic.
struct Met {
  bool overflow =
      false;  ///< a value is finite in f64 and not in its own type, or f64 itself overflows
  bool underflow = false;  ///< a value is 0 and not so in f64, or f64 itself underflows
  bool subnormal = false;  ///< a value has fewer digits than its type
  bool undefined = false;  ///< NaN became an integer, which ONNX leaves open
};

class Watch {
 public:
  Watch(const Graph& g, const Values& truth) : g_(g), truth_(truth) {}

  Met run(const std::vector<Tensor>& inputs, const Semantics& ops, const Limits& limits) {
    InterpreterOptions options;
    options.ops = &ops;
    options.limits = &limits;
    options.on_node = [&](const Graph& at, NodeId id, const std::vector<Tensor>& out) {
      if (&at == &g_) node(g_.node(id), out);
    };
    (void)interpret(g_, inputs, options);
    return met_;
  }

 private:
  const Tensor* truth(ValueId v) const {
    return v && truth_[v.index] ? &*truth_[v.index] : nullptr;
  }

  void node(const Node& n, const std::vector<Tensor>& out) {
    bool large = false, finite = true, nan = false;  // operands
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const Tensor* t = truth(n.inputs[k]);
      for (int64_t i = 0; t && is_float(t->dtype()) && i < t->numel(); ++i) {
        const double d = t->at_f64(i);
        finite &= std::isfinite(d), large |= std::abs(d) >= kLarge;
        nan |= std::isnan(d) ||
               (k > 0 && (d == 0 || std::isinf(d)));  // such a scale makes NaN before the integer
      }
    }
    // Poles are at 0 and 1: an infinity out of large finite numbers is an overflow.
    const bool beyond = finite && large;
    for (size_t k = 0; k < n.outputs.size() && k < out.size(); ++k) {
      const Tensor* want = n.outputs[k] ? truth(n.outputs[k]) : nullptr;
      if (!want || want->numel() != out[k].numel()) continue;
      met_.undefined |= nan && is_int(out[k].dtype());
      const double normal =
          is_float(out[k].dtype()) ? std::ldexp(1.0, float_limits(out[k].dtype()).min_exponent) : 0;
      for (int64_t i = 0; is_float(out[k].dtype()) && i < out[k].numel(); ++i) {
        const double have = out[k].at_f64(i), wide = want->at_f64(i);
        met_.overflow |= !std::isfinite(have) && (std::isfinite(wide) || beyond);
        met_.overflow |= std::fpclassify(wide) == FP_SUBNORMAL;  // beyond what f64 can judge
        met_.overflow |=
            std::isnan(have) && std::isinf(wide) && !met_.underflow;  // inside of a sum
        met_.underflow |= have == 0 && (wide != 0 || beyond);
        met_.subnormal |= have != 0 && std::abs(have) < normal;
      }
    }
  }

  const Graph& g_;
  const Values& truth_;
  Met met_;
};

/// About how many terms the sums have that operators without a formula make; 0: there are no such
/// operators.
double longest_sum(const Graph& g, const Values& values, const Semantics& ops) {
  double most = 0;
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (ops.find(n) || n.inputs.size() < 2 || !n.inputs[1] || !values[n.inputs[1].index]) continue;
    const Tensor& t = *values[n.inputs[1].index];
    if (!is_float(t.dtype()) || t.rank() == 0 || t.numel() == 0) continue;
    const Tensor* x =
        n.inputs[0] && values[n.inputs[0].index] ? &*values[n.inputs[0].index] : nullptr;
    if (t.rank() > 1)
      most = std::max(most, static_cast<double>(t.numel() / *std::ranges::min_element(t.dims())));
    else if (x && x->rank() > 0 && x->dims().back() == t.numel())  // a vector that is multiplied
      most = std::max(most, static_cast<double>(t.numel()));
  }
  return most;
}

/// Whether large numbers cancel inside of a graph: what is left of them is rounding alone, and
/// whatever is computed of that may be anything, also what no evaluation with a little noise meets.
/// So it is where the rounding of an inner value is far larger than all results are: f64 may not
/// know their digits, either (a Softmax of what 1e17 was taken from).
bool cancels(const Graph& g, const Values& truth, const Values& moved) {
  constexpr double kLarge = 1e3, kFarLarger = 1e6;
  auto is_number = [&](ValueId y) {
    return truth[y.index] && truth[y.index]->dtype() != DType::string;
  };
  double most = 1;  // of the results
  for (ValueId y : g.outputs())
    for (int64_t k = 0; is_number(y) && k < truth[y.index]->numel(); ++k)
      if (const double d = std::abs(truth[y.index]->at_f64(k)); std::isfinite(d))
        most = std::max(most, d);
  for (size_t v = 0; v < truth.size() && v < moved.size(); ++v) {
    if (!truth[v] || !moved[v] || !is_float(truth[v]->dtype()) ||
        truth[v]->dims() != moved[v]->dims())
      continue;
    for (int64_t k = 0; k < truth[v]->numel(); ++k) {
      const double is = truth[v]->at_f64(k), by = std::abs(moved[v]->at_f64(k) - is);
      if (std::isfinite(by) && (by > kLarge * (1 + std::abs(is)) || by > kFarLarger * most))
        return true;
    }
  }
  return false;
}

/// Whether all that is computed is said by formulas over real numbers: operands that move by what
/// rounding takes show what it does to the result. Elsewhere one operator may become several, with
/// roundings of their own.
bool of_formulas(const Graph& g, const Semantics& ops) {
  return std::ranges::all_of(g.order(), [&](NodeId id) {
    const Node& n = g.node(id);
    auto real = [&](ValueId v) { return !v || is_float(g.value(v).type.dtype); };
    return ops.find(n) && std::ranges::all_of(n.outputs, real) &&
           (n.inputs.empty() || real(n.inputs[0]));
  });
}

/// The differences at one output that are still to be explained.
class Output {
 public:
  /// `ulps`: of the result, whatever its operands are. `hidden`: the graph before takes steps that
  /// its nodes do not show. `approximate`: an index or flag may be the one of f64 where rounding
  /// made it another one.
  Output(const Tensor& want, const Tensor& got, const Tensor& truth, const Tensor& other,
         double ulps, bool hidden, bool approximate)
      : want_(want),
        got_(got),
        truth_(truth),
        other_(other),
        ulps_(ulps),
        hidden_(hidden),
        approximate_(approximate),
        real_(is_float(want.dtype())) {
    const bool texts = want.dtype() == DType::string;  // which are the same
    for (int64_t k = 0; k < want.numel() && !texts; ++k)
      if (!same(want.at_f64(k), got.at_f64(k)))
        open_.push_back({k, truth.at_f64(k), truth.at_f64(k)});
    drop_explained();
  }
  bool done() const { return open_.empty(); }
  /// What is finite and was not is what underflow took from the graph before: the logarithm of a 0
  /// that is none; or what is near the f64 value where nothing was left of it, or less than that.
  /// `few_digits`: of some number few digits are left, so that either may be as far off.
  void forgive_lost(bool few_digits) {
    std::erase_if(open_, [&](const Element& e) {
      const double want = want_.at_f64(e.at), got = got_.at_f64(e.at), truth = truth_.at_f64(e.at);
      const double off = std::abs(got - truth);
      const double near = few_digits && std::isfinite(want) ? kFewDigits : kNear;
      return std::isfinite(got) && off <= near * std::abs(truth) &&
             (!std::isfinite(want) || off <= std::abs(want - truth));
    });
  }
  int64_t first() const { return open_.front().at; }

  /// One more evaluation: `before` and `after` as they came out with noise.
  /// Results whose sizes depend on the operands say nothing once these differ.
  void widen(const Tensor& before, const Tensor& after) {
    if (before.dims() != truth_.dims() || after.dims() != other_.dims()) return;
    for (Element& e : open_)
      for (const auto& [moved, still] : {std::pair(&before, &truth_), std::pair(&after, &other_)}) {
        const double to = moved->at_f64(e.at), by = std::abs(to - still->at_f64(e.at));
        if (std::isfinite(by)) e.spread = std::max(e.spread, by);
        if (std::isfinite(by) && moved == &before) e.own = std::max(e.own.value_or(0), by);
        // In the graph before, or away from it in the one after: what gives NaN however its
        // operands move was put in.
        e.met |= !std::isfinite(got_.at_f64(e.at)) &&
                 (moved == &before ? same(to, got_.at_f64(e.at))
                                   : std::isfinite(to) || same(to, want_.at_f64(e.at)));
        if (moved == &before && std::isfinite(to))
          e.least = std::fmin(e.least, to), e.greatest = std::fmax(e.greatest, to);
      }
    drop_explained();
  }

 private:
  struct Element {
    int64_t at;
    double least, greatest;  ///< of the evaluations of the graph before that are finite
    double spread = 0;
    std::optional<double> own{};  ///< in the graph before; none: a power of what is negative
    bool met =
        false;  ///< noise alone makes what came out, or undoes it: an infinity or NaN at a pole
  };
  static bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

  void drop_explained() {
    std::erase_if(open_, [&](const Element& e) { return explained(e); });
  }
  bool explained(const Element& e) const {
    const double want = want_.at_f64(e.at), got = got_.at_f64(e.at), truth = truth_.at_f64(e.at);
    if (!real_) return std::abs(want - got) <= e.spread || (approximate_ && got == truth);
    if (same(got, truth) || e.met) return true;
    const FloatLimits l = float_limits(want_.dtype());
    const double least =
        l.smallest() *
        (l.min_exponent > float_limits(DType::f32).min_exponent ? kLostOfF16 : kLost);
    const double scale = std::isfinite(truth) ? std::abs(truth) : 0;
    // Where nothing is left of a number, the rounding of the graph before must explain it: but near
    // the subnormal numbers, of whose operands a few digits are left, or none.
    const bool lost = got == 0 && scale > 32 * std::ldexp(1.0, l.min_exponent);
    const double spread = lost && !hidden_ ? e.own.value_or(e.spread) : e.spread;
    const double bound = kSafety * spread + std::max(ulps_ * 2 * l.epsilon() * scale, least);
    if (!std::isfinite(got)) return false;
    return std::abs(want - got) <= bound || (got >= e.least - bound && got <= e.greatest + bound);
  }

  const Tensor &want_, &got_, &truth_, &other_;
  double ulps_;
  bool hidden_, approximate_;
  bool real_;
  std::vector<Element> open_;
};

/// Whether f64 rounded nothing, nor what a rewrite folded: operands of few bits and everyday size
/// (shorter types than f32 have such constants after rounding, too), and results that their own
/// types hold. What two such evaluations differ by is no rounding, but a tie that one of them
/// breaks in another way, say.
bool without_rounding(const Graph& g, const Values& values) {
  for (uint32_t k = 0; k < values.size(); ++k) {
    const Value& v = g.value(ValueId{k});
    if (!values[k] || !is_float(v.type.dtype)) continue;
    if (v.type.dtype != DType::f32 && v.type.dtype != DType::f64) return false;
    const DType holds = v.producer ? DType::f32 : DType::bf16;
    const Tensor held = converted(converted(*values[k], holds), DType::f64);
    for (int64_t i = 0; i < held.numel(); ++i) {
      const double d = values[k]->at_f64(i), size = std::abs(d);
      if (d != held.at_f64(i) || (d != 0 && (size < 0x1p-8 || size > 0x1p12))) return false;
    }
  }
  return true;
}

/// The element that is another one with nothing rounded; -1: none is.
int64_t differs_exactly(const Tensor& want, const Tensor& got, const Tensor& truth,
                        const Tensor& other) {
  for (int64_t i = 0; i < want.numel(); ++i)
    if (want.at_f64(i) != got.at_f64(i) && truth.at_f64(i) != other.at_f64(i)) return i;
  return -1;
}

}  // namespace

std::string unexplained(const ArbiterCase& c, const Semantics& ops, const Limits& limits) {
  const Evaluator before(*c.before, ops, limits, false), after(*c.after, ops, limits, true);
  const auto truth = before.run(*c.inputs, nullptr), other = after.run(*c.inputs, nullptr);
  if (!truth || !other) return "it cannot be evaluated in f64";
  std::vector<Output> outputs;
  const bool hidden =
      c.after->order().size() > c.before->order().size() && !of_formulas(*c.before, ops);
  const double ulps = kUlps + kUlpsOfTerm * std::max(longest_sum(*c.before, *truth, ops),
                                                     longest_sum(*c.after, *other, ops));
  auto at = [](const Graph& g, const Values& all, size_t k) -> const Tensor& {
    return *all[g.outputs()[k].index];
  };
  const bool exact =
      !c.ordinary && without_rounding(*c.before, *truth) && without_rounding(*c.after, *other);
  auto told = [&](size_t k, int64_t e) {
    return fmt::format("output {}: element {} is {}, want {} ({} in f64)",
                       escape(c.before->value(c.before->outputs()[k]).name), e,
                       (*c.got)[k].at_f64(e), (*c.want)[k].at_f64(e),
                       at(*c.before, *truth, k).at_f64(e));
  };
  for (size_t k = 0; k < c.want->size(); ++k) {
    if ((*c.want)[k].dtype() != (*c.got)[k].dtype() || (*c.want)[k].dims() != (*c.got)[k].dims())
      return fmt::format("output {} has another type or shape", k);
    if ((*c.want)[k].dtype() == DType::string) {
      if ((*c.want)[k].strings() != (*c.got)[k].strings())
        return fmt::format("output {}: strings differ",
                           escape(c.before->value(c.before->outputs()[k]).name));
    }
    for (const Tensor* t : {&at(*c.before, *truth, k), &at(*c.after, *other, k)})
      if (t->dims() != (*c.want)[k].dims())
        return fmt::format("output {} has another shape in f64", k);
    if (exact && (*c.want)[k].dtype() != DType::string)
      if (const int64_t e = differs_exactly((*c.want)[k], (*c.got)[k], at(*c.before, *truth, k),
                                            at(*c.after, *other, k));
          e >= 0)
        return told(k, e);
    outputs.emplace_back((*c.want)[k], (*c.got)[k], at(*c.before, *truth, k),
                         at(*c.after, *other, k), ulps, hidden, c.ordinary);
  }
  Draw noise(1);
  for (int n = 0; n < kEvaluations && std::ranges::any_of(
                                          outputs, [](const Output& o) { return !o.done(); });
       ++n) {
    const auto x = before.run(*c.inputs, &noise), y = after.run(*c.inputs, &noise);
    if (!x || !y) break;
    if (cancels(*c.before, *truth, *x)) return "";
    for (size_t k = 0; k < outputs.size(); ++k)
      outputs[k].widen(at(*c.before, *x, k), at(*c.after, *y, k));
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].done()) continue;
    const Met was = Watch(*c.before, *truth).run(*c.inputs, ops, limits),
              is = Watch(*c.after, *other).run(*c.inputs, ops, limits);
    if (was.overflow || is.overflow || was.undefined || is.undefined ||
        (c.ordinary && was.underflow))
      return "";
    if (was.underflow || was.subnormal) outputs[k].forgive_lost(was.subnormal);
    if (outputs[k].done()) continue;
    return told(k, outputs[k].first());
  }
  return "";
}

}  // namespace ferrule
