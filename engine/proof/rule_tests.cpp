#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/graph/text.h"
#include "engine/proof/agree.h"
#include "engine/proof/edit.h"
#include "engine/proof/trial.h"

namespace ferrule {
namespace {

/// A fingerprint of what a graph computes, free of names: by operator, attributes, operands and
/// constants.
class Fingerprint {
 public:
  explicit Fingerprint(const Graph& g) : g_(g) {}
  std::string run() {
    std::string out;
    for (size_t k = 0; k < g_.inputs().size(); ++k) of_[g_.inputs()[k]] = fmt::format("in{}", k);
    for (ValueId v : g_.outputs()) out += value(v) + "\n";
    return out;
  }

 private:
  std::string value(ValueId v) {
    if (!v) return "_";
    if (auto it = of_.find(v); it != of_.end()) return it->second;
    std::string text;
    if (const Tensor* t = g_.constant(v)) {
      text = fmt::format("{}#{:x}", str(g_.value(v).type), t->hash());
    } else if (NodeId p = g_.value(v).producer) {
      const Node& n = g_.node(p);
      text = n.op.text() + "<";
      for (const auto& [key, a] : n.attrs.items()) text += key + "=" + str(a) + ",";
      text += fmt::format(">.{}(", g_.value(v).producer_slot);
      for (ValueId i : n.inputs) text += value(i) + ",";
      text += ")";
      if (n.body) text += "{" + Fingerprint(*n.body).run() + "}";
      if (text.size() > 400)
        text = fmt::format("{}:{:x}", n.op.text(), std::hash<std::string>()(text));
    }
    return of_[v] = text;
  }
  const Graph& g_;
  std::map<ValueId, std::string> of_;
};

class Runner {
 public:
  Runner(const Rule& rule, const ProofContext& ctx) : rule_(rule), ctx_(ctx) {}

  RuleTestReport run() {
    out_.rule = rule_.id;
    for (const Condition& c : rule_.where)
      if (c.expr) out_.coverage.conditions.push_back({c.id, c.cls, 0, 0, 0});
    for (const Condition& c : rule_.region.where)
      out_.coverage.conditions.push_back({c.id, c.cls, 0, 0, 0});
    for (const PatternLine& l : rule_.match.lines) tags(*l.expr);
    int fires = 0, holds = 0;
    for (const RuleTest& t : rule_.tests) {
      CaseResult c;
      c.name = t.fires ? fmt::format("fires {}", ++fires)
                       : fmt::format("holds {} ({})", ++holds, t.declined_by);
      if (!t.name.empty()) c.name += " " + t.name;
      c.place = t.place;
      c.text = one(t, c.outcome);
      c.passed = c.text.empty();
      out_.cases.push_back(std::move(c));
    }
    return std::move(out_);
  }

 private:
  /// "" or what went wrong.
  std::string one(const RuleTest& t, std::string& outcome) {
    Target loaded;
    const Target* target = ctx_.target;
    if (!t.target.empty()) {
      auto r = load_target(ctx_.rule_dirs, t.target);
      if (!r) return r.error().message;
      loaded = std::move(*r);
      target = &loaded;
    }
    if (!t.profile.empty()) {
      if (target != &loaded) loaded = *target;
      if (Status s = use_profile(loaded, t.profile); !s) return s.error().message;
      target = &loaded;
    }
    auto g = test_graph(rule_, t, target, ctx_);
    if (!g) {
      const std::string& at = g.error().place;  // the caller says which case it is
      const bool own = at == fmt::format("{}:{}", t.place.file, t.place.line);
      return g.error().message + (at.empty() || own ? "" : " (" + at + ")");
    }
    Trial trial = try_rule(rule_, *g, target, ctx_);
    count(trial);
    outcome = trial.fired ? to_text(*trial.after)
                          : fmt::format("{}: {}", trial.nearest.id, trial.nearest.why);
    if (t.fires) unknowns(*g, target);
    return t.fires ? fires(t, *g, target, trial) : holds(t, *g, target, trial);
  }

  std::string fires(const RuleTest& t, const Graph& g, const Target* target, const Trial& trial) {
    if (!trial.fired)
      return fmt::format("does not fire, declined by {}: {}", trial.nearest.id, trial.nearest.why);
    if (!trial.broken.empty()) return trial.broken;
    const Agreement a = agreement_of(rule_, g, *trial.after, target, ctx_, 0);
    if (a.wrong) return "changes the result: " + a.wrong->text;
    if (t.expect.empty()) return "";
    auto want = case_graph(t.expect, ctx_);
    if (!want) return "the expected graph: " + want.error().message;
    if (Fingerprint(*want).run() == Fingerprint(*trial.after).run()) return "";
    return "gives\n" + to_text(*trial.after) + "instead of\n" + to_text(*want);
  }

  std::string holds(const RuleTest& t, const Graph& g, const Target* target, const Trial& trial) {
    if (trial.fired) return "fires";
    const std::string& id = trial.nearest.id;
    // Operands, results and attributes that the pattern does not name are structure, seen more
    // closely.
    bool structural = id == "D4" || id == "D5" || id == "D6" || id == "D8";
    if (id == t.declined_by || (structural && t.declined_by == "structure")) return "";
    if (trial.nearest.stage == Rejection::Stage::condition && alone(t, g, target)) {
      for (ConditionCount& c : out_.coverage.conditions) c.no += c.id == t.declined_by;
      return "";
    }
    return fmt::format("declined by {} ({}), not by {}", id, trial.nearest.why, t.declined_by);
  }

  /// Several conditions may be false; the one that the case names must be.
  bool alone(const RuleTest& t, const Graph& g, const Target* target) {
    Rule only = rule_;
    auto other = [&](const Condition& c) { return c.id != t.declined_by; };
    std::erase_if(only.where, other);
    std::erase_if(only.region.where, other);
    Trial trial = try_rule(only, g, target, ctx_);
    return !trial.fired && trial.nearest.id == t.declined_by;
  }

  // --- coverage

  /// Every tag of the pattern, taken or not.
  void tags(const PatternExpr& e) {
    for (const auto& a : e.args) tags(*a);
    for (const auto& [tag, c] : e.choices) {
      if (!tag.empty()) out_.coverage.tags.try_emplace(tag, 0);
      tags(*c);
    }
  }

  /// The firing case with sizes and ranks that are not known: what cannot be decided then?
  void unknowns(const Graph& g, const Target* target) {
    for (ValueId v : g.inputs()) {
      if (!g.value(v).type.shape) continue;
      for (int axis = -1; axis < g.value(v).type.rank(); ++axis) {
        auto copy = g.clone();
        Type t = g.value(v).type;
        if (axis < 0)
          t.shape.reset();
        else
          (*t.shape)[axis] = Dim::symbol("unknown");
        copy->set_type(v, std::move(t));
        if (!infer_again(*ctx_.ops, *copy)) continue;
        Trial trial = try_rule(rule_, *copy, target, ctx_);
        if (!trial.fired && trial.nearest.truth == Truth::unknown) count(trial);
      }
    }
  }

  void count(const Trial& trial) {
    if (trial.fired) {
      ++out_.coverage.hits;
      for (const std::string& tag : trial.match.bindings.tags) ++out_.coverage.tags[tag];
      for (const PatternLine& l : rule_.match.lines) optionals(*l.expr, trial.match.bindings);
      for (ConditionCount& c : out_.coverage.conditions) ++c.yes;
      return;
    }
    if (trial.nearest.stage != Rejection::Stage::condition) return;
    for (ConditionCount& c : out_.coverage.conditions) {
      if (c.id == trial.nearest.id) {
        ++(trial.nearest.truth == Truth::unknown ? c.unknown : c.no);
        break;
      }
      ++c.yes;
    }
  }

  void optionals(const PatternExpr& e, const Bindings& b) {
    if (e.optional) {
      bool call = e.kind == PatternExpr::Kind::call;
      const std::string& name = call ? e.label : e.name;
      bool present = call ? b.nodes.contains(name) && b.nodes.at(name)
                          : b.values.contains(name) && b.values.at(name);
      if (!name.empty())
        ++(present ? out_.coverage.optionals[name].first : out_.coverage.optionals[name].second);
    }
    for (const auto& a : e.args) optionals(*a, b);
    for (const auto& [_, c] : e.choices) optionals(*c, b);
  }

  const Rule& rule_;
  const ProofContext& ctx_;
  RuleTestReport out_;
};

}  // namespace

Result<Graph> test_graph(const Rule& rule, const RuleTest& t, const Target* target,
                         const ProofContext& ctx) {
  if (!t.model.empty() && t.edits.empty()) return case_graph(t.model, ctx);
  const RuleTest* base = &t;
  if (t.model.empty())
    for (const RuleTest& o : rule.tests)
      if (o.fires && !o.model.empty() && (t.of.empty() || o.name == t.of)) {
        base = &o;
        break;
      }
  FERRULE_ASSIGN(Graph g, case_graph(base->model, ctx));
  Trial trial = try_rule(rule, g, target, ctx);
  Bindings bound;
  if (trial.fired) bound = trial.match.bindings;
  FERRULE_TRY(
      apply_edits(*ctx.ops, g, t.edits, bound, fmt::format("{}:{}", t.place.file, t.place.line)));
  return g;
}

RuleTestReport run_rule_tests(const Rule& rule, const ProofContext& ctx) {
  return Runner(rule, ctx).run();
}

}  // namespace ferrule
