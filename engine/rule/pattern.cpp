#include "engine/rule/pattern.h"

#include <cmath>

#include "engine/base/join.h"
#include "engine/rule/expr.h"

namespace ferrule {
namespace {

using Kind = PatternExpr::Kind;

// --- printing

std::string real_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  std::string s = fmt::format("{}", d);
  return s.find_first_of(".e") == s.npos ? s + ".0" : s;
}
std::string number_text(double d) {
  return std::isfinite(d) && d == std::trunc(d) && std::abs(d) < 1e15 &&
                 !(d == 0 && std::signbit(d))
             ? fmt::format("{}", static_cast<int64_t>(d))
             : real_text(d);
}
std::string string_text(const std::string& s) {
  return s.find('"') == s.npos ? '"' + s + '"' : "'" + s + "'";
}
std::string attr_text(const Attr& a) {
  auto list = [](const auto& items, auto text) { return "[" + joined(items, text) + "]"; };
  if (auto i = std::get_if<int64_t>(&a)) return std::to_string(*i);
  if (auto d = std::get_if<double>(&a)) return real_text(*d);
  if (auto s = std::get_if<std::string>(&a)) return string_text(*s);
  if (auto l = std::get_if<std::vector<int64_t>>(&a))
    return list(*l, [](int64_t i) { return std::to_string(i); });
  if (auto l = std::get_if<std::vector<double>>(&a)) return list(*l, real_text);
  if (auto l = std::get_if<std::vector<std::string>>(&a)) return list(*l, string_text);
  return "?";
}

std::string ops_text(const PatternExpr& e) {
  std::string s;
  for (const std::string& op : e.ops)
    s += (s.empty() ? "" : "|") + (op.starts_with("group.") ? "@" + op : op);
  for (const std::string& c : e.classes) s += (s.empty() ? "@" : "|@") + c;
  return e.ops.size() + e.classes.size() == 1 ? s : "{" + s + "}";
}

std::string call_text(const PatternExpr& e, bool replacement) {
  std::string s = ops_text(e) + (e.optional ? "?" : "");
  std::string attrs;
  auto add = [&](const std::string& a) { attrs += (attrs.empty() ? "" : ", ") + a; };
  if (!e.copy_attrs.empty()) add("..." + e.copy_attrs);
  for (const AttrPattern& a : e.attrs) {
    switch (a.kind) {
      case AttrPattern::Kind::literal:
        add(a.name + "=" + attr_text(a.literal));
        break;
      case AttrPattern::Kind::bind:
        add(a.name + "=$" + a.bind);
        break;
      case AttrPattern::Kind::expression:
        add(a.name + "={" + to_text(*a.expression) + "}");
        break;
    }
  }
  if (e.any_attrs) add("...");
  if (!attrs.empty()) s += "<" + attrs + ">";
  std::string args = joined(e.args, [&](const auto& a) { return to_text(*a, replacement); });
  // A last input that is left out needs its comma, or it would not be read back.
  if (!e.args.empty() && e.args.back()->kind == Kind::reference && e.args.back()->name.empty())
    args += ",";
  s += "(" + args + ")";
  if (e.shape) s += to_text(*e.shape);
  return s;
}

// --- what is bound

/// Bottom up, each line once: lines may be shared by many alternatives.
class Collector {
 public:
  explicit Collector(const Pattern& p) : p_(p) {}
  BoundNames run() { return of_line(p_.lines.back()); }

 private:
  static void add(BoundNames& to, const std::string& name, Bound b) {
    if (name.empty() || name == "_") return;
    auto [it, fresh] = to.emplace(name, b);
    if (!fresh && !b.maybe_absent) it->second.maybe_absent = false;
  }
  static void merge(BoundNames& to, const BoundNames& from, bool maybe) {
    for (const auto& [n, b] : from) {
      Bound c = b;
      c.maybe_absent = c.maybe_absent || maybe;
      add(to, n, c);
    }
  }

  const BoundNames& of_line(const PatternLine& l) {
    if (auto it = lines_.find(&l); it != lines_.end()) return it->second;
    BoundNames out = of(*l.expr);
    for (const std::string& r : l.results) {
      bool list = r.ends_with("...");
      add(out, list ? r.substr(0, r.size() - 3) : r,
          Bound{list ? Bound::Kind::value_list : Bound::Kind::value, true, false, l.place});
    }
    return lines_.emplace(&l, std::move(out)).first->second;
  }

  BoundNames of(const PatternExpr& e) {
    BoundNames out;
    bool gone = e.optional;
    if (e.kind == Kind::reference) {
      const PatternLine* l = p_.line_of(e.name);
      l = l ? l : p_.line_of(e.name + "...");
      if (l) return of_line(*l);
      add(out, e.name,
          Bound{e.variadic ? Bound::Kind::value_list : Bound::Kind::value, false, gone, e.place});
    }
    if (e.kind == Kind::call) {
      add(out, e.label, Bound{Bound::Kind::node, true, gone, e.place});
      for (const AttrPattern& a : e.attrs)
        if (a.kind == AttrPattern::Kind::bind)
          add(out, a.bind, Bound{Bound::Kind::attr, false, gone, a.place});
      // What an optional node passes on is there without it, too.
      for (size_t k = 0; k < e.args.size(); ++k) merge(out, of(*e.args[k]), k > 0 && gone);
    }
    if (e.kind == Kind::alternatives) alternatives(e, out);
    if (e.shape)
      for (const DimPattern& d : *e.shape)
        if (d.kind == DimPattern::Kind::symbol)
          add(out, d.symbol, Bound{Bound::Kind::dim, false, gone, e.place});
    return out;
  }

  /// What every alternative surely binds is bound; the rest may be absent.
  void alternatives(const PatternExpr& e, BoundNames& out) {
    std::map<std::string, size_t> sure;
    for (const auto& [tag, choice] : e.choices) {
      BoundNames mine = of(*choice);
      merge(out, mine, true);
      if (!tag.empty()) add(out, "#" + tag, Bound{Bound::Kind::tag, false, true, e.place});
      for (const auto& [n, b] : mine) sure[n] += !b.maybe_absent;
    }
    for (const auto& [n, times] : sure)
      if (times == e.choices.size()) out.find(n)->second.maybe_absent = false;
  }

  const Pattern& p_;
  std::map<const PatternLine*, BoundNames> lines_;
};

}  // namespace

const PatternLine* Pattern::line_of(const std::string& result) const {
  for (const PatternLine& l : lines)
    for (const std::string& r : l.results)
      if (!r.empty() && r == result) return &l;
  return nullptr;
}

std::string to_text(const PatternExpr& e, bool replacement) {
  switch (e.kind) {
    case Kind::reference: {
      std::string s = e.name;
      if (e.optional) s += "?";
      if (e.constant) s += "!";
      if (e.variadic) s += "...";
      return e.shape ? s + to_text(*e.shape) : s;
    }
    case Kind::number: {
      std::string s = (e.near ? "~" : "") + number_text(e.number);
      return e.near && e.rtol != PatternExpr().rtol ? s + "(" + number_text(e.rtol) + ")" : s;
    }
    case Kind::expression:
      return "{" + to_text(*e.expression) + "}";
    case Kind::call:
      return (e.label.empty() ? "" : "[" + e.label + "] ") + call_text(e, replacement);
    case Kind::alternatives:
      break;
  }
  std::string s;
  for (const auto& [tag, choice] : e.choices) {
    if (!s.empty()) s += replacement ? " ?? " : " | ";
    s += (tag.empty() ? "" : "#" + tag + " ") + to_text(*choice, replacement);
  }
  return "(" + s + ")";
}

std::string results_text(const PatternLine& l) {
  return joined(l.results, [](const std::string& r) { return r.empty() ? "_" : r; });
}

std::string to_text(const Pattern& p, bool replacement) {
  std::string s;
  for (const PatternLine& l : p.lines) {
    bool labelled = l.expr->kind == Kind::call && !l.expr->label.empty();
    s += (labelled ? "[" + l.expr->label + "] " : "") + results_text(l) + " = ";
    s += (labelled ? call_text(*l.expr, replacement) : to_text(*l.expr, replacement)) + "\n";
  }
  return s;
}

std::string_view name(Bound::Kind k) {
  static constexpr std::string_view kNames[] = {"value",     "node", "list", "list",
                                                "attribute", "size", "tag"};
  return kNames[static_cast<size_t>(k)];
}

BoundNames bound_names(const Pattern& p) {
  return p.lines.empty() ? BoundNames{} : Collector(p).run();
}

}  // namespace ferrule
