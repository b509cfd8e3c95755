#include "engine/proof/trial.h"

#include "engine/base/diagnostics.h"
#include "engine/graph/verify.h"
#include "engine/match/trace.h"
#include "engine/onnx/import.h"
#include "engine/plan/match_any.h"
#include "engine/proof/meaning.h"
#include "engine/rewrite/replacement.h"

namespace ferrule {

Result<Graph> case_graph(std::string_view text, const ProofContext& ctx) {
  ImportOptions options;
  options.limits = ctx.limits;
  options.ops = ctx.ops;
  FERRULE_ASSIGN(Imported imported, import_text(text, options));
  return std::move(imported.graph);
}

namespace {

/// Each group of the contract computes what the contract means.
Status as_meant(Graph& g, const Contract& contract, const ProofContext& ctx) {
  for (NodeId n : g.order()) {
    if (!g.node(n).roles) continue;
    FERRULE_ASSIGN(auto body, meaning(g.node(n), contract, *ctx.ops, *ctx.limits));
    g.set_body(n, std::move(body));
  }
  return verify(g);
}

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
  const PhaseContext pass{{g, *ctx.ops, limits, journal}, set, target};
  FERRULE_TRY(rule.kind == RuleKind::rewrite ? rewrite_phase(pass, rule.phase)
                                             : group_phase(pass, rule.phase));
  g.remove_dead();
  FERRULE_TRY(verify(g));
  return rule.kernel ? as_meant(g, *rule.kernel, ctx) : Status{};
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

uint64_t met(const MatchTrace& trace) {
  uint64_t out = 0;
  for (size_t k = 0; k < trace.conditions.size() && k < 64; ++k)
    out |= uint64_t{trace.conditions[k].truth == Truth::yes} << k;
  return out;
}

Trial attempted(const Rule& rule, const MatchContext& mc, const ProofContext& ctx) {
  const Graph& g = mc.graph;
  Trial t;
  t.nearest.rule = &rule;
  t.nearest.id = "structure";
  t.nearest.why = "no node fits the pattern's root";
  bool first = true;
  auto consider = [&](Rejection r) {
    if (first || nearness(r) > nearness(t.nearest)) {
      t.nearest = std::move(r);
      if (mc.trace) t.met = met(*mc.trace);
    }
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

}  // namespace

Trial attempt_rule(const Rule& rule, const Graph& g, const Target* target,
                   const ProofContext& ctx) {
  return attempted(rule, {g, *ctx.ops, *ctx.limits, target}, ctx);
}

Trial approach_rule(const Rule& rule, const Graph& g, const Target* target,
                    const ProofContext& ctx) {
  MatchTrace all;
  MatchContext mc{g, *ctx.ops, *ctx.limits, target};
  mc.explain = false, mc.trace = &all;
  return attempted(rule, mc, ctx);
}

void run_to_rest(Trial& t, const Rule& rule, const Graph& g, const Target* target,
                 const ProofContext& ctx) {
  t.after = g.clone();
  Journal journal;
  if (Status s = run_alone(rule, *t.after, target, ctx, journal); !s) {
    t.unsaid = rule.kernel && s.error().code == Code::rewrite_declined;
    if (!t.unsaid) t.broken = s.error().message;
  }
  for (const Step& step : journal.steps)
    if (step.kind == "broken") t.broken = step.text;
}

Trial try_rule(const Rule& rule, const Graph& g, const Target* target, const ProofContext& ctx) {
  Trial t = attempt_rule(rule, g, target, ctx);
  if (t.fired) run_to_rest(t, rule, g, target, ctx);
  return t;
}

}  // namespace ferrule
