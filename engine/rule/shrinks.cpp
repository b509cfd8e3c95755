#include "engine/rule/shrinks.h"

#include <algorithm>

#include "engine/rule/expr_ast.h"

namespace ferrule {
namespace {

using Kind = PatternExpr::Kind;

/// What a tree is made of. Values from outside are leaves of unknown size: each counts by itself.
struct Size {
  int calls = 0, constants = 0;
  std::map<std::string, int> values;

  void add(const Size& o) {
    calls += o.calls;
    constants += o.constants;
    for (const auto& [name, n] : o.values) values[name] += n;
  }
};

/// The least or the most of two sizes, in every part.
Size bound(const Size& a, const Size& b, bool least) {
  auto pick = [&](int x, int y) { return least ? std::min(x, y) : std::max(x, y); };
  Size out{pick(a.calls, b.calls), pick(a.constants, b.constants), {}};
  for (const Size* s : {&a, &b})
    for (const auto& [name, n] : s->values) {
      auto in = [&](const Size& x) { return x.values.contains(name) ? x.values.at(name) : 0; };
      out.values[name] = pick(in(a), in(b));
    }
  return out;
}

class Measure {
 public:
  explicit Measure(const Rule& r) : r_(r) {
    for (const PatternLine& l : r.match.lines) leaves(*l.expr);
  }

  bool shrinks() {
    // Results side by side share what they read: their trees say little.
    if (r_.match.outputs.size() > 1 || r_.rewrite.outputs.size() > 1) return false;
    const Size before = of(*r_.match.root().expr, true, false),
               after = of(*r_.rewrite.root().expr, false, true);
    if (unclear_) return false;
    for (const auto& [name, n] : after.values)
      if (auto it = before.values.find(name); it == before.values.end() || n > it->second)
        return false;
    return std::pair(after.calls, after.constants) < std::pair(before.calls, before.constants);
  }

 private:
  void leaves(const PatternExpr& e) {
    if (e.kind == Kind::reference && !r_.match.line_of(e.name)) constant_[e.name] |= e.constant;
    for (const PatternExprPtr& a : e.args) leaves(*a);
    for (const auto& [_, c] : e.choices) leaves(*c);
  }

  /// `least`: of all that the pattern takes; else the most that the replacement may be.
  Size of(const PatternExpr& e, bool least, bool replacement) {
    Size s;
    if (++steps_ > kSteps) unclear_ = true;
    if (unclear_) return s;
    switch (e.kind) {
      case Kind::number:
        s.constants = 1;
        return s;
      case Kind::expression:
        // A list of values is that many operands.
        for (const NameUse& u : name_uses(*e.expression))
          unclear_ |=
              u.function.empty() && (constant_.contains(u.name) || r_.match.line_of(u.name));
        s.constants = 1;
        return s;
      case Kind::reference:
        return reference(e, least, replacement);
      case Kind::alternatives:
        for (size_t k = 0; k < e.choices.size(); ++k) {
          Size one = of(*e.choices[k].second, least, replacement);
          s = k ? bound(s, one, least) : one;
        }
        return s;
      case Kind::call:
        break;
    }
    s.calls = !(least && e.optional);
    // Of an operator that may be absent, the first operand stays.
    for (size_t k = 0; k < e.args.size() && (k == 0 || !(least && e.optional)); ++k)
      s.add(of(*e.args[k], least, replacement));
    // What is computed from constants is one.
    const bool folded = replacement && !e.args.empty() && s.calls == 1 && s.values.empty();
    return folded ? Size{0, 1, {}} : s;
  }

  Size reference(const PatternExpr& e, bool least, bool replacement) {
    if (replacement)
      if (const PatternLine* l = r_.rewrite.line_of(e.name)) return of(*l->expr, least, true);
    if (const PatternLine* l = r_.match.line_of(e.name)) return of(*l->expr, least, false);
    Size s;
    if (constant_[e.name])
      s.constants = !(least && e.optional);
    else
      s.values[e.name] = 1;
    return s;
  }

  static constexpr int kSteps = 10000;
  const Rule& r_;
  std::map<std::string, bool> constant_;  // values from outside
  int steps_ = 0;
  bool unclear_ = false;
};

}  // namespace

bool shrinks(const Rule& rule) {
  return !rule.match.lines.empty() && !rule.rewrite.lines.empty() && Measure(rule).shrinks();
}

}  // namespace ferrule
