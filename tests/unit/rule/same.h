// Whether two patterns, or two rules, say the same, wherever they stand: what is printed and loaded
// again must.
#pragma once
#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/rule/rule.h"

namespace ferrule {

inline bool same(const PatternExpr& a, const PatternExpr& b) {
  auto attr = [](const AttrPattern& x, const AttrPattern& y) {
    if (x.name != y.name || x.kind != y.kind || x.bind != y.bind) return false;
    if (x.kind == AttrPattern::Kind::expression)
      return to_text(*x.expression) == to_text(*y.expression);
    return x.kind != AttrPattern::Kind::literal ||
           (x.literal.index() == y.literal.index() && same_attr(x.literal, y.literal));
  };
  auto dim = [](const DimPattern& x, const DimPattern& y) {
    return x.kind == y.kind && x.symbol == y.symbol && x.constant == y.constant;
  };
  auto list = [](const auto& x, const auto& y, auto equal) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), equal);
  };
  bool numbers = a.number == b.number || (std::isnan(a.number) && std::isnan(b.number));
  bool plain = a.kind == b.kind && a.name == b.name && a.constant == b.constant &&
               a.optional == b.optional && a.variadic == b.variadic &&
               a.shape.has_value() == b.shape.has_value() && numbers && a.near == b.near &&
               a.rtol == b.rtol && a.label == b.label && a.ops == b.ops && a.classes == b.classes &&
               a.any_attrs == b.any_attrs && a.copy_attrs == b.copy_attrs &&
               a.results == b.results && !a.expression == !b.expression;
  if (!plain) return false;
  if (a.shape && !list(*a.shape, *b.shape, dim)) return false;
  if (a.expression && to_text(*a.expression) != to_text(*b.expression)) return false;
  return list(a.attrs, b.attrs, attr) &&
         list(a.args, b.args, [](auto& x, auto& y) { return same(*x, *y); }) &&
         list(a.choices, b.choices,
              [](auto& x, auto& y) { return x.first == y.first && same(*x.second, *y.second); });
}

inline bool same(const Pattern& a, const Pattern& b) {
  auto line = [](const PatternLine& x, const PatternLine& y) {
    return x.results == y.results && same(*x.expr, *y.expr);
  };
  return a.outputs == b.outputs &&
         std::equal(a.lines.begin(), a.lines.end(), b.lines.begin(), b.lines.end(), line);
}

/// In everything but places, file and text.
inline bool same(const Rule& a, const Rule& b) {
  auto condition = [](const Condition& x, const Condition& y) {
    return x.id == y.id && x.cls == y.cls && x.text == y.text && x.why == y.why && x.hint == y.hint;
  };
  auto conditions = [&](const std::vector<Condition>& x, const std::vector<Condition>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), condition);
  };
  auto written = [](const Param& p) { return std::tuple(p.name, p.text, p.quoted); };
  auto let = [](const auto& x, const auto& y) {
    return x.first == y.first && to_text(*x.second) == to_text(*y.second);
  };
  auto test = [](const RuleTest& x, const RuleTest& y) {
    return x.name == y.name && x.model == y.model && x.of == y.of && x.edits == y.edits &&
           x.fires == y.fires && x.declined_by == y.declined_by && x.target == y.target &&
           x.profile == y.profile && x.expect == y.expect;
  };
  auto role = [](const RoleSpec& x, const RoleSpec& y) {
    return x.role == y.role && x.text == y.text;
  };
  auto merge = [](const MergeSpec& x, const MergeSpec& y) {
    auto key = [](const WrittenExpr& e) { return e.text; };
    auto weight = [](const auto& w) { return std::pair(w.first, w.second.text); };
    return x.over == y.over && std::ranges::equal(x.keys, y.keys, {}, key, key) && x.min == y.min &&
           x.max == y.max && x.axis.text == y.axis.text &&
           std::ranges::equal(x.weights, y.weights, {}, weight, weight) && x.fill == y.fill;
  };
  auto place = [](const PlaceSpec& p) { return std::tie(p.parts, p.whole, p.axis); };
  const RegionSpec &s = a.region, &t = b.region;
  bool region = s.ops == t.ops && s.classes == t.classes && s.around_ops == t.around_ops &&
                s.around_classes == t.around_classes && s.kept_ops == t.kept_ops &&
                s.kept_classes == t.kept_classes && s.named == t.named && s.max_ops == t.max_ops &&
                s.max_inputs == t.max_inputs && s.min_ops == t.min_ops &&
                s.multi_output == t.multi_output && conditions(s.where, t.where);
  // Firing cases are listed before holding ones when printed.
  auto tests = [](const Rule& r) {
    std::vector<RuleTest> all = r.tests;
    std::stable_partition(all.begin(), all.end(), [](const RuleTest& x) { return x.fires; });
    return all;
  };
  auto ta = tests(a), tb = tests(b);
  return a.id == b.id && a.doc == b.doc && a.source == b.source && a.kind == b.kind &&
         a.phase == b.phase && a.enabled == b.enabled && a.experimental == b.experimental &&
         a.once == b.once && a.numerics == b.numerics &&
         a.may_raise_kernels == b.may_raise_kernels && a.before == b.before && a.after == b.after &&
         a.types == b.types && same(a.match, b.match) &&
         std::ranges::equal(a.parameters, b.parameters, {}, written, written) &&
         conditions(a.where, b.where) &&
         std::equal(a.let.begin(), a.let.end(), b.let.begin(), b.let.end(), let) &&
         a.shared == b.shared && same(a.rewrite, b.rewrite) && a.contract == b.contract &&
         a.version == b.version && std::ranges::equal(a.roles, b.roles, role) &&
         a.anchor == b.anchor && region && merge(a.merge, b.merge) &&
         place(a.place) == place(b.place) && a.name == b.name &&
         std::equal(ta.begin(), ta.end(), tb.begin(), tb.end(), test);
}

}  // namespace ferrule
