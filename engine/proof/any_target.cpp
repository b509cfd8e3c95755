#include "engine/proof/any_target.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "engine/base/contains.h"
#include "engine/rule/condition_functions.h"
#include "engine/rule/contract.h"
#include "engine/rule/expr_ast.h"

namespace ferrule {
namespace {

using Kind = Expr::Kind;
using Binary = Expr::Binary;
using Part = std::shared_ptr<const Expr>;

constexpr std::array<std::string_view, 5> kOfTarget{"has_kernel", "has_form", "has_library_kernel",
                                                    "isa", "accepts_strided"};

class Weaker {
 public:
  explicit Weaker(const Rule& rule) : rule_(rule) {
    for (const PatternLine& l : rule.match.lines) {
      own_.insert(l.results.begin(), l.results.end());
      each_expr(*l.expr, [&](const PatternExpr& e) {
        own_.insert({e.name, e.label});
        for (const AttrPattern& a : e.attrs) own_.insert(a.bind);
        if (e.shape)
          for (const DimPattern& d : *e.shape) own_.insert(d.symbol);
      });
    }
  }

  /// What holds at least where `e` does (`weaker`), or at most, for some answers to its questions.
  Part of(const Part& e, bool weaker) const {
    if (!asks(*e)) return e;
    switch (e->kind) {
      case Kind::name:
        if (const Part value = let(e->name)) return of(value, weaker);
        break;
      case Kind::negation:
        return with(*e, {of(e->args[0], !weaker)});
      case Kind::binary:
        if (e->binary == Binary::implies)
          return with(*e, {of(e->args[0], !weaker), of(e->args[1], weaker)});
        if (e->binary == Binary::either || e->binary == Binary::both)
          return with(*e, {of(e->args[0], weaker), of(e->args[1], weaker)});
        break;
      case Kind::quantifier:
        if (e->quantifier <= Expr::Quantifier::any && !asks(*e->args[0]))
          return with(*e, {e->args[0], of(e->args[1], weaker)});
        break;
      case Kind::conditional:
        return conditional(*e, weaker);
      default:
        break;
    }
    auto out = std::make_shared<Expr>();
    out->literal = Val{weaker};
    return out;
  }

 private:
  static Part with(const Expr& e, std::vector<Part> args) {
    auto out = std::make_shared<Expr>(e);
    out->args = std::move(args);
    return out;
  }
  static Part joined(Binary how, Part a, Part b) {
    auto out = std::make_shared<Expr>();
    out->kind = Kind::binary, out->binary = how;
    out->args = {std::move(a), std::move(b)};
    return out;
  }
  static Part negated(Part a) {
    auto out = std::make_shared<Expr>();
    out->kind = Kind::negation;
    out->args = {std::move(a)};
    return out;
  }
  /// One of two: either where the question is open.
  Part conditional(const Expr& e, bool weaker) const {
    const Part a = of(e.args[1], weaker), b = of(e.args[2], weaker);
    const Part most = of(e.args[0], true), least = of(e.args[0], false);
    if (weaker)
      return joined(Binary::either, joined(Binary::both, most, a),
                    joined(Binary::both, negated(least), b));
    return joined(Binary::both, joined(Binary::either, negated(most), a),
                  joined(Binary::either, least, b));
  }

  Part let(std::string_view name) const {
    for (const auto& [key, value] : rule_.let)
      if (key == name) return value;
    return nullptr;
  }
  bool asks(const Expr& e) const { return of_target(e) || names(e) == 1; }
  bool of_target(const Expr& e) const {
    if (e.kind == Kind::call && contains(kOfTarget, e.name)) return true;
    if (e.kind == Kind::name) {
      const Part value = let(e.name);
      return value ? asks(*value) : is_fact(e.name) && !own_.contains(e.name);
    }
    return std::ranges::any_of(e.args, [&](const Part& a) { return of_target(*a); });
  }
  /// How often it asks for a name; twice: whether two are the same.
  static int names(const Expr& e) {
    int out = e.kind == Kind::call && e.name == "name";
    for (const Part& a : e.args) out += names(*a);
    return out;
  }

  const Rule& rule_;
  std::set<std::string, std::less<>> own_;  ///< names of the pattern, which hide the target's
};

void weaken(std::vector<Condition>& where, const Weaker& weaker) {
  for (Condition& c : where)
    if (c.expr) c.expr = weaker.of(c.expr, true);
}

}  // namespace

void ask_any_target(Rule& rule) {
  const Weaker weaker(rule);
  weaken(rule.where, weaker);
  if (!rule.kernel) return;
  auto any = std::make_shared<Contract>(*rule.kernel);
  weaken(any->conditions, weaker);
  rule.kernel = std::move(any);
}

}  // namespace ferrule
