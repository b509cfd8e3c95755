// Static checks over a whole rule set, beyond what loading one rule can see: rules that can never
// fire because an earlier one takes every match, rewrites that do not make the graph smaller, pairs
// that overlap, rewrites that may undo each other, names and blocks nobody uses, conditions without
// a test or that never decide. Patterns are compared as trees, lines inlined; where that cannot
// decide (orders of commutative operands), the answer errs towards silence.
#include <algorithm>
#include <map>
#include <set>

#include "engine/base/limits.h"
#include "engine/base/suggest.h"
#include "engine/base/yaml.h"
#include "engine/onnx/schema.h"
#include "engine/rule/condition_functions.h"
#include "engine/rule/contract.h"
#include "engine/rule/expr.h"
#include "engine/rule/expr_ast.h"
#include "engine/rule/load.h"
#include "engine/rule/load_rule.h"
#include "engine/rule/shrinks.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

using Kind = PatternExpr::Kind;

/// Follows a name to the line that makes it.
const PatternExpr& resolved(const Pattern& p, const PatternExpr& e) {
  const PatternExpr* at = &e;
  while (at->kind == Kind::reference) {
    const PatternLine* l = p.line_of(at->name);
    if (!l || l->results[0] != at->name) break;
    at = l->expr.get();
  }
  return *at;
}

class PatternShape {
 public:
  explicit PatternShape(const Semantics& ops) : ops_(ops) {}

  /// Whether one of the operators takes its operands in any order.
  bool commutes(const std::set<std::string>& ops) const {
    return std::ranges::any_of(ops, [&](const std::string& op) {
      auto it = ops_.all().find(op);
      return it != ops_.all().end() && contains(it->second.classes, "commutative");
    });
  }

  /// Operators that a call may have; classes written out through the operator table.
  const std::set<std::string>& ops_of(const PatternExpr& e) {
    auto [it, fresh] = cache_.try_emplace(&e);
    if (!fresh) return it->second;
    it->second.insert(e.ops.begin(), e.ops.end());
    for (const std::string& c : e.classes)
      for (const auto& [key, f] : ops_.all()) {
        bool member = c == "pointwise" ? f.pointwise() : contains(f.classes, c);
        if (member) it->second.insert(key);
      }
    return it->second;
  }

 private:
  const Semantics& ops_;
  std::map<const PatternExpr*, std::set<std::string>> cache_;
};

/// Whether every match of one pattern is a match of the other.
class Subsumption {
 public:
  Subsumption(const Pattern& general, const Pattern& special, PatternShape& shape)
      : a_(general), b_(special), shape_(shape) {}
  bool run() { return covers(*a_.root().expr, *b_.root().expr); }

 private:
  bool covers(const PatternExpr& a0, const PatternExpr& b0) {
    if (++steps_ > 10000) return false;
    const PatternExpr &a = resolved(a_, a0), &b = resolved(b_, b0);
    if (b.kind == Kind::alternatives)
      return std::ranges::all_of(b.choices, [&](auto& c) { return covers(a, *c.second); });
    if (a.kind == Kind::alternatives)
      return std::ranges::any_of(a.choices, [&](auto& c) {
        auto saved = bound_;
        if (covers(*c.second, b)) return true;
        bound_ = std::move(saved);
        return false;
      });
    if (a.kind == Kind::reference) return reference(a, b);
    if (a.kind == Kind::number)
      return b.kind == Kind::number && a.number == b.number && (a.near || !b.near) &&
             (!b.near || a.rtol >= b.rtol);
    return a.kind == Kind::call && b.kind == Kind::call && call(a, b);
  }

  bool reference(const PatternExpr& a, const PatternExpr& b) {
    bool constant = b.kind == Kind::number || (b.kind == Kind::reference && b.constant);
    if (a.constant && !constant) return false;
    if (b.kind == Kind::reference && ((b.optional && !a.optional) || b.variadic != a.variadic))
      return false;
    if (a.shape &&
        !(b.shape && a.shape->size() == b.shape->size() && same_shape(*a.shape, *b.shape)))
      return false;
    auto [it, fresh] = bound_.emplace(a.name, to_text(b));
    return fresh || it->second == to_text(b);
  }
  static bool same_shape(const std::vector<DimPattern>& a, const std::vector<DimPattern>& b) {
    for (size_t k = 0; k < a.size(); ++k)
      if (a[k].kind != b[k].kind || a[k].symbol != b[k].symbol || a[k].constant != b[k].constant)
        return false;
    return true;
  }

  bool call(const PatternExpr& a, const PatternExpr& b) {
    if (a.optional || b.optional || a.shape || a.args.size() != b.args.size()) return false;
    const auto &wide = shape_.ops_of(a), &narrow = shape_.ops_of(b);
    if (narrow.empty() || !std::includes(wide.begin(), wide.end(), narrow.begin(), narrow.end()))
      return false;
    for (const AttrPattern& x : a.attrs) {
      auto y =
          std::ranges::find_if(b.attrs, [&](const AttrPattern& o) { return o.name == x.name; });
      if (x.kind == AttrPattern::Kind::bind) {
        if (!bound_.emplace("$" + x.bind, x.name).second) return false;  // read twice: a constraint
        continue;
      }
      if (y == b.attrs.end() || y->kind != AttrPattern::Kind::literal || x.kind != y->kind ||
          !same_attr(x.literal, y->literal))
        return false;
    }
    if (!a.any_attrs) {
      if (b.any_attrs) return false;
      for (const AttrPattern& y : b.attrs)
        if (std::ranges::none_of(a.attrs, [&](const AttrPattern& o) { return o.name == y.name; }))
          return false;
    }
    for (size_t k = 0; k < a.args.size(); ++k)
      if (!covers(*a.args[k], *b.args[k])) return false;
    return true;
  }

  const Pattern &a_, &b_;
  PatternShape& shape_;
  std::map<std::string, std::string> bound_;
  int steps_ = 0;
};

/// What the names of a replacement stand for.
struct Replaced {
  std::map<std::string, const PatternExpr*> labels;
  BoundNames names;
  explicit Replaced(const Pattern& match) : names(bound_names(match)) {
    for (const PatternLine& l : match.lines)
      each_expr(*l.expr, [&](const PatternExpr& e) {
        if (!e.label.empty()) labels[e.label] = &e;
      });
  }
};

/// Whether some graph may match both patterns at one root.
class Overlap {
 public:
  /// `bound`: where `a` is a replacement.
  Overlap(const Pattern& a, const Pattern& b, PatternShape& shape, const Replaced* bound = nullptr)
      : a_(a), b_(b), shape_(shape), bound_(bound) {}
  bool run() { return may(*a_.root().expr, *b_.root().expr); }

 private:
  bool may(const PatternExpr& a0, const PatternExpr& b0) {
    if (++steps_ > 10000) return true;
    const PatternExpr &a = resolved(a_, a0), &b = resolved(b_, b0);
    if (a.kind == Kind::alternatives)
      return std::ranges::any_of(a.choices, [&](auto& c) { return may(*c.second, b); });
    if (b.kind == Kind::alternatives)
      return std::ranges::any_of(b.choices, [&](auto& c) { return may(a, *c.second); });
    if (a.kind == Kind::number && b.kind == Kind::number)
      return a.number == b.number || a.near || b.near;
    bool computed_constant = (a.kind == Kind::call && (b.kind == Kind::number || b.constant)) ||
                             (b.kind == Kind::call && (a.kind == Kind::number || a.constant));
    if (computed_constant || (b.kind == Kind::call && makes_constant(a))) return false;
    if (a.kind != Kind::call || b.kind != Kind::call || a.optional || b.optional) return true;
    const auto &x = ops_of(a), &y = shape_.ops_of(b);
    if (std::ranges::none_of(x, [&](const std::string& op) { return y.contains(op); }))
      return false;
    for (const AttrPattern& q : b.attrs)
      if (const AttrPattern* p = attr_of(a, q.name); p && p->kind == AttrPattern::Kind::literal &&
                                                     q.kind == p->kind &&
                                                     !same_attr(p->literal, q.literal))
        return false;
    if (a.args.size() != b.args.size()) return true;  // optional and variadic operands: perhaps
    if (a.args.size() == 2 && shape_.commutes(x) && shape_.commutes(y) &&
        may(*a.args[0], *b.args[1]) && may(*a.args[1], *b.args[0]))
      return true;  // commuted
    for (size_t k = 0; k < a.args.size(); ++k)
      if (!may(*a.args[k], *b.args[k])) return false;
    return true;
  }
  const PatternExpr* labelled(const std::string& label) const {
    if (!bound_) return nullptr;
    auto it = bound_->labels.find(label);
    return it == bound_->labels.end() ? nullptr : it->second;
  }
  const std::set<std::string>& ops_of(const PatternExpr& a) {
    const PatternExpr* from = a.ops.size() == 1 ? labelled(a.ops[0]) : nullptr;
    return shape_.ops_of(from ? *from : a);
  }
  /// As written, else as copied from a label. Null: not known.
  const AttrPattern* attr_of(const PatternExpr& a, const std::string& name) const {
    for (const PatternExpr* e : {&a, labelled(a.copy_attrs)})
      if (e)
        for (const AttrPattern& p : e->attrs)
          if (p.name == name) return &p;
    return nullptr;
  }
  /// A list of values in {} is operands, everything else there a constant.
  bool makes_constant(const PatternExpr& a) const {
    if (!bound_ || a.kind != Kind::expression) return false;
    return std::ranges::none_of(name_uses(*a.expression), [&](const NameUse& u) {
      auto it = bound_->names.find(u.name);
      return u.function.empty() && it != bound_->names.end() &&
             (it->second.kind == Bound::Kind::value || it->second.kind == Bound::Kind::value_list);
    });
  }

  const Pattern &a_, &b_;
  PatternShape& shape_;
  const Replaced* bound_;
  int steps_ = 0;
};

/// Operators of a pattern that a match surely has, and of a replacement that are not folded.
class Weight {
 public:
  explicit Weight(const Rule& r) : r_(r) {
    for (const PatternLine& l : r.match.lines)
      each_expr(*l.expr, [&](const PatternExpr& e) {
        if (e.kind == Kind::reference && e.constant) constant_.insert(e.name);
      });
  }
  /// Least number over the alternatives.
  int removed() {
    std::set<const PatternExpr*> seen;
    return least(*r_.match.root().expr, seen);
  }
  int made() {
    int n = 0;
    for (const PatternLine& l : r_.rewrite.lines) {
      bool constant = false;
      n += made(*l.expr, constant);
      if (constant)
        for (const std::string& out : l.results) constant_.insert(out);
    }
    return n;
  }

 private:
  int least(const PatternExpr& e, std::set<const PatternExpr*>& seen) {
    if (e.kind == Kind::reference) {
      const PatternLine* l = r_.match.line_of(e.name);
      bool kept = contains(r_.shared, e.name);
      if (!l || kept || !seen.insert(l->expr.get()).second) return 0;
      return least(*l->expr, seen);
    }
    if (e.kind == Kind::alternatives) {
      int best = INT32_MAX;
      std::set<const PatternExpr*> after = seen;
      for (const auto& [tag, c] : e.choices) {
        std::set<const PatternExpr*> mine = seen;
        if (int n = least(*c, mine); n < best) best = n, after = mine;
      }
      seen = std::move(after);
      return best;
    }
    int n = e.kind == Kind::call && !e.optional ? 1 : 0;
    for (const PatternExprPtr& a : e.args) n += least(*a, seen);
    return n;
  }
  int made(const PatternExpr& e, bool& constant) {
    if (e.kind == Kind::reference) {
      constant = constant_.contains(e.name);
      return 0;
    }
    constant = true;
    int n = 0;
    auto part = [&](const PatternExpr& p) {
      bool one = false;
      n += made(p, one);
      constant = constant && one;
    };
    for (const auto& [tag, c] : e.choices) part(*c);
    for (const PatternExprPtr& a : e.args) part(*a);
    return e.kind != Kind::call ? n : constant ? 0 : n + 1;
  }
  const Rule& r_;
  std::set<std::string> constant_;
};

class Checker {
 public:
  Checker(const RuleSet& set, const Semantics& ops) : set_(set), ops_(ops), shape_(ops) {}

  CheckReport run() {
    for (size_t k = 0; k < set_.rules.size(); ++k) {
      const Rule& r = *set_.rules[k];
      for (size_t j = 0; j < k; ++j) pair(*set_.rules[j], r);
      if (r.kind == RuleKind::rewrite) decreases(r);
      known_operators(r);
      unused(r);
      unused_blocks(r);
      tests(r);
      for (const Condition& c : r.where)
        if (c.from.empty() && c.expr) decides(r, c);
    }
    loops();
    if (const Contracts* contracts = ops_.contracts())
      for (const auto& c : contracts->all())
        if (!c->replaces.empty())
          report_.notes.push_back(
              {nullptr, fmt::format("contract {}: {} replaces {}", c->id, c->file, c->replaces)});
    return std::move(report_);
  }

 private:
  void fail(const Rule& r, const Place& at, std::string message, std::string hint) {
    Error e = make_error_v(Code::rule_invalid, str(at), fmt::make_format_args(message, hint));
    e.excerpt = yaml::Source{r.file, r.text}.excerpt(at.line, at.column);
    report_.errors.push_back(std::move(e));
  }
  void note(const Rule& r, const std::string& text) { report_.notes.push_back({&r, text}); }

  void pair(const Rule& a, const Rule& b) {
    if (a.phase != b.phase || !a.enabled || !b.enabled || a.match.lines.empty() ||
        b.match.lines.empty())
      return;
    if (a.kind == RuleKind::rewrite && b.kind == RuleKind::rewrite && a.where.empty() &&
        types_cover(a, b) && b.shared.size() <= a.shared.size() &&
        Subsumption(a.match, b.match, shape_).run())
      return fail(
          b, b.match.lines[0].place,
          fmt::format("rule {} never fires: {} comes first and takes every match", b.id, a.id),
          fmt::format("put it before: before: [{}], or remove it", a.id));
    bool ordered = contains(a.before, b.id) || contains(b.after, a.id);
    if (!ordered && Overlap(a.match, b.match, shape_).run())
      note(b, fmt::format("overlaps {}, which comes first by its path only", a.id));
  }
  static bool types_cover(const Rule& a, const Rule& b) {
    if (a.types.empty()) return true;
    if (b.types.empty()) return false;
    return std::ranges::all_of(b.types, [&](DType t) { return contains(a.types, t); });
  }

  void decreases(const Rule& r) {
    if (r.once || r.match.lines.empty() || r.rewrite.lines.empty()) return;
    Weight w(r);
    int before = w.removed(), after = w.made();
    if (after >= before)
      fail(r, r.rewrite.lines[0].place,
           fmt::format("rule {} replaces {} operators by {}: it does not decrease", r.id, before,
                       after),
           "say once: true if it fires once per root");
  }

  /// Attributes that none of the operators has which stand in one place.
  void known_attributes(const Rule& r, const PatternExpr& e, const std::set<std::string>& labels) {
    std::vector<std::string> all{"precision"};  // rules/targets/README.md, tf32
    for (const std::string& op : e.ops) {
      const OperatorSchema* schema = labels.contains(op) ? nullptr : operator_schema("", op);
      if (!schema) return;
      for (const AttributeSchema& a : schema->attributes) all.push_back(a.name);
    }
    for (const AttrPattern& a : e.attrs)
      if (!e.ops.empty() && e.classes.empty() && !contains(all, a.name))
        fail(r, e.place, fmt::format("{} has no attribute {}", escape(e.ops[0]), escape(a.name)),
             did_you_mean(a.name, all));
  }

  /// Operators of ONNX's that there are not; of other domains, that nothing here describes.
  void known_operators(const Rule& r) {
    std::set<std::string> labels;
    auto look = [&](const PatternExpr& e) {
      for (const std::string& op : e.ops) {
        if (labels.contains(op) || op.starts_with("group.")) continue;
        const auto [domain, name] = domain_and_name(op);
        if (auto wrong = unknown_operator(ops_, op))
          fail(r, e.place, std::move(wrong->first), std::move(wrong->second));
        else if (ops_.function(domain, name))
          note(r,
               fmt::format("operator {} is a function of rules/ops: models are read with its body "
                           "in its place, so no pattern finds it",
                           escape(op)));
        else if (!ops_.find(domain, name) && !operator_schema(domain, name))
          note(r, fmt::format("operator {} is described nowhere", escape(op)));
      }
      known_attributes(r, e, labels);
    };
    for (const PatternLine& l : r.match.lines)
      each_expr(*l.expr, [&](const PatternExpr& e) {
        look(e);
        if (!e.label.empty()) labels.insert(e.label);
      });
    for (const PatternLine& l : r.rewrite.lines) each_expr(*l.expr, look);
  }

  /// Labels and symbols that nothing reads.
  void unused(const Rule& r) {
    std::set<std::string> used = {r.anchor};
    auto reads = [&](const Expr& e) {
      for (const NameUse& u : name_uses(e)) used.insert(u.name);
    };
    auto text = [&](const std::string& t) {
      for (size_t i = 0; i < t.size(); ++i) {
        size_t end = t[i] == '{' ? hole_end(t, i) : t.npos;
        if (end == t.npos) continue;
        if (auto e = parse_expression(std::string_view(t).substr(i + 1, end - i - 1), Place{}))
          reads(**e);
        i = end;
      }
    };
    for (const auto* conditions : {&r.where, &r.region.where})
      for (const Condition& c : *conditions)
        if (c.expr) reads(*c.expr), text(c.why), text(c.hint);
    for (const auto& [n, e] : r.let) reads(*e);
    for (const WrittenExpr& k : r.merge.keys) reads(*k.expr);
    if (r.merge.axis) reads(*r.merge.axis.expr);
    for (const auto& [_, axis] : r.merge.weights) reads(*axis.expr);
    used.insert({r.merge.over, r.place.whole, r.place.axis});
    text(r.name);
    for (const PatternLine& l : r.rewrite.lines) replacement(*l.expr, used, reads);
    for (const auto& [limit, n] : r.region.named) used.insert(n);
    for (const Param& p : r.parameters)
      if (!used.contains(p.name)) note(r, fmt::format("parameter {} is used by nothing", p.name));
    std::string edits;
    for (const RuleTest& t : r.tests)
      for (const auto& [verb, argument] : t.edits) edits += argument + " ";
    for (const auto& [n, b] : bound_names(r.match)) {
      bool test = edits.find(n) != edits.npos;
      if (b.kind == Bound::Kind::node && !used.contains(n) && !test && n.find('.') == n.npos)
        note(r, fmt::format("label {} is used by nothing", n));
    }
    for (const auto& [n, e] : r.let)
      if (!used.contains(n)) note(r, fmt::format("let {} is used by nothing", n));
  }
  template <class F>
  void replacement(const PatternExpr& e, std::set<std::string>& used, const F& reads) {
    used.insert(e.name);
    used.insert(e.copy_attrs);
    for (const std::string& op : e.ops) used.insert(op);
    if (e.expression) reads(*e.expression);
    for (const AttrPattern& a : e.attrs) {
      used.insert(a.bind);
      if (a.expression) reads(*a.expression);
    }
    for (const PatternExprPtr& a : e.args) replacement(*a, used, reads);
    for (const auto& [tag, c] : e.choices) replacement(*c, used, reads);
  }

  /// Blocks of the rule that its text calls nowhere.
  void unused_blocks(const Rule& r) {
    auto doc = yaml::read_text(r.text, r.file, Limits{});
    const yaml::Node* blocks = doc ? doc->root.find("blocks") : nullptr;
    if (!blocks) return;
    for (const auto& [key, value] : blocks->entries) {
      std::string name = key.text.substr(0, key.text.find('('));
      int calls = 0;
      for (size_t at = 0; (at = r.text.find(name, at)) != r.text.npos; at += name.size()) {
        bool starts = at == 0 || !(std::isalnum(static_cast<unsigned char>(r.text[at - 1])) ||
                                   r.text[at - 1] == '_');
        size_t end = at + name.size();
        calls += starts && end < r.text.size() &&
                 (r.text[end] == '(' || r.text[end] == '?' || r.text[end] == ':');
      }
      if (calls < 2) note(r, fmt::format("block {} is used by nothing", name));
    }
  }

  /// A condition about nothing that the pattern binds and no fact: always the same answer.
  void decides(const Rule& r, const Condition& c) {
    for (const NameUse& u : name_uses(*c.expr))
      if (!word(u.name) || is_fact(u.name)) return;
    for (std::string_view asks : {"tag(", "isa(", "present(", "absent(", "is_output(", "is_input("})
      if (c.text.find(asks) != c.text.npos) return;
    static const Graph kNoGraph;
    static const Semantics kNoOperators;
    static const Bindings kNoBindings;
    static const Let kNoLet;
    Truth t = evaluate_condition(*c.expr, {kNoGraph, kNoBindings, kNoOperators, kNoLet});
    note(r, fmt::format("condition {} never decides: it is always {}", c.id,
                        t == Truth::yes  ? "true"
                        : t == Truth::no ? "false"
                                         : "unknown"));
  }

  /// Rules of one phase whose results are each other's matches, where one of them need not decrease
  /// in either measure.
  void loops() {
    std::map<std::string, std::vector<const Rule*>> phases;
    for (const auto& r : set_.rules)
      if (r->kind == RuleKind::rewrite && r->enabled && !r->rewrite.lines.empty())
        phases[r->phase].push_back(r.get());
    for (const auto& [_, rules] : phases) {
      std::map<const Rule*, std::vector<const Rule*>> feeds;
      for (const Rule* a : rules) {
        const Replaced bound(a->match);
        if (a->rewrite.root().expr->kind != Kind::call) continue;
        for (const Rule* b : rules)
          if (a != b && Overlap(a->rewrite, b->match, shape_, &bound).run()) feeds[a].push_back(b);
      }
      std::set<const Rule*> reported;
      for (const Rule* start : rules)
        if (start->once && !reported.contains(start)) ring(start, feeds, reported);
    }
  }
  /// The shortest way from `start` back to it, over a rule that does not shrink what it rewrites,
  /// if there is one.
  void ring(const Rule* start, const std::map<const Rule*, std::vector<const Rule*>>& feeds,
            std::set<const Rule*>& reported) {
    using Step = std::pair<const Rule*, bool>;  // there, and over one that does not shrink
    const Step first{start, !shrinks(*start)};
    std::map<Step, Step> from;
    std::vector<Step> queue = {first};
    for (size_t k = 0; k < queue.size(); ++k) {
      auto it = feeds.find(queue[k].first);
      if (it == feeds.end()) continue;
      for (const Rule* next : it->second) {
        if (next == start && queue[k].second) {
          std::string text = start->id;
          for (Step s = queue[k]; s != first; s = from.at(s))
            text = s.first->id + " -> " + text, reported.insert(s.first);
          reported.insert(start);
          return note(*start,
                      fmt::format("loop: {} -> {}, where a result may be the next one's match",
                                  start->id, text));
        }
        // One that may grow the graph besides is where its own rings start.
        const Step step{next, queue[k].second || !(next->once || shrinks(*next))};
        if (step != first && from.emplace(step, queue[k]).second) queue.push_back(step);
      }
    }
  }

  void tests(const Rule& r) {
    if (std::ranges::none_of(r.tests, [](const RuleTest& t) { return t.fires; }))
      note(r, "has no firing case");
    for (const Condition& c : r.where) {
      bool covered = std::ranges::any_of(
          r.tests, [&](const RuleTest& t) { return !t.fires && t.declined_by == c.id; });
      if (c.cls == ConditionClass::sound && !covered)
        note(r, fmt::format("condition {} has no case that it declines", c.id));
    }
  }

  const RuleSet& set_;
  const Semantics& ops_;
  PatternShape shape_;
  CheckReport report_;
};

}  // namespace

CheckReport check_rules(const RuleSet& set, const Semantics& ops) {
  return Checker(set, ops).run();
}

}  // namespace ferrule
