#include "engine/proof/goals.h"

#include <algorithm>
#include <optional>
#include <set>

#include "engine/proof/hints.h"
#include "engine/rule/expr_ast.h"

namespace ferrule {
namespace {

using ExprKind = Expr::Kind;
using Binary = Expr::Binary;
using Part = std::shared_ptr<const Expr>;
/// Expressions that hold together: one way to meet a condition.
using Way = std::vector<Part>;

/// Of one condition, of one rule, and elements of a list that are asked for one by one.
constexpr size_t kWays = 12, kGoals = 32, kElements = 6;

Part binary(Binary op, Part a, Part b) {
  auto e = std::make_shared<Expr>();
  e->kind = ExprKind::binary, e->binary = op;
  e->args = {std::move(a), std::move(b)};
  return e;
}
Part integer(int64_t n) {
  auto e = std::make_shared<Expr>();
  e->literal.v = n;
  return e;
}
Part holding(const Part& e, bool holds) {
  if (holds) return e;
  auto out = std::make_shared<Expr>();
  out->kind = ExprKind::negation;
  out->args = {e};
  return out;
}
std::optional<int64_t> number(const Expr& e) {
  if (e.kind == ExprKind::negate)
    if (const auto n = number(*e.args[0])) return -*n;
  const auto* i = e.kind == ExprKind::literal ? std::get_if<int64_t>(&e.literal.v) : nullptr;
  return i ? std::optional(*i) : std::nullopt;
}
Way joined(Way a, const Way& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The ways to meet a condition, no two at once.
class Ways {
 public:
  explicit Ways(const Rule& rule) : rule_(rule) {}

  std::vector<Way> of(const Part& e, bool holds) const {
    std::vector<Way> out = split(e, holds);
    if (out.size() > kWays) out.resize(kWays);
    return out;
  }

 private:
  std::vector<Way> split(const Part& e, bool holds) const {
    switch (e->kind) {
      case ExprKind::name:
        for (const auto& [name, value] : rule_.let)
          if (name == e->name && truth(*value)) return of(value, holds);
        break;
      case ExprKind::negation:
        return of(e->args[0], !holds);
      case ExprKind::conditional:
        return either(both(of(e->args[0], true), of(e->args[1], holds)),
                      both(of(e->args[0], false), of(e->args[2], holds)));
      case ExprKind::quantifier:
        if (e->quantifier <= Expr::Quantifier::any)
          if (auto some = elements(e, holds); some.size() > 1) return some;
        break;
      case ExprKind::binary:
        if (e->binary <= Binary::both) return logic(*e, holds);
        if (e->binary == Binary::in && holds && e->args[1]->kind == ExprKind::list &&
            e->args[1]->args.size() <= kElements)
          return members(*e);
        break;
      default:
        break;
    }
    return {{holding(e, holds)}};
  }

  static bool truth(const Expr& e) {
    return e.kind == ExprKind::negation || e.kind == ExprKind::conditional ||
           (e.kind == ExprKind::binary && e.binary <= Binary::like) ||
           (e.kind == ExprKind::quantifier && e.quantifier <= Expr::Quantifier::any);
  }

  std::vector<Way> logic(const Expr& e, bool holds) const {
    const bool all = (e.binary == Binary::both) == holds;
    const bool first = (e.binary == Binary::implies) != holds;
    const std::vector<Way> a = of(e.args[0], first), b = of(e.args[1], holds);
    if (all) return both(a, b);
    return either(both(a, without(e.args[1], holds)), both(b, without(e.args[0], first)));
  }
  /// That it is not so, as one way.
  std::vector<Way> without(const Part& e, bool holds) const {
    std::vector<Way> out = of(e, !holds);
    return out.size() == 1 ? out : std::vector<Way>{{holding(e, !holds)}};
  }
  static std::vector<Way> both(const std::vector<Way>& a, const std::vector<Way>& b) {
    std::vector<Way> out;
    for (const Way& x : a)
      for (const Way& y : b) out.push_back(joined(x, y));
    return out;
  }
  static std::vector<Way> either(std::vector<Way> a, const std::vector<Way>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  /// Of what all elements meet: one at least in this way, or all.
  std::vector<Way> elements(const Part& e, bool holds) const {
    using Quantifier = Expr::Quantifier;
    std::vector<Way> out;
    if ((e->quantifier == Quantifier::all) != holds) return out;
    const std::vector<Way> ways = of(e->args[1], holds);
    for (const Quantifier q : {Quantifier::any, Quantifier::all})
      for (const Way& way : ways) {
        if (ways.size() == 1) break;
        auto part = std::make_shared<Expr>(*e);
        part->quantifier = q;
        part->args[1] = way[0];
        for (size_t k = 1; k < way.size(); ++k)
          part->args[1] = binary(Binary::both, part->args[1], way[k]);
        out.push_back({std::move(part)});
        if (q == Quantifier::any) out.back().insert(out.back().begin(), holding(e, holds));
      }
    return out;
  }
  static std::vector<Way> members(const Expr& e) {
    std::vector<Way> out;
    for (const Part& x : e.args[1]->args) out.push_back({binary(Binary::eq, e.args[0], x)});
    return out;
  }

  const Rule& rule_;
};

/// What is strictly within a comparison that its limit meets, too: cases mostly lie on it. Null:
/// it is no such comparison.
Part inside(const Part& e, bool holds) {
  if (e->kind == ExprKind::negation) return inside(e->args[0], !holds);
  if (e->kind != ExprKind::binary) return nullptr;
  const Part &a = e->args[0], &b = e->args[1];
  if (e->binary == (holds ? Binary::le : Binary::gt)) return binary(Binary::lt, a, b);
  if (e->binary == (holds ? Binary::ge : Binary::lt)) return binary(Binary::gt, a, b);
  return nullptr;
}

/// The comparison's last number; null: it compares with none.
Part limit(const Part& e, bool holds) {
  if (e->kind == ExprKind::negation) return limit(e->args[0], !holds);
  if (e->kind != ExprKind::binary || e->binary < Binary::lt || e->binary > Binary::ge)
    return nullptr;
  const auto right = number(*e->args[1]), left = number(*e->args[0]);
  if (right.has_value() == left.has_value()) return nullptr;
  const bool less = e->binary == Binary::lt || e->binary == Binary::le;
  const bool open = e->binary == Binary::lt || e->binary == Binary::gt;
  const int64_t n = right ? *right : *left;
  const bool below = (less == right.has_value()) == holds;  // what is compared is at most n
  const int64_t last = open != holds ? n : below ? n - 1 : n + 1;
  return binary(Binary::eq, e->args[right ? 0 : 1], integer(last));
}

void numbers_in(const Expr& e, std::set<int64_t>& out) {
  if (const auto n = number(e); n && *n > -64 && *n <= kMostElements) {
    for (int64_t by : {-1, 0, 1}) out.insert(*n + by);
    return;
  }
  for (const Part& a : e.args) numbers_in(*a, out);
}

/// The rule with `way` in the place of one condition; beside all of them where there is none such.
Goal goal(const Rule& rule, size_t which, const Way& way) {
  Goal out;
  std::set<int64_t> numbers;
  auto ask = [&](const Condition& like) {
    for (const Part& part : way) {
      numbers_in(*part, numbers);
      out.where.push_back(like);
      out.where.back().expr = part;
    }
  };
  for (size_t k = 0; k < rule.where.size(); ++k)
    if (k == which)
      ask(rule.where[k]);
    else
      out.where.push_back(rule.where[k]);
  if (which >= rule.where.size()) {
    Condition formula;
    formula.id = "formula";
    ask(formula);
  }
  out.numbers.assign(numbers.begin(), numbers.end());
  return out;
}

/// What the `if` of formulas ask, those of roles and of what a replacement computes.
std::vector<Part> asked_in_formulas(const Rule& rule) {
  std::vector<Part> out;
  auto all = [&](auto&& self, const Expr& e) -> void {
    if (e.kind == ExprKind::conditional) out.push_back(e.args[0]);
    if (e.kind == ExprKind::quantifier) return;  // what it asks is asked of its elements
    for (const Part& a : e.args) self(self, *a);
  };
  for (const RoleSpec& role : rule.roles)
    if (role.number) all(all, *role.number.expr);
  for (const PatternLine& l : rule.rewrite.lines)
    each_expr(*l.expr, [&](const PatternExpr& e) {
      if (e.expression) all(all, *e.expression);
      for (const AttrPattern& a : e.attrs)
        if (a.expression) all(all, *a.expression);
    });
  return out;
}

}  // namespace

std::vector<Goal> goals_of(const Rule& rule) {
  std::vector<Goal> branches, limits;
  const Ways ways(rule);
  for (size_t k = 0; k < rule.where.size(); ++k) {
    const Condition& c = rule.where[k];
    if (!c.expr || c.scope) continue;
    const std::vector<Way> all = ways.of(c.expr, true);
    for (const Way& way : all) {
      if (all.size() > 1) branches.push_back(goal(rule, k, way));
      for (size_t part = 0; part < way.size(); ++part)
        for (const auto& nearer : {limit(way[part], true), inside(way[part], true)})
          if (nearer) {
            Way at = way;
            at[part] = nearer;
            limits.push_back(goal(rule, k, at));
          }
    }
  }
  for (const Part& asked : asked_in_formulas(rule))
    for (const bool holds : {true, false})
      for (const Way& way : ways.of(asked, holds))
        branches.push_back(goal(rule, rule.where.size(), way));
  branches.insert(branches.end(), limits.begin(), limits.end());
  if (branches.size() > kGoals) branches.resize(kGoals);
  return branches;
}

}  // namespace ferrule
