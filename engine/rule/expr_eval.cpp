// Evaluation of conditions: total, without side effects, three-valued (Kleene). A missing fact
// travels up as Val::Unknown that names it; `and` and `or` need only the operands that decide.
#include <cmath>
#include <map>

#include "engine/rule/condition_functions.h"
#include "engine/rule/expr.h"
#include "engine/rule/expr_ast.h"
#include "engine/rule/shape_pattern.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

using ExprKind = Expr::Kind;
using Binary = Expr::Binary;

/// Sub-expressions evaluated for one condition, and elements of a list: what a rule can sensibly
/// need is far below.
constexpr int64_t kMaxSteps = 200'000;
constexpr size_t kMaxElements = 1 << 16;

struct Scope {
  const EvalContext& ctx;
  std::vector<std::pair<std::string_view, Val>> locals;
  int64_t steps = 0;
  bool exhausted() const { return steps > kMaxSteps; }
};
Val too_long() { return unknown(fmt::format("an answer within {} steps", kMaxSteps)); }

Val eval(const Expr& e, Scope& s);

template <class Map>
auto find(const Map& m, std::string_view name) {
  auto it = m.find(name);
  return it == m.end() ? nullptr : &it->second;
}

template <class Id>
Val id_list(const std::vector<Id>& ids) {
  Val::List l;
  for (Id id : ids) l.push_back(id ? Val{id} : Val{Val::Absent{}});
  return make_list(std::move(l));
}

Val lookup(std::string_view name, const Scope& s) {
  for (auto it = s.locals.rbegin(); it != s.locals.rend(); ++it)
    if (it->first == name) return it->second;
  for (const auto& [n, v] : s.ctx.let)
    if (n == name) return v;
  const Bindings& b = s.ctx.bindings;
  if (auto v = find(b.values, name)) return *v ? Val{*v} : Val{Val::Absent{}};
  if (auto n = find(b.nodes, name)) return *n ? Val{*n} : Val{Val::Absent{}};
  if (auto l = find(b.value_lists, name)) return id_list(*l);
  if (auto l = find(b.node_lists, name)) return id_list(*l);
  if (auto a = find(b.attrs, name)) return from_attr(*a);
  if (auto d = find(b.dims, name)) return make_dim(*d);
  if (auto w = word(name)) return *w;
  if (is_fact(name)) return fact(name, s.ctx);
  return Val{Val::Absent{}};  // bound on another alternative only
}

std::string kind_of(const Val& v) {
  static constexpr std::string_view kNames[] = {
      "an unknown", "an absent operand", "a truth value", "a number", "a number", "a string",
      "a size",     "an element type",   "a tensor",      "a value",  "a node",   "a list"};
  return std::string(kNames[v.v.index()]);
}

// --- arithmetic

Val int_arithmetic(Binary op, int64_t a, int64_t b) {
  int64_t r = 0;
  bool overflow = false;
  switch (op) {
    case Binary::add:
      overflow = __builtin_add_overflow(a, b, &r);
      break;
    case Binary::sub:
      overflow = __builtin_sub_overflow(a, b, &r);
      break;
    case Binary::mul:
      overflow = __builtin_mul_overflow(a, b, &r);
      break;
    default:
      if (b == 0) return unknown("a division by zero");
      if (b == -1) {
        if (op == Binary::mod) return Val{int64_t{0}};
        overflow = __builtin_sub_overflow(int64_t{0}, a, &r);
        break;
      }
      if (op == Binary::div && a % b != 0)
        return Val{static_cast<double>(a) / static_cast<double>(b)};
      r = a / b;
      if (a % b != 0 && (a < 0) != (b < 0)) --r;  // floor
      if (op == Binary::mod) r = a - r * b;
  }
  return overflow ? unknown("an integer overflow") : Val{r};
}

Val dim_arithmetic(Binary op, const Dim& a, const Dim& b) {
  switch (op) {
    case Binary::add:
      return make_dim(a + b);
    case Binary::sub:
      return make_dim(a - b);
    case Binary::mul:
      return make_dim(a * b);
    case Binary::floordiv:
      if (b.constant() == 0) return unknown("a division by zero");
      return make_dim(floordiv(a, b));
    case Binary::mod: {
      if (b.constant() == 0) return unknown("a division by zero");
      return make_dim(a - floordiv(a, b) * b);
    }
    default: {
      Dim q = floordiv(a, b);  // exact when it multiplies back
      if (q * b == a) return make_dim(q);
      return unknown(fmt::format("{} / {}", a.str(), b.str()));
    }
  }
}

Val float_arithmetic(Binary op, double a, double b) {
  switch (op) {
    case Binary::add:
      return Val{a + b};
    case Binary::sub:
      return Val{a - b};
    case Binary::mul:
      return Val{a * b};
    case Binary::div:
      return Val{a / b};
    case Binary::floordiv:
      return Val{std::floor(a / b)};
    default:
      return Val{a - b * std::floor(a / b)};
  }
}

Val arithmetic(Binary op, const Val& a, const Val& b) {
  // Lists add up by joining and multiply by repeating.
  const Val::List *la = list_of(a), *lb = list_of(b);
  if (op == Binary::add && la && lb) {
    if (la->size() + lb->size() > kMaxElements)
      return unknown(fmt::format("a list of at most {} elements", kMaxElements));
    Val::List l = *la;
    l.insert(l.end(), lb->begin(), lb->end());
    return make_list(std::move(l));
  }
  auto da = as_dim(a), db = as_dim(b);
  if (da && db) {
    if (auto ia = da->constant())
      if (auto ib = db->constant()) return int_arithmetic(op, *ia, *ib);
    return dim_arithmetic(op, *da, *db);
  }
  auto na = as_number(a), nb = as_number(b);
  if (na && nb) return float_arithmetic(op, *na, *nb);
  return unknown(fmt::format("{} {} {}", kind_of(a), spelling(op), kind_of(b)));
}

// --- comparison

Truth negate(Truth t) { return t == Truth::unknown ? t : t == Truth::yes ? Truth::no : Truth::yes; }
Truth truth(bool b) { return b ? Truth::yes : Truth::no; }

Truth ordered(Binary op, const Val& a, const Val& b, std::string* why) {
  auto na = as_number(a), nb = as_number(b);
  if (na && nb)
    return truth(op == Binary::lt   ? *na < *nb
                 : op == Binary::le ? *na <= *nb
                 : op == Binary::gt ? *na > *nb
                                    : *na >= *nb);
  auto da = as_dim(a), db = as_dim(b);
  if (!da || !db) {
    *why = fmt::format("{} {} {}", kind_of(a), spelling(op), kind_of(b));
    return Truth::unknown;
  }
  const bool first = op == Binary::lt || op == Binary::ge;
  Truth t = first ? at_least(*da, *db) : at_least(*db, *da);
  if (op == Binary::lt || op == Binary::gt) t = negate(t);
  if (t == Truth::unknown)
    *why = fmt::format("whether {} {} {}", da->str(), spelling(op), db->str());
  return t;
}

Truth member(const EvalContext& ctx, const Val& item, const Val& list, std::string* why) {
  const Val::List* l = list_of(list);
  if (!l) {
    *why = fmt::format("{} in {}", kind_of(item), kind_of(list));
    return Truth::unknown;
  }
  Truth found = Truth::no;
  for (const Val& x : *l) {
    if (is_absent(x)) continue;
    Truth t = compare_equal(ctx, item, x, why);
    if (t == Truth::yes) return t;
    if (t == Truth::unknown) found = t;
  }
  return found;
}

Val like(const Val& a, const Val& b, const Scope& s) {
  const std::string* pattern = get<std::string>(b);
  if (!pattern) return unknown(fmt::format("~ {}", kind_of(b)));
  if (auto text = get<std::string>(a)) return Val{glob_match(*pattern, *text)};
  const Val::List* l = list_of(a);
  if (!l) return unknown(fmt::format("{} ~ a pattern", kind_of(a)));
  auto shape = parse_shape_pattern(*pattern);
  if (!shape) return unknown(fmt::format("the shape pattern '{}'", escape(*pattern)));
  Shape dims;
  for (const Val& v : *l) {
    auto d = as_dim(v);
    if (!d) return unknown("a size in the list");
    dims.push_back(*d);
  }
  auto bound = s.ctx.bindings.dims;
  return make_truth(match_shape(*shape, dims, bound),
                    fmt::format("whether {} is {}", str(dims), *pattern));
}

Val comparison(Binary op, const Val& left, const Val& right, Scope& s) {
  if (op == Binary::like) return like(left, right, s);
  std::string why;
  Truth t{};
  if (op == Binary::in || op == Binary::not_in) {
    t = member(s.ctx, left, right, &why);
    return make_truth(op == Binary::in ? t : negate(t), why);
  }
  // A captured constant stands for its element when it meets a number.
  bool both_ids = get<ValueId>(left) && get<ValueId>(right);
  Val a = both_ids ? left : element_of(s.ctx, left),
      b = both_ids ? right : element_of(s.ctx, right);
  for (const Val* v : {&a, &b})
    if (is_unknown(*v)) return *v;
  if (op == Binary::eq || op == Binary::ne) {
    t = compare_equal(s.ctx, a, b, &why);
    return make_truth(op == Binary::eq ? t : negate(t), why);
  }
  t = ordered(op, a, b, &why);
  return make_truth(t, why);
}

// --- logic

Truth truth_of(const Val& v, std::string* why) {
  if (auto b = get<bool>(v)) return truth(*b);
  if (auto u = get<Val::Unknown>(v))
    *why = u->fact;
  else
    *why = fmt::format("a truth value, not {}", kind_of(v));
  return Truth::unknown;
}

Val logic(const Expr& e, Scope& s) {
  std::string why_a, why_b;
  Truth a = truth_of(eval(*e.args[0], s), &why_a);
  if (e.binary == Binary::implies) a = negate(a);
  Truth decides = e.binary == Binary::both ? Truth::no : Truth::yes;
  if (a == decides) return Val{a == Truth::yes};
  Truth b = truth_of(eval(*e.args[1], s), &why_b);
  if (b == decides) return Val{b == Truth::yes};
  if (a == Truth::unknown) return unknown(why_a);
  return make_truth(b, why_b);
}

Val quantified(const Expr& e, Scope& s) {
  Val list = eval(*e.args[0], s);
  if (is_unknown(list)) return list;
  const Val::List* items = list_of(list);
  if (!items) return unknown(fmt::format("a list, not {}", kind_of(list)));
  Val sum{int64_t{0}};
  int64_t count = 0;
  const bool map = e.quantifier == Expr::Quantifier::map,
             filter = e.quantifier == Expr::Quantifier::filter;
  Val::List made;
  Truth result = truth(e.quantifier == Expr::Quantifier::all);
  std::string why;
  for (const Val& item : *items) {
    s.locals.emplace_back(e.name, item);
    Val v = eval(*e.args[1], s);
    s.locals.pop_back();
    if (s.exhausted()) return too_long();
    if (map) {
      if (is_unknown(v)) return v;
      made.push_back(std::move(v));
      continue;
    }
    if (e.quantifier == Expr::Quantifier::sum) {
      if (is_unknown(v)) return v;
      sum = arithmetic(Binary::add, sum, v);
      continue;
    }
    std::string reason;
    Truth t = truth_of(v, &reason);
    if (t == Truth::unknown) {
      if (filter || e.quantifier == Expr::Quantifier::count) return unknown(reason);
      if (result != Truth::unknown) why = reason;
      result = Truth::unknown;
    } else if (filter) {
      if (t == Truth::yes) made.push_back(item);
    } else if (e.quantifier == Expr::Quantifier::count) {
      count += t == Truth::yes;
    } else if (t == truth(e.quantifier == Expr::Quantifier::any)) {
      return Val{t == Truth::yes};
    }
  }
  if (map || filter) return make_list(std::move(made));
  if (e.quantifier == Expr::Quantifier::sum) return sum;
  if (e.quantifier == Expr::Quantifier::count) return Val{count};
  return make_truth(result, why);
}

Val missing(const Expr& e) { return unknown(to_text(e) + " is absent"); }

Val binary(const Expr& e, Scope& s) {
  if (e.binary == Binary::both || e.binary == Binary::either || e.binary == Binary::implies)
    return logic(e, s);
  Val a = eval(*e.args[0], s);
  if (e.binary == Binary::coalesce) return is_absent(a) ? eval(*e.args[1], s) : a;
  if (is_unknown(a)) return a;
  if (is_absent(a)) return missing(*e.args[0]);
  Val b = eval(*e.args[1], s);
  if (is_unknown(b)) return b;
  if (is_absent(b)) return missing(*e.args[1]);
  if (e.binary >= Binary::add) {
    a = element_of(s.ctx, a), b = element_of(s.ctx, b);
    for (const Val* v : {&a, &b})
      if (is_unknown(*v)) return *v;
    return arithmetic(e.binary, a, b);
  }
  return comparison(e.binary, a, b, s);
}

Val call(const Expr& e, Scope& s) {
  std::vector<Val> args;
  for (const ExprPtr& a : e.args) {
    Val v = eval(*a, s);
    if (!e.function->takes_missing) {
      if (is_unknown(v)) return v;
      if (is_absent(v)) return missing(*a);
    }
    args.push_back(std::move(v));
  }
  return e.function->call(s.ctx, args);
}

Val index(const Expr& e, Scope& s) {
  Val list = eval(*e.args[0], s), at = eval(*e.args[1], s);
  for (const Val* v : {&list, &at})
    if (is_unknown(*v)) return *v;
  const Val::List* l = list_of(list);
  auto i = get<int64_t>(at);
  if (!l || !i) return unknown(fmt::format("{}[{}]", kind_of(list), kind_of(at)));
  int64_t n = std::ssize(*l), k = *i < 0 ? *i + n : *i;
  if (k < 0 || k >= n) return unknown(fmt::format("element {} of a list of {}", *i, n));
  return (*l)[k];
}

Val list_value(const Expr& e, Scope& s) {
  Val::List l;
  for (const ExprPtr& a : e.args) {
    Val v = eval(*a, s);
    if (is_unknown(v)) return v;
    l.push_back(std::move(v));
  }
  return make_list(std::move(l));
}

Val eval(const Expr& e, Scope& s) {
  std::string why;
  if (++s.steps > kMaxSteps) return too_long();
  switch (e.kind) {
    case ExprKind::literal:
      return e.literal;
    case ExprKind::name:
      return lookup(e.name, s);
    case ExprKind::list:
      return list_value(e, s);
    case ExprKind::call:
      return call(e, s);
    case ExprKind::negate: {
      Val v = eval(*e.args[0], s);
      if (is_unknown(v)) return v;
      if (is_absent(v)) return missing(*e.args[0]);
      v = element_of(s.ctx, v);
      return is_unknown(v) ? v : arithmetic(Binary::sub, Val{int64_t{0}}, v);
    }
    case ExprKind::negation: {
      const Truth t = truth_of(eval(*e.args[0], s), &why);
      return make_truth(negate(t), why);
    }
    case ExprKind::binary:
      return binary(e, s);
    case ExprKind::quantifier:
      return quantified(e, s);
    case ExprKind::index:
      return index(e, s);
    case ExprKind::conditional: {
      Truth t = truth_of(eval(*e.args[0], s), &why);
      return t == Truth::unknown ? unknown(why) : eval(*e.args[t == Truth::yes ? 1 : 2], s);
    }
  }
  return unknown("an expression");
}

// --- what decided

class Explainer {
 public:
  Explainer(Scope& s) : s_(s) {}

  /// Adds the sub-values because of which `e` is `t`.
  void explain(const Expr& e, Truth t) {
    if (e.kind == ExprKind::negation) return explain(*e.args[0], negate(t));
    if (e.kind == ExprKind::quantifier && e.quantifier <= Expr::Quantifier::any)
      return elements(e, t);
    if (e.kind == ExprKind::conditional) {
      Truth c = of(*e.args[0]);
      explain(*e.args[0], c);
      if (c != Truth::unknown) explain(*e.args[c == Truth::yes ? 1 : 2], t);
      return;
    }
    if (e.kind == ExprKind::binary && e.binary <= Binary::both) {
      bool flip = e.binary == Binary::implies;
      for (size_t k = 0; k < 2; ++k) {
        Truth v = of(*e.args[k]);
        if ((flip && k == 0 ? negate(v) : v) == t) explain(*e.args[k], v);
      }
      return;
    }
    if (e.kind == ExprKind::binary) {
      for (const ExprPtr& a : e.args) value(*a);
      return;
    }
    if (e.kind == ExprKind::call)
      for (const ExprPtr& a : e.args) value(*a);
    value(e);
  }
  std::string text() const { return text_; }

 private:
  Truth of(const Expr& e) {
    std::string why;
    return truth_of(eval(e, s_), &why);
  }
  void elements(const Expr& e, Truth t) {
    Val list = eval(*e.args[0], s_);
    const Val::List* items = list_of(list);
    if (!items) return;
    for (const Val& item : *items) {
      s_.locals.emplace_back(e.name, item);
      if (of(*e.args[1]) == t) {
        add(e.name, item);
        explain(*e.args[1], t);
        s_.locals.pop_back();
        return;  // the first one is enough
      }
      s_.locals.pop_back();
    }
  }
  void value(const Expr& e) {
    if (e.kind == ExprKind::literal || (e.kind == ExprKind::name && word(e.name))) return;
    if (e.kind == ExprKind::list) {
      for (const ExprPtr& a : e.args) value(*a);
      return;
    }
    Val v = eval(e, s_);
    // A bare operand's name says nothing; its type does.
    if (auto id = get<ValueId>(v)) {
      const Value& x = s_.ctx.graph.value(*id);
      return add_text(to_text(e), fmt::format("{} {}", quoted(s_.ctx, *id), str(x.type)));
    }
    add(to_text(e), v);
  }
  void add(const std::string& what, const Val& v) { add_text(what, str(v, s_.ctx.graph)); }
  void add_text(const std::string& what, const std::string& v) {
    std::string line = what + " = " + v;
    if (!seen_.insert(line).second) return;
    text_ += (text_.empty() ? "" : ", ") + line;
  }
  Scope& s_;
  std::string text_;
  std::set<std::string> seen_;
};

std::string hole_text(const Val& v, const Graph& g, bool in_call) {
  // Nodes of a list are joined as layer names are: "Conv_0 + Relu_1", "fusedPointwiseNode(Add_0,
  // Relu_1)".
  const Val::List* l = list_of(v);
  if (!l || l->empty()) return str(v, g);
  std::string s;
  if (get<ValueId>(l->front())) {  // "r, s and t"
    for (size_t k = 0; k < l->size(); ++k)
      s += (k == 0 ? "" : k + 1 == l->size() ? " and " : ", ") + str((*l)[k], g);
    return s;
  }
  if (!get<NodeId>(l->front())) return str(v, g);
  for (const Val& n : *l) s += (s.empty() ? "" : in_call ? ", " : " + ") + str(n, g);
  return s;
}

}  // namespace

size_t hole_end(std::string_view text, size_t open) {
  int depth = 0;
  char quote = 0;
  for (size_t i = open; i < text.size(); ++i) {
    char c = text[i];
    if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i;
    }
  }
  return std::string_view::npos;
}

Truth compare_equal(const EvalContext& ctx, const Val& a, const Val& b, std::string* why) {
  auto na = as_number(a), nb = as_number(b);
  if (auto ia = get<int64_t>(a))
    if (auto ib = get<int64_t>(b)) return truth(*ia == *ib);
  if (na && nb) return truth(*na == *nb);
  auto da = as_dim(a), db = as_dim(b);
  if (da && db) {
    Truth t = equal(*da, *db);
    if (t == Truth::unknown) *why = fmt::format("whether {} == {}", da->str(), db->str());
    return t;
  }
  const Val::List *la = list_of(a), *lb = list_of(b);
  if (la && lb) {
    if (la->size() != lb->size()) return Truth::no;
    Truth all = Truth::yes;
    for (size_t k = 0; k < la->size(); ++k) {
      Truth t = compare_equal(ctx, (*la)[k], (*lb)[k], why);
      if (t == Truth::no) return t;
      if (t == Truth::unknown) all = t;
    }
    return all;
  }
  if (a.v.index() == b.v.index()) {
    if (auto x = get<bool>(a)) return truth(*x == std::get<bool>(b.v));
    if (auto x = get<std::string>(a)) return truth(*x == std::get<std::string>(b.v));
    if (auto x = get<DType>(a)) return truth(*x == std::get<DType>(b.v));
    if (auto x = get<ValueId>(a)) return truth(*x == std::get<ValueId>(b.v));
    if (auto x = get<NodeId>(a)) return truth(*x == std::get<NodeId>(b.v));
    if (auto x = get<Tensor>(a)) return truth(x->identical(std::get<Tensor>(b.v)));
    if (is_absent(a)) return Truth::yes;
  }
  *why = fmt::format("{} == {}", kind_of(a), kind_of(b));
  return Truth::unknown;
}

Val element(const Tensor& t, int64_t i) {
  if (t.dtype() == DType::string) return Val{t.strings()[static_cast<size_t>(i)]};
  if (t.dtype() == DType::boolean) return Val{t.at_i64(i) != 0};
  if (is_float(t.dtype())) return Val{t.at_f64(i)};
  return t.beyond_i64(i) ? unknown("an integer below 2^63") : Val{t.at_i64(i)};
}

Val element_of(const EvalContext& ctx, const Val& v) {
  auto id = get<ValueId>(v);
  if (!id) return v;
  const Tensor* t = ctx.graph.constant(*id);
  if (!t) return unknown(fmt::format("the value of {}, which is not a constant", quoted(ctx, *id)));
  if (t->numel() == 1) return element(*t, 0);
  if (t->dtype() == DType::string) return unknown("one string");
  return unknown(
      fmt::format("one number in place of {}, which has {}", quoted(ctx, *id), t->numel()));
}

std::string str(const Val& v, const Graph& g) {
  auto id_name = [&](const std::string& n) { return escape(n, 120); };
  if (is_unknown(v)) return "?";
  if (is_absent(v)) return "absent";
  if (auto b = get<bool>(v)) return *b ? "true" : "false";
  if (auto i = get<int64_t>(v)) return std::to_string(*i);
  if (auto d = get<double>(v))  // a number of f32 as it was written: 1.3, not 1.29999995
    return static_cast<float>(*d) == *d ? fmt::format("{}", static_cast<float>(*d))
                                        : fmt::format("{:.9g}", *d);
  if (auto s = get<std::string>(v)) return escape(*s);
  if (auto d = get<Dim>(v)) return d->str();
  if (auto t = get<DType>(v)) return std::string(name(*t));
  if (auto id = get<ValueId>(v))
    return *id && id->index < g.value_slots() ? id_name(g.value(*id).name) : "absent";
  if (auto id = get<NodeId>(v))
    return *id && id->index < g.node_slots() ? id_name(g.node(*id).name) : "absent";
  if (auto t = get<Tensor>(v)) {
    Shape dims(t->dims().begin(), t->dims().end());
    return std::string(name(t->dtype())) + str(dims);
  }
  std::string s;
  constexpr size_t kMost = 16;
  const Val::List& l = *list_of(v);
  for (size_t k = 0; k < std::min(l.size(), kMost); ++k) s += (k ? ", " : "") + str(l[k], g);
  return "[" + s + (l.size() > kMost ? ", …]" : "]");
}

Val evaluate(const Expr& e, const EvalContext& ctx) {
  Scope s{ctx, {}};
  return eval(e, s);
}

Truth evaluate_condition(const Expr& e, const EvalContext& ctx, std::string* detail) {
  Scope s{ctx, {}};
  std::string why;
  Truth t = truth_of(eval(e, s), &why);
  if (!detail) return t;
  if (t == Truth::unknown) {
    *detail = why;
    return t;
  }
  Explainer x(s);
  x.explain(e, t);
  *detail = x.text();
  return t;
}

namespace {

/// A hole's expression, null where it is none. Groups are named after a few templates again and
/// again.
ExprPtr hole_expression(std::string_view text) {
  constexpr size_t kMost = 256;
  thread_local std::map<std::string, ExprPtr, std::less<>> known;
  if (auto it = known.find(text); it != known.end()) return it->second;
  if (known.size() >= kMost) known.clear();
  auto e = parse_expression(text, Place{});
  return known.emplace(text, e ? *e : nullptr).first->second;
}

}  // namespace

std::string interpolate(std::string_view text, const EvalContext& ctx) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{') {
      out += text[i];
      continue;
    }
    size_t end = hole_end(text, i);
    if (end == std::string_view::npos) return out + std::string(text.substr(i));
    const ExprPtr e = hole_expression(text.substr(i + 1, end - i - 1));
    Val v = e ? evaluate(*e, ctx) : unknown("");
    const Val::List* l = list_of(v);
    bool nothing = is_absent(v) || (l && l->empty());
    // "{conv} + {act}" without an act is "Conv_0", "{q} and {dq}" without a dq is "q".
    if (nothing && out.ends_with(" + "))
      out.resize(out.size() - 3);
    else if (nothing && out.ends_with(" and "))
      out.resize(out.size() - 5);
    else if (is_absent(v) && text.substr(end + 1, 5) == " and ")
      end += 5;
    else if (l && l->empty() && text.substr(i, 7) == "{shape(")
      out += "[] (a scalar)";
    else
      out += hole_text(v, ctx.graph, out.ends_with('('));
    i = end;
  }
  return out;
}

}  // namespace ferrule
