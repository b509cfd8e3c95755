#include "engine/proof/trial.h"

#include <cmath>

#include "engine/base/diagnostics.h"
#include "engine/graph/compare.h"
#include "engine/graph/interpreter.h"
#include "engine/graph/verify.h"
#include "engine/instantiate.h"
#include "engine/onnx/import.h"
#include "engine/proof/edit.h"

namespace ferrule {

Result<Graph> case_graph(std::string_view text, const ProofContext& ctx) {
  ImportOptions options;
  options.limits = ctx.limits;
  options.known_operator = [&](std::string_view d, std::string_view o) {
    return ctx.ops->find(d, o) != nullptr;
  };
  FERRULE_ASSIGN(Imported imported, import_text(text, options));
  return std::move(imported.graph);
}

namespace {

/// The rule alone, to rest.
Status run_alone(const Rule& rule, Graph& g, const Target* target, const ProofContext& ctx,
                 Journal& journal) {
  RuleSet set;
  set.phases.push_back({rule.phase, "", true, {}});
  auto copy = std::make_shared<Rule>(rule);
  copy->enabled = true;
  set.rules.push_back(copy);
  Limits limits = *ctx.limits;
  limits.rewrite_seconds = 2;
  PassContext pass;
  pass.graph = &g;
  pass.rules = &set;
  pass.ops = ctx.ops;
  pass.target = target;
  pass.limits = &limits;
  pass.journal = &journal;
  FERRULE_TRY(rule.kind == RuleKind::rewrite ? rewrite_phase(pass, rule.phase)
                                             : group_phase(pass, rule.phase));
  g.remove_dead();
  return verify(g);
}

bool finite(const std::vector<Tensor>& tensors) {
  for (const Tensor& t : tensors)
    if (is_float(t.dtype()))
      for (double d : t.to_f64())
        if (!std::isfinite(d)) return false;
  return true;
}

/// What the engine says to a match of a rewrite; "" if it takes place.
std::string refused(const Rule& rule, const Graph& g, const Match& m, const ProofContext& ctx,
                    Rejection& r) {
  if (rule.kind != RuleKind::rewrite) return "";
  auto copy = g.clone();
  auto made = apply_rewrite(*copy, m, *ctx.ops, *ctx.limits);
  if (made) return "";
  r = declined_rewrite(m, made.error());
  r.rule = &rule;
  if (r.id == "replacement") r.id = "D7";  // what cannot be made has no type
  return made.error().code == Code::rule_broken ? "broken" : "declined";
}

}  // namespace

Trial attempt_rule(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx) {
  Trial t;
  t.nearest.rule = &rule;
  t.nearest.id = "structure";
  t.nearest.why = "no node fits the pattern's root";
  MatchContext mc{&g, ctx.ops, target, ctx.limits, nullptr, nullptr, true};
  bool first = true;
  auto consider = [&](Rejection r) {
    if (first || nearness(r) > nearness(t.nearest)) t.nearest = std::move(r);
    first = false;
  };
  for (NodeId n : g.order()) {
    Attempt a = match_any(rule, n, mc);
    if (auto* r = std::get_if<Rejection>(&a)) {
      consider(std::move(*r));
      continue;
    }
    Rejection r;
    std::string why = refused(rule, g, std::get<Match>(a), ctx, r);
    if (why == "broken" && t.broken.empty()) t.broken = r.why;
    if (!why.empty()) {
      consider(std::move(r));
      continue;
    }
    if (!t.fired) t.match = std::move(std::get<Match>(a));
    t.fired = true;
  }
  return t;
}

void run_to_rest(Trial& t, const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx) {
  t.after = g.clone();
  Journal journal;
  if (Status s = run_alone(rule, *t.after, target, ctx, journal); !s) t.broken = s.error().message;
  for (const Step& step : journal.steps)
    if (step.kind == "broken") t.broken = step.text;
}

Trial try_rule(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx) {
  Trial t = attempt_rule(rule, g, target, ctx);
  if (t.fired) run_to_rest(t, rule, g, target, ctx);
  return t;
}

namespace {
/// The element type that decides how far results of numerics `reduced` may be off.
DType shortest_float(const Graph& g) {
  DType least = DType::f64;
  for (uint32_t v = 0; v < g.value_slots(); ++v) {
    const DType t = g.value(ValueId{v}).type.dtype;
    if (!g.value(ValueId{v}).dead && is_float(t) && model_tolerance(t).relative > model_tolerance(least).relative) least = t;
  }
  return least;
}

/// The nearest numbers that the shorter type can hold.
Tensor shortened(const Tensor& t, DType to) { return t.dtype() == DType::f32 ? converted(converted(t, to), DType::f32) : t; }
}  // namespace

std::optional<std::string> difference(const Graph& original, const Graph& after, const Rule& rule,
                                      const ProofContext& ctx, int rounds, DType as) {
  const bool reduced = rule.numerics == "reduced";
  bool exact = rule.numerics == "exact", signed_zero = rule.numerics == "signed_zero";
  std::mt19937 random(20240229);
  InterpreterOptions options;
  options.ops = ctx.ops;
  Limits limits = *ctx.limits;
  limits.fold_tensor_bytes = 1 << 24;
  options.limits = &limits;
  // Of a shorter type, what holds for the numbers that it can hold: its roundings are what is asked for.
  const DType shortest = reduced ? shortest_float(after) : DType::undefined;
  std::unique_ptr<Graph> rounded = reduced ? original.clone() : nullptr;
  for (uint32_t v = 0; rounded && v < rounded->value_slots(); ++v)
    if (const Tensor* t = rounded->constant(ValueId{v})) rounded->set_constant(ValueId{v}, shortened(*t, shortest));
  const Graph& before = rounded ? *rounded : original;
  bool ran = false;
  for (int round = 0; round < rounds; ++round) {
    // An open size of 1 broadcasts, where others are an error.
    const int64_t open = 2 - round % 2;
    std::vector<Tensor> inputs;
    for (ValueId v : before.inputs()) {
      const Type& t = before.value(v).type;
      std::vector<int64_t> dims;
      if (t.shape)
        for (const Dim& d : *t.shape) dims.push_back(d.value_or(open));
      Tensor input = random_tensor(t.dtype, dims, random, round > 0 && (exact || signed_zero));
      inputs.push_back(reduced ? shortened(input, shortest) : std::move(input));
    }
    auto a = interpret(before, inputs, options);
    if (!a) continue;
    ran = true;
    // Reordered sums promise nothing where they overflow or meet infinities.
    if (!exact && !signed_zero && !finite(*a)) continue;
    auto b = interpret(after, inputs, options);
    if (!b) return "the result does not run: " + b.error().message;
    for (size_t k = 0; k < a->size(); ++k) {
      DType t = reduced && is_float((*a)[k].dtype()) ? shortest : as != DType::undefined && is_float((*a)[k].dtype()) ? as : (*a)[k].dtype();
      Tolerance tolerance = exact || signed_zero             ? Tolerance{}
                            : reduced || rule.numerics == "approximate" ? model_tolerance(t)
                                                             : rewrite_tolerance(t, true);
      Difference d = compare((*b)[k], (*a)[k], tolerance, exact);
      if (!d.ok)
        return fmt::format("output {}: {}", escape(before.value(before.outputs()[k]).name), d.text);
    }
  }
  return ran ? std::optional<std::string>("") : std::nullopt;
}

bool only_rounding(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx) {
  if (rule.numerics == "exact" || rule.numerics == "signed_zero") return false;
  Rule any = rule;
  any.types.clear();
  auto wide = g.clone();
  for (DType t : {DType::f32, DType::f16, DType::bf16}) retype(*wide, t, DType::f64);
  if (!infer_again(*wide)) return false;
  Trial t = try_rule(any, *wide, target, ctx);
  if (!t.fired || !t.broken.empty()) return false;
  auto d = difference(*wide, *t.after, any, ctx, kRounds, DType::f32);
  return d && d->empty();
}

}  // namespace ferrule
