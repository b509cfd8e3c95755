#include "engine/proof/agree.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/base/native_type.h"
#include "engine/contract/accepts.h"
#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/onnx/index_inputs.h"
#include "engine/proof/arbiter.h"
#include "engine/proof/edit.h"
#include "engine/proof/lengthen.h"
#include "engine/proof/node_draw.h"
#include "engine/proof/trial.h"
#include "engine/proof/values.h"
#include "engine/rewrite/replacement.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

enum class Sizes : uint8_t { primes, two, one, zero };
struct Round {
  Magnitudes values;
  Sizes open;
};
constexpr std::array<Round, 10> kRounds{{{Magnitudes::small, Sizes::primes},
                                         {Magnitudes::wide, Sizes::two},
                                         {Magnitudes::special, Sizes::one},
                                         {Magnitudes::scaled, Sizes::two},
                                         {Magnitudes::limits, Sizes::primes},
                                         {Magnitudes::few, Sizes::two},
                                         {Magnitudes::small, Sizes::zero},
                                         {Magnitudes::special, Sizes::two},
                                         {Magnitudes::limits, Sizes::one},
                                         {Magnitudes::scaled, Sizes::primes}}};

/// A promise about ordinary numbers is asked about those, of tensors that hold some: small ones
/// where they must fit a shorter type, else over the range of the type.
constexpr std::array<Round, 3> kReducedRounds{{{Magnitudes::small, Sizes::primes},
                                               {Magnitudes::small, Sizes::two},
                                               {Magnitudes::small, Sizes::one}}};
constexpr std::array<Round, 8> kApproximateRounds{{{Magnitudes::small, Sizes::primes},
                                                   {Magnitudes::wide, Sizes::two},
                                                   {Magnitudes::small, Sizes::one},
                                                   {Magnitudes::scaled, Sizes::two},
                                                   {Magnitudes::limits, Sizes::primes},
                                                   {Magnitudes::few, Sizes::two},
                                                   {Magnitudes::limits, Sizes::one},
                                                   {Magnitudes::scaled, Sizes::primes}}};
/// Of a long axis: sums of what is as large as it can be, places and counts.
constexpr std::array<Round, 4> kLongRounds{{{Magnitudes::limits, Sizes::primes},
                                            {Magnitudes::small, Sizes::primes},
                                            {Magnitudes::limits, Sizes::one},
                                            {Magnitudes::few, Sizes::one}}};
std::span<const Round> rounds_of(Numerics claim, const Graph& g) {
  if (claim == Numerics::reduced) return kReducedRounds;
  if (claim == Numerics::approximate) return kApproximateRounds;
  if (is_counted(g)) return std::span(kLongRounds).first(1);
  if (has_long_axis(g)) return kLongRounds;
  return kRounds;
}

/// The element type that decides how far results of numerics `reduced` may be off.
DType shortest_float(const Graph& g) {
  DType least = DType::f64;
  for (ValueId v : g.values()) {
    const DType t = g.value(v).type.dtype;
    if (is_float(t) && model_tolerance(t).relative > model_tolerance(least).relative) least = t;
  }
  return least;
}

/// The nearest numbers that the shorter type can hold.
Tensor shortened(const Tensor& t, DType to) {
  return t.dtype() == DType::f32 ? converted(converted(t, to), DType::f32) : t;
}

/// The graph with constants that the type can hold.
std::unique_ptr<Graph> with_short_constants(const Graph& g, DType to) {
  auto out = g.clone();
  for (ValueId v : out->constants()) out->set_constant(v, shortened(*out->constant(v), to));
  return out;
}

/// What is promised of ordinary numbers says nothing of elements that are none, nor (floats) of
/// places and comparisons where the numbers are so large or small that functions round many to one:
/// they are taken for right.
std::vector<Tensor> ordinary(std::vector<Tensor> got, const std::vector<Tensor>& want,
                             bool floats) {
  for (size_t k = 0; k < want.size(); ++k) {
    if (got[k].dtype() != want[k].dtype() || got[k].dims() != want[k].dims()) continue;
    if (!is_float(want[k].dtype())) {
      if (floats) got[k] = want[k];
      continue;
    }
    std::vector<double> to = got[k].to_f64();
    bool any = false;
    for (size_t i = 0; i < to.size(); ++i)
      if (const double d = want[k].at_f64(i); !std::isfinite(d)) to[i] = d, any = true;
    if (any) got[k] = filled(got[k].dtype(), got[k].dims(), to);
  }
  return got;
}

/// The most that an operator takes as the length of a sequence, if this is a list of such; else 0.
int64_t longest_sequence(const Graph& g, ValueId v) {
  for (const Use& u : g.value(v).uses) {
    if (u.slot < 0 || !sequence_lengths(g.node(u.node), static_cast<size_t>(u.slot))) continue;
    const ValueId x = g.input(u.node, 0);
    const auto& shape = g.value(x).type.shape;
    if (shape && !shape->empty()) return std::max<int64_t>(1, (*shape)[0].value_or(1));
  }
  return 0;
}

/// The tensor again, and its bytes to change.
std::pair<Tensor, void*> copied(const Tensor& t) {
  auto [out, bytes] = Tensor::allocate(t.dtype(), t.dims());
  std::memcpy(bytes, t.data(), static_cast<size_t>(t.bytes()));
  return {std::move(out), bytes};
}

/// Inputs for one round; every symbol has one value in all of them. `sums`: integers are as large
/// as they can be.
std::vector<Tensor> inputs_of(const Graph& g, const Round& round, bool sums, Draw& draw) {
  constexpr int64_t kLong = 30000;
  constexpr std::array<int64_t, 4> kPrimes{3, 5, 2, 7};
  std::map<std::string, int64_t> open;
  auto size = [&](const Dim& d) {
    if (auto c = d.constant()) return *c;
    const int64_t prime = kPrimes[open.size() % kPrimes.size()];
    const int64_t to = round.open == Sizes::primes ? prime
                       : round.open == Sizes::two  ? 2
                       : round.open == Sizes::one  ? 1
                                                   : 0;
    return open.try_emplace(d.str(), to).first->second;
  };
  std::vector<Tensor> inputs;
  const std::map<ValueId, Dim> places = index_inputs(g);
  const bool extreme = sums || (round.values == Magnitudes::limits && draw.chance(50));
  for (ValueId v : g.inputs()) {
    const Type& t = g.value(v).type;
    std::vector<int64_t> dims;
    if (t.shape) std::ranges::transform(*t.shape, std::back_inserter(dims), size);
    if (is_counted(g) && only_measured(g, g.value(v))) {
      inputs.push_back(Tensor::allocate(t.dtype, dims).first);
      continue;
    }
    // Places in another tensor: anything else is mostly none.
    if (const auto at = places.find(v);
        at != places.end() && !longest_sequence(g, v) && is_int(t.dtype) && draw.chance(60)) {
      inputs.push_back(drawn_places(t.dtype, dims, size(at->second), draw));
      continue;
    }
    const int64_t most = longest_sequence(g, v);
    inputs.push_back(most ? drawn_lengths(t.dtype, dims, most, draw)
                     : extreme && is_int(t.dtype) && size_bits(t.dtype) % 8 == 0
                         ? extreme_tensor(t.dtype, dims, !sums && draw.chance(50), draw)
                         : drawn_tensor(t.dtype, dims, draw, round.values));
    // Where something stands in a long tensor may be more than a short type holds.
    if (inputs.back().numel() > kLong && is_native(t.dtype) && draw.chance(50)) {
      auto [changed, bytes] = copied(inputs.back());
      Tensor::put(t.dtype, bytes, changed.numel() - 1, 10);
      inputs.back() = std::move(changed);
    }
  }
  return inputs;
}

/// Numbers that constants hold and their neighbours stand in some elements: comparisons, ranges and
/// casts change there.
void draw_beside_constants(const Graph& g, std::vector<Tensor>& inputs, Draw& draw) {
  constexpr int64_t kMost = 16;
  std::vector<double> held;
  for (ValueId v : g.constants())
    if (const Tensor& c = *g.constant(v);
        c.numel() <= kMost && (is_float(c.dtype()) || is_int(c.dtype())))
      for (double d : c.to_f64())
        if (std::isfinite(d)) held.push_back(d);
  if (held.empty()) return;
  for (Tensor& t : inputs) {
    if ((!is_float(t.dtype()) && !is_int(t.dtype())) || size_bits(t.dtype()) % 8 != 0) continue;
    const double step = is_float(t.dtype()) ? 2 * float_limits(t.dtype()).epsilon() : 0;
    auto [changed, bytes] = copied(t);
    for (int64_t k = 0; k < t.numel(); ++k) {
      if (!draw.chance(30)) continue;
      const double c = draw.of(held),
                   by = static_cast<double>(draw.between(int64_t{-1}, int64_t{1}));
      Tensor::put(t.dtype(), bytes, k, step != 0 && draw.chance(50) ? c * (1 + by * step) : c + by);
    }
    t = std::move(changed);
  }
}

/// Elements that differ, but not in a shorter type of floats that the graphs use: what is compared
/// or sorted in it comes in another order. False: there is no such type.
bool draw_near_ties(const std::vector<DType>& types, std::vector<Tensor>& inputs, Draw& draw) {
  bool any = false;
  for (Tensor& t : inputs) {
    const bool real = is_float(t.dtype());
    if ((!real && !is_int(t.dtype())) || size_bits(t.dtype()) % 8 != 0) continue;
    const int digits =
        real ? float_limits(t.dtype()).precision : size_bits(t.dtype()) - is_signed_int(t.dtype());
    std::vector<DType> shorter;
    for (DType s : types)
      if (float_limits(s).precision + 2 <= digits) shorter.push_back(s);
    if (shorter.empty()) continue;
    any = true;
    const FloatLimits l = float_limits(draw.of(shorter));
    const double about = real ? draw.between(1.0, 2.0) * (draw.chance(50) ? -1 : 1) : 0;
    const double shared =
        real ? about - std::remainder(about, 4 * l.epsilon()) : std::ldexp(1.0, l.precision + 1);
    const double step = real ? l.epsilon() / 2 : 1;
    auto [tied, bytes] = Tensor::allocate(t.dtype(), t.dims());
    for (int64_t k = 0; k < t.numel(); ++k)
      Tensor::put(t.dtype(), bytes, k, shared + static_cast<double>(draw.below(2)) * step);
    t = std::move(tied);
  }
  return any;
}

/// The shape that a pool reads; null: the node is none.
const std::optional<Shape>* pooled(const Graph& g, const Node& n, const Semantics& ops) {
  if (n.inputs.empty() || !n.inputs[0] || contract_of(n, ops) != "pool") return nullptr;
  return &g.value(n.inputs[0]).type.shape;
}

/// Whether a window of a pool lies in padding alone, of which ONNX does not say what it gives.
bool pools_padding(const Graph& g, const Semantics& ops) {
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    const std::vector<int64_t> kernel = n.attrs.ints("kernel_shape");
    const auto* x = kernel.empty() ? nullptr : pooled(g, n, ops);
    if (!x) continue;
    const auto& y = g.value(n.outputs[0]).type.shape;
    const auto in = *x ? constant_shape(**x) : std::nullopt,
               out = y ? constant_shape(*y) : std::nullopt;
    if (!in || !out || in->size() != kernel.size() + 2) continue;
    const auto pads = resolved_pads(n, Shape((*x)->begin() + 2, (*x)->end()), kernel);
    const std::vector<int64_t> strides = n.attrs.ints("strides"),
                               dilations = n.attrs.ints("dilations");
    for (size_t k = 0; pads && k < kernel.size(); ++k) {
      const int64_t stride = k < strides.size() ? strides[k] : 1;
      const int64_t dilation = k < dilations.size() ? dilations[k] : 1;
      for (int64_t o = 0; o < (*out)[k + 2]; ++o) {
        bool any = false;
        for (int64_t i = 0; i < kernel[k] && !any; ++i) {
          const int64_t at = o * stride - (*pads)[k] + i * dilation;
          any = at >= 0 && at < (*in)[k + 2];
        }
        if (!any) return true;
      }
    }
  }
  return false;
}

/// Whether a pool reads an image without elements, once the graph's sizes are those of these
/// inputs. A graph that does not take them says nothing, either.
bool pools_nothing(const Graph& g, const Semantics& ops, const std::vector<Tensor>& inputs) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (size_t k = 0; k < inputs.size(); ++k) shapes[g.value(g.inputs()[k]).name] = inputs[k].dims();
  const auto fixed = g.clone();
  return !fix_shapes(ops, *fixed, shapes) || std::ranges::any_of(fixed->order(), [&](NodeId id) {
    const auto* x = pooled(*fixed, fixed->node(id), ops);
    return x && *x && std::ranges::find(**x, Dim(0)) != (*x)->end();
  });
}

class Comparison {
 public:
  Comparison(const Graph& before, const Graph& after, Numerics claim, const ProofContext& ctx)
      : before_(before),
        after_(after),
        claim_(claim),
        ctx_(ctx),
        limits_(*ctx.limits),
        small_(*ctx.limits) {
    // What is drawn is smaller; sizes that only a run finds out need not be. What a rule adds may
    // be larger.
    auto bounded = [&](Limits& limits, int64_t bytes) {
      limits.memory_bytes = limits.memory_bytes > 0 ? std::min(limits.memory_bytes, bytes) : bytes;
    };
    bounded(limits_, is_counted(before) ? 1 << 28 : 1 << 24);
    bounded(small_, is_counted(before) ? 1 << 28 : has_long_axis(before) ? 1 << 22 : 1 << 17);
    open_ = pools_padding(before, *ctx.ops);
    sizes_open_ = std::ranges::any_of(before.order(), [&](NodeId n) {
      const auto* x = pooled(before, before.node(n), *ctx.ops);
      return x && !(*x && constant_shape(**x));
    });
  }

  /// What the results of these inputs keep; nullopt: the graph before does not take them.
  std::optional<Numerics> of(const std::vector<Tensor>& inputs, std::string& text) const {
    if (open_ || (sizes_open_ && pools_nothing(before_, *ctx_.ops, inputs))) return std::nullopt;
    const auto want = interpret(before_, inputs, within(small_));
    if (!want || !as_declared(*want)) return std::nullopt;
    auto got = interpret(after_, inputs, within(limits_));
    if (!got) return wrong(text, "the result does not run: " + got.error().message);
    const bool loose = claim_ >= Numerics::approximate;
    if (loose) *got = ordinary(std::move(*got), *want, floats_);
    if (!differs(*want, *got, Asked::bits, text)) return Numerics::exact;
    if (!differs(*want, *got, Asked::numbers, text)) return Numerics::signed_zero;
    if (loose && !differs(*want, *got, Asked::models, text)) return claim_;
    if (claim_ < Numerics::reassociating && is_counted(before_))
      return wrong(text, text);  // which no arbiter has the time for
    const std::string why =
        unexplained({&before_, &after_, &inputs, &*want, &*got, claim_ == Numerics::approximate},
                    *ctx_.ops, limits_);
    if (why.empty()) return Numerics::reassociating;
    return wrong(text, claim_ == Numerics::reassociating ? why : text);
  }
  void judge_by(DType shortest) { shortest_ = shortest; }
  void only_floats(bool floats) { floats_ = floats; }

 private:
  InterpreterOptions within(const Limits& limits) const {
    InterpreterOptions out;
    out.ops = ctx_.ops;
    out.limits = &limits;
    return out;
  }
  /// A graph whose results are not what inference says of them is none to judge a rule by.
  bool as_declared(const std::vector<Tensor>& results) const {
    for (size_t k = 0; k < results.size(); ++k) {
      const Type& t = before_.value(before_.outputs()[k]).type;
      if (t.dtype != DType::undefined && t.dtype != results[k].dtype()) return false;
      if (!t.shape) continue;
      if (t.shape->size() != results[k].dims().size()) return false;
      for (size_t i = 0; i < t.shape->size(); ++i)
        if ((*t.shape)[i].value_or(results[k].dims()[i]) != results[k].dims()[i]) return false;
    }
    return true;
  }
  static Numerics wrong(std::string& text, std::string why) {
    text = std::move(why);
    return Numerics::none;
  }
  enum class Asked : uint8_t {
    bits,
    numbers,
    models
  };  ///< the same bits, equal numbers, equal within the tolerance of models
  bool differs(const std::vector<Tensor>& want, const std::vector<Tensor>& got, Asked asked,
               std::string& text) const {
    for (size_t k = 0; k < want.size(); ++k) {
      const DType t =
          shortest_ != DType::undefined && is_float(want[k].dtype()) ? shortest_ : want[k].dtype();
      const Difference d =
          compare(got[k], want[k], asked == Asked::models ? model_tolerance(t) : Tolerance{},
                  asked == Asked::bits);
      if (d.ok) continue;
      text = fmt::format("output {}: {}", escape(before_.value(before_.outputs()[k]).name), d.text);
      return true;
    }
    return false;
  }

  const Graph &before_, &after_;
  Numerics claim_;
  const ProofContext& ctx_;
  Limits limits_, small_;
  bool open_ = false;        ///< ONNX leaves open what the graph before gives
  bool sizes_open_ = false;  ///< of what a pool reads
  bool floats_ = false;
  DType shortest_ =
      DType::undefined;  ///< whose tolerance floats are judged by; undefined: their own's
};

}  // namespace

Numerics numerics_of(const Rule& rule) {
  return static_cast<Numerics>(std::ranges::find(kNumerics, rule.numerics) - std::begin(kNumerics));
}
std::string_view name(Numerics n) {
  return n == Numerics::none ? "none" : kNumerics[static_cast<size_t>(n)];
}

std::string disagreement(const Graph& before, const Graph& after, Numerics claim,
                         const ProofContext& ctx, const std::vector<Tensor>& inputs) {
  std::string text;
  const auto kept = Comparison(before, after, claim, ctx).of(inputs, text);
  return kept && *kept > claim ? text : "";
}

Agreement agreement(const Graph& before, const Graph& after, Numerics claim,
                    const ProofContext& ctx, uint64_t seed) {
  Agreement out;
  const bool reduced = claim == Numerics::reduced;
  const DType shortest = reduced ? shortest_float(after) : DType::undefined;
  Comparison comparison(before, after, claim, ctx);
  comparison.judge_by(shortest);
  Draw draw(seed), beside(~seed);
  std::set<DType> used;
  for (const Graph* g : {&before, &after})
    for (ValueId v : g->values())
      if (const DType t = g->value(v).type.dtype; is_float(t)) used.insert(t);
  const std::vector<DType> floats(used.begin(), used.end());
  const std::span<const Round> asked = rounds_of(claim, before);
  std::vector<Round> rounds(asked.begin(), asked.end());
  const size_t tied = rounds.size();
  const bool is_long = claim < Numerics::approximate && has_long_axis(before);
  if (!reduced && !floats.empty() && !is_long) rounds.push_back({Magnitudes::small, Sizes::primes});
  for (size_t k = 0; k < rounds.size(); ++k) {
    const Round& round = rounds[k];
    const bool sums = is_long && k == 0;
    std::vector<Tensor> inputs = inputs_of(before, round, sums, draw);
    if (k == tied && !draw_near_ties(floats, inputs, draw)) break;
    if (!sums && (round.values == Magnitudes::few || round.values == Magnitudes::limits))
      draw_beside_constants(before, inputs, beside);
    if (reduced)
      for (Tensor& t : inputs) t = shortened(t, shortest);
    comparison.only_floats(round.values != Magnitudes::small && round.values != Magnitudes::few);
    std::string text;
    const auto kept = comparison.of(inputs, text);
    if (!kept) continue;
    ++out.ran;
    out.needed = std::max(out.needed, *kept);
    if (*kept <= claim) continue;
    out.wrong = Mismatch{std::move(text), std::move(inputs)};
    return out;
  }
  return out;
}

Agreement agreement_of(const Rule& rule, const Graph& before, const Graph& after,
                       const Target* target, const ProofContext& ctx, uint64_t seed) {
  const Numerics claim = numerics_of(rule);
  if (claim == Numerics::reduced) {
    const auto shorter = with_short_constants(before, shortest_float(after));
    const Trial t = try_rule(rule, *shorter, target, ctx);
    return t.fired && t.broken.empty() ? agreement(*shorter, *t.after, claim, ctx, seed)
                                       : Agreement();
  }
  Agreement a = agreement(before, after, claim, ctx, seed);
  if (a.ran && !a.wrong && well_typed(before) && !well_typed(after))
    a.wrong = Mismatch{"an operator of the result gets element types that it does not take", {}};
  return a;
}

}  // namespace ferrule
