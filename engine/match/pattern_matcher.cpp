#include "engine/match/pattern_matcher.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/diagnostics.h"
#include "engine/match/facts.h"
#include "engine/match/trace.h"
#include "engine/semantics/meets.h"

namespace ferrule {

using Kind = PatternExpr::Kind;
using Fail = Matcher::Failure::Kind;

namespace {

/// "ys..." names all results of a node, from its place on.
bool names_list(std::string_view result) { return result.ends_with("..."); }
std::string_view list_name(std::string_view result) { return result.substr(0, result.size() - 3); }

}  // namespace

Matcher::Matcher(const Rule& rule, const MatchContext& ctx)
    : rule_(rule), pattern_(rule.match), ctx_(ctx), g_(ctx.graph) {
  budget_ = ctx.limits.match_steps;
}

const PatternLine* Matcher::line_of(const std::string& name) const {
  for (const PatternLine& l : pattern_.lines)
    for (const std::string& r : l.results)
      if (r == name) return &l;
  return nullptr;
}

/// The line "name... = Op(…)": all results of one node.
const PatternLine* Matcher::line_of_list(const std::string& name) const {
  for (const PatternLine& l : pattern_.lines)
    if (!l.results.empty() && names_list(l.results.back()) && list_name(l.results.back()) == name)
      return &l;
  return nullptr;
}

const ValueId* Matcher::bound(const std::string& name) const {
  for (const auto& [n, v] : values_)
    if (n == &name || *n == name) return &v;
  return nullptr;
}

bool Matcher::same_value(ValueId a, ValueId b) const {
  if (a == b) return true;
  const Tensor *x = g_.constant(a), *y = g_.constant(b);
  return x && y && x->identical(*y);
}

Matcher::Mark Matcher::mark() const {
  return {values_.size(), nodes_.size(),   lists_.size(), attrs_.size(),       dims_.size(),
          tags_.size(),   matched_.size(), goals_.size(), assignments_.size(), other_number_};
}

void Matcher::undo(const Mark& m) {
  values_.resize(m.values), nodes_.resize(m.nodes), lists_.resize(m.lists), attrs_.resize(m.attrs);
  dims_.resize(m.dims), tags_.resize(m.tags), matched_.resize(m.matched);
  goals_.resize(m.goals), assignments_.resize(m.assignments);
  other_number_ = m.other_number;
}

bool Matcher::fail(Fail kind, const PatternExpr* e, ValueId v, NodeId n, std::string_view name) {
  if (other_number_.expr) return false;  // a number was wrong before
  structural_ &= kind != Fail::rank && kind != Fail::type && kind != Fail::shape &&
                 kind != Fail::unknown_shape;
  // The furthest attempt counts; of two as far, the one that failed at the finer question.
  auto fineness = [](Fail k) {
    return k == Fail::op                              ? 0
           : k == Fail::constant || k == Fail::absent ? 1
           : k == Fail::rank                          ? 3
                                                      : 2;
  };
  int matched = static_cast<int>(matched_.size());
  if (matched > best_.matched ||
      (matched == best_.matched && fineness(kind) > fineness(best_.kind))) {
    best_ = {kind, e, v, n, name, matched};
    if (ctx_.trace) trace(false);
  }
  return false;
}

/// Hands out what was matched so far; not complete: up to the failure in best_.
void Matcher::trace(bool complete) {
  MatchTrace& t = *ctx_.trace;
  t.nodes.clear();
  for (size_t k = 0; k < matched_.size(); ++k) t.nodes.emplace_back(calls_[k], matched_[k]);
  t.failed = complete ? nullptr : best_.expr;
  t.value = complete ? ValueId{} : best_.value;
  t.node = complete ? NodeId{} : best_.node;
}

bool Matcher::run(NodeId root, const std::function<bool(Embedding&)>& accept) {
  accept_ = &accept;
  const PatternLine& last = pattern_.root();
  size_t slot = 0;
  while (slot < g_.node(root).outputs.size() && !g_.output(root, slot)) ++slot;
  ValueId v = g_.output(root, slot);
  if (!v) return fail(Fail::op, last.expr.get(), {}, root);
  Goal goal;
  goal.value = v;
  bool found = line(goal, last);
  if (ctx_.steps) *ctx_.steps += steps_;
  return found;
}

bool Matcher::solve(const Goal* g) {
  if (!g) return complete();
  if (++steps_ > budget_) gave_up_ = true;
  if (gave_up_) {
    structural_ = false;
    best_ = {Fail::gave_up, g->expr, g->value, {}, {}, static_cast<int>(matched_.size())};
    return false;
  }
  if (g->assignment) return assign(*g);
  switch (g->expr->kind) {
    case Kind::reference:
      return reference(*g);
    case Kind::call:
      return call(*g, nullptr, 0);
    case Kind::number:
      return number(*g) && solve(g->next);
    case Kind::expression:
      return fail(Fail::number, g->expr, g->value, g->parent);
    case Kind::alternatives:
      break;
  }
  for (const auto& [tag, choice] : g->expr->choices) {
    Mark m = mark();
    if (!tag.empty()) tags_.push_back(&tag);
    Goal next = *g;
    next.expr = choice.get();
    if (solve(&next)) return true;
    undo(m);
    if (gave_up_) return false;
  }
  return false;
}

// --- names

bool Matcher::bind_value(const PatternExpr& e, const std::string& name, ValueId v) {
  if (const ValueId* b = bound(name)) return same_value(*b, v) || fail(Fail::other_value, &e, v);
  values_.emplace_back(&name, v);
  return true;
}

bool Matcher::marks(const PatternExpr& e, ValueId v) {
  if (e.constant && v && !g_.constant(v)) return fail(Fail::constant, &e, v);
  return !e.shape || !v || shape(e, v);
}

bool Matcher::reference(const Goal& g) {
  const PatternExpr& e = *g.expr;
  if (e.variadic)
    return line(g, *line_of_list(e.name));  // its values are that line's: list() saw to it
  if (e.name.empty())                       // written as nothing: the input must be left out
    return g.value ? fail(Fail::extra_input, &e, g.value, g.parent) : solve(g.next);
  if (!g.value) {
    if (!e.optional) return fail(Fail::absent, &e, {}, g.parent);
    return bind_value(e, e.name, {}) && solve(g.next);
  }
  if (const ValueId* b = bound(e.name)) {
    if (!same_value(*b, g.value)) return fail(Fail::other_value, &e, g.value, g.parent);
    return marks(e, g.value) && solve(g.next);
  }
  if (!marks(e, g.value)) return false;
  if (const PatternLine* l = line_of(e.name)) return line(g, *l);
  values_.emplace_back(&e.name, g.value);
  return solve(g.next);
}

/// The value is the result of a line that was not visited before.
bool Matcher::line(const Goal& g, const PatternLine& l) {
  Goal goal = g;
  goal.expr = l.expr.get();
  if (l.results.size() != 1 || names_list(l.results[0])) {
    if (goal.expr->kind != Kind::call || goal.expr->optional)
      return fail(Fail::op, goal.expr, g.value, g_.value(g.value).producer);
    return call(goal, &l.results, 0);
  }
  if (!l.results[0].empty() && !bind_value(*goal.expr, l.results[0], g.value)) return false;
  return solve(&goal);
}

// --- nodes

bool Matcher::call(const Goal& g, const std::vector<std::string>* results, size_t) {
  const PatternExpr& e = *g.expr;
  NodeId id = g.value ? g_.value(g.value).producer : NodeId{};
  bool head = id && has_head(g_.node(id), e.ops, e.classes, ctx_.ops);
  bool first = id && (results || g_.value(g.value).producer_slot == 0);
  if (head && first) {
    Mark m = mark();
    if (matched_call(e, id, results, g.next)) return true;
    undo(m);
    if (gave_up_) return false;
  } else if (!e.optional) {
    return fail(Fail::op, &e, g.value, id);
  }
  if (!e.optional || e.args.empty()) return false;
  Goal passed = g;  // the optional node is absent and passes its first operand
  passed.expr = e.args[0].get();
  return solve(&passed);
}

bool Matcher::matched_call(const PatternExpr& e, NodeId id, const std::vector<std::string>* results,
                           const Goal* next) {
  const Node& n = g_.node(id);
  if (!attributes(e, id) || !results_fit(e, id, results)) return false;
  if (!deterministic(n)) return fail(Fail::random, &e, {}, id);
  if (e.shape && !shape(e, n.outputs[0])) return false;
  for (size_t k = 0; results && k < results->size(); ++k) {
    if (names_list((*results)[k]))
      lists_.emplace_back(
          &(*results)[k],
          std::vector(n.outputs.begin() + static_cast<long>(std::min(k, n.outputs.size())),
                      n.outputs.end()));
    else if (!(*results)[k].empty() && !bind_value(e, (*results)[k], g_.output(id, k)))
      return false;
  }
  matched_.push_back(id);
  if (ctx_.trace) calls_.resize(matched_.size()), calls_.back() = &e;
  if (!e.label.empty()) nodes_.emplace_back(&e.label, id);
  return operands(e, id, next);
}

/// D4: results without a name in the pattern must be unused.
bool Matcher::results_fit(const PatternExpr& e, NodeId id,
                          const std::vector<std::string>* results) {
  const Node& n = g_.node(id);
  if (results && !results->empty() && names_list(results->back()))
    return n.outputs.size() >= results->size() &&
           std::ranges::all_of(n.outputs, [](ValueId v) { return bool(v); });
  for (size_t k = results ? 0 : 1; k < n.outputs.size(); ++k) {
    if (!n.outputs[k] || (results && k < results->size() && !(*results)[k].empty())) continue;
    const Value& v = g_.value(n.outputs[k]);
    if (v.is_output || !v.uses.empty()) return fail(Fail::extra_output, &e, n.outputs[k], id);
  }
  return true;
}

/// D6: attributes that the pattern does not name have their default.
bool Matcher::attributes(const PatternExpr& e, NodeId id) {
  const Node& n = g_.node(id);
  for (const AttrPattern& p : e.attrs) {
    const Attr* a = n.attrs.find(p.name);
    std::optional<Attr> fallback;
    if (!a && (fallback = default_attr(n, p.name, ctx_.ops))) a = &*fallback;
    if (!a) return fail(Fail::attribute, &e, {}, id, p.name);
    if (p.kind == AttrPattern::Kind::literal) {
      if (!attr_equals(p.literal, *a)) return fail(Fail::attribute, &e, {}, id, p.name);
      continue;
    }
    auto it = std::ranges::find_if(attrs_, [&](const auto& b) { return *b.first == p.bind; });
    if (it == attrs_.end())
      attrs_.emplace_back(&p.bind, *a);
    else if (!attr_equals(it->second, *a))
      return fail(Fail::attribute, &e, {}, id, p.name);
  }
  if (e.any_attrs) return true;
  for (const auto& [name, value] : n.attrs.items()) {
    if (std::ranges::any_of(e.attrs, [&](const AttrPattern& p) { return p.name == name; }))
      continue;
    std::optional<Attr> fallback = default_attr(n, name, ctx_.ops);
    if (!fallback || !attr_equals(*fallback, value))
      return fail(Fail::default_attribute, &e, {}, id, name);
  }
  return true;
}

// --- operands

/// Constrained operands are tried first: fewer wrong turns.
int Matcher::looseness(const PatternExpr& e) const {
  switch (e.kind) {
    case Kind::number:
      return 0;
    case Kind::call:
      return e.optional ? 5 : 1;
    case Kind::alternatives:  // of calls alone: they say what stands there
      return std::ranges::all_of(e.choices,
                                 [&](const auto& c) { return looseness(*c.second) <= 1; })
                 ? 1
                 : 4;
    default:
      break;
  }
  if (bound(e.name) || line_of(e.name)) return 2;
  return e.constant ? 3 : e.shape ? 6 : 7;
}

bool Matcher::operands(const PatternExpr& e, NodeId id, const Goal* next) {
  const std::vector<ValueId>& in = g_.node(id).inputs;
  size_t n = e.args.size();
  std::vector<size_t> lists;
  for (size_t i = 0; i < n; ++i)
    if (e.args[i]->kind == Kind::reference && e.args[i]->variadic) lists.push_back(i);
  const size_t variadic = lists.empty() ? n : lists.back();
  bool any_order = in.size() >= 2 && in.size() <= 64 && lists.size() < 2 &&
                   (variadic < n || n == in.size()) &&
                   ctx_.ops.in_class(g_.node(id), "commutative");
  if (any_order) {
    Assignment& a = assignments_.emplace_back();
    a.call = &e;
    a.node = id;
    for (uint32_t i = 0; i < n; ++i)
      if (i == variadic)
        a.rest = e.args[i].get();
      else
        a.order.insert(std::ranges::upper_bound(a.order, looseness(*e.args[i]), {},
                                                [&](uint32_t k) { return looseness(*e.args[k]); }),
                       i);
    if (a.order.size() > in.size()) return fail(Fail::missing_input, &e, {}, id);
    Goal goal;
    goal.expr = &e;
    goal.next = next;
    goal.assignment = &a;
    return solve(&goal);
  }
  return ordered(e, id, lists, next);
}

/// What is left of the inputs for the lists goes to them in every split, the first one's shares
/// least first.
bool Matcher::ordered(const PatternExpr& e, NodeId id, const std::vector<size_t>& lists,
                      const Goal* next) {
  const std::vector<ValueId>& in = g_.node(id).inputs;
  const size_t n = e.args.size(), fixed = n - lists.size();
  const size_t rest = !lists.empty() && in.size() > fixed ? in.size() - fixed : 0;
  for (size_t i = fixed + rest; i < in.size(); ++i)
    if (in[i]) return fail(Fail::extra_input, &e, in[i], id);
  auto with = [&](size_t first) {
    const Goal* goals = next;
    size_t slot = fixed + rest;
    for (size_t i = n; i-- > 0;) {
      if (!contains(lists, i)) {
        --slot;
        Goal& goal = goals_.emplace_back();
        goal.expr = e.args[i].get();
        goal.value = slot < in.size() ? in[slot] : ValueId{};
        goal.parent = id;
        goal.next = goals;
        goals = &goal;
        continue;
      }
      const size_t share = lists.size() == 1 ? rest : i == lists[0] ? first : rest - first;
      slot -= share;
      auto begin = in.begin() + static_cast<long>(slot);
      if (!list(*e.args[i], {begin, begin + static_cast<long>(share)}, id, goals)) return false;
    }
    return solve(goals);
  };
  if (lists.size() < 2) return with(rest);
  for (size_t first = 0; first <= rest && !gave_up_; ++first) {
    Mark m = mark();
    if (with(first)) return true;
    undo(m);
  }
  return false;
}

/// Binds the values to "xs..."; where a line makes xs, they must be all results of one node, which
/// is matched next.
bool Matcher::list(const PatternExpr& e, std::vector<ValueId> values, NodeId id,
                   const Goal*& next) {
  for (ValueId v : values)
    if (!marks(e, v)) return false;
  if (!line_of_list(e.name)) return lists_.emplace_back(&e.name, std::move(values)), true;
  const ValueId first = values.empty() ? ValueId{} : values[0];
  const NodeId from = first ? g_.value(first).producer : NodeId{};
  if (!from || g_.node(from).outputs != values) return fail(Fail::other_value, &e, first, id);
  Goal& goal = goals_.emplace_back();
  goal.expr = &e;
  goal.value = first;
  goal.parent = id;
  goal.next = next;
  next = &goal;
  return true;
}

bool Matcher::assign(const Goal& g) {
  const Assignment& a = *g.assignment;
  const std::vector<ValueId>& in = g_.node(a.node).inputs;
  if (g.next_arg == a.order.size()) {
    std::vector<ValueId> rest;
    for (size_t j = 0; j < in.size(); ++j)
      if (!(g.taken >> j & 1)) rest.push_back(in[j]);
    if (!a.rest)
      return rest.empty() ? solve(g.next) : fail(Fail::extra_input, a.call, rest[0], a.node);
    for (ValueId v : rest)
      if (!marks(*a.rest, v)) return false;
    Mark m = mark();
    lists_.emplace_back(&a.rest->name, std::move(rest));
    if (solve(g.next)) return true;
    undo(m);
    return false;
  }
  for (size_t j = 0; j < in.size(); ++j) {
    if (g.taken >> j & 1) continue;
    bool tried = false;  // x * x: both orders are one
    for (size_t k = 0; k < j; ++k) tried |= !(g.taken >> k & 1) && in[k] == in[j];
    if (tried) continue;
    Goal rest = g;
    rest.next_arg = g.next_arg + 1;
    rest.taken = g.taken | uint64_t{1} << j;
    Goal goal;
    goal.expr = a.call->args[a.order[g.next_arg]].get();
    goal.value = in[j];
    goal.parent = a.node;
    goal.next = &rest;
    Mark m = mark();
    if (solve(&goal)) return true;
    undo(m);
    if (gave_up_) return false;
  }
  return false;
}

/// A constant of one element, compared in its own type, that does not raise the rank of the result.
bool Matcher::number(const Goal& g) {
  const PatternExpr& e = *g.expr;
  const Tensor* t = g_.constant(g.value);
  if (!t) return fail(Fail::constant, &e, g.value, g.parent);
  if (t->numel() != 1 || t->dtype() == DType::string)
    return fail(Fail::number, &e, g.value, g.parent);
  bool real = is_float(t->dtype());
  if (e.near && !real && rule_.types.empty()) return fail(Fail::type, &e, g.value, g.parent);
  bool equal;
  if (!real) {
    equal = e.number == std::floor(e.number) && std::abs(e.number) < 9e18 &&
            t->at_i64(0) == static_cast<int64_t>(e.number) && !t->beyond_i64(0);
  } else {
    double k = e.number, v = t->at_f64(0);
    double rtol = std::max(e.rtol, t->dtype() == DType::bf16  ? 1.0 / 128
                                   : t->dtype() == DType::f16 ? 1e-3
                                                              : 0);
    double stored = Tensor::scalar(t->dtype(), k).at_f64(0);  // in the constant's own type
    equal = v == stored ||
            (e.near && std::isfinite(k) && std::abs(v - k) <= rtol * (k == 0 ? 1 : std::abs(k)));
  }
  if (!equal) {
    fail(Fail::number, &e, g.value, g.parent);
    if (!ctx_.explain || other_number_.expr) return false;
    other_number_ = {&e, g.value, g.parent};
  }
  const OpFormula* f = t->rank() && g.parent ? ctx_.ops.find(g_.node(g.parent)) : nullptr;
  if (!f || !f->pointwise() || shaped_by_first(*f)) return true;
  int others = -1;
  for (ValueId v : g_.node(g.parent).inputs)
    if (v && v != g.value) others = std::max(others, g_.value(v).type.rank());
  return t->rank() <= others || fail(Fail::rank, &e, g.value, g.parent);
}

// --- shapes

bool Matcher::dim(const PatternExpr& e, const DimPattern& p, const Dim& d, ValueId v) {
  if (p.kind == DimPattern::Kind::any) return true;
  Dim want = p.constant;
  if (p.kind == DimPattern::Kind::symbol) {
    auto it = std::ranges::find_if(dims_, [&](const auto& b) { return *b.first == p.symbol; });
    if (it == dims_.end()) return dims_.emplace_back(&p.symbol, d), true;
    want = it->second;
  }
  switch (equal(want, d)) {
    case Truth::yes:
      return true;
    case Truth::no:
      return fail(Fail::shape, &e, v, {}, p.symbol);
    default:
      return fail(Fail::unknown_shape, &e, v, {}, p.symbol);
  }
}

bool Matcher::shape(const PatternExpr& e, ValueId v) {
  const auto& have = g_.value(v).type.shape;
  if (!have) return fail(Fail::unknown_shape, &e, v);
  const std::vector<DimPattern>& want = *e.shape;
  size_t rest = want.size();
  for (size_t i = 0; i < want.size(); ++i)
    if (want[i].kind == DimPattern::Kind::rest) rest = i;
  bool open = rest < want.size();
  if (open ? have->size() + 1 < want.size() : have->size() != want.size())
    return fail(Fail::shape, &e, v);
  for (size_t i = 0; i < want.size(); ++i) {
    if (i == rest) continue;
    size_t at = i < rest ? i : have->size() - (want.size() - i);
    if (!dim(e, want[i], (*have)[at], v)) return false;
  }
  return true;
}

// --- the end

namespace {

/// Every name of the pattern that an attempt left unbound stands for something absent.
void bind_rest(const PatternExpr& e, Bindings& b, const Pattern& p) {
  switch (e.kind) {
    case Kind::reference:
      if (e.variadic)
        b.value_lists.try_emplace(e.name);
      else
        b.values.try_emplace(e.name);
      break;
    case Kind::call:
      if (!e.label.empty()) b.nodes.try_emplace(e.label);
      for (const auto& a : e.args) bind_rest(*a, b, p);
      break;
    case Kind::alternatives:
      for (const auto& [_, c] : e.choices) bind_rest(*c, b, p);
      break;
    default:
      break;
  }
}

}  // namespace

bool Matcher::complete() {
  if (const OtherNumber other = std::exchange(other_number_, {}); other.expr)
    return fail(Fail::number, other.expr, other.value, other.reader);
  Embedding out;
  out.nodes = matched_;
  std::ranges::sort(out.nodes, [&](NodeId a, NodeId b) {
    int x = g_.node(a).order, y = g_.node(b).order;
    return x != y ? x < y : a.index < b.index;
  });
  out.nodes.erase(std::unique(out.nodes.begin(), out.nodes.end()), out.nodes.end());
  // A name for something from outside never stands for what the pattern itself computes.
  auto inside = [&](ValueId v) {
    return v && g_.value(v).producer && contains(matched_, g_.value(v).producer);
  };
  for (const auto& [name, v] : values_)
    if (inside(v) && !line_of(*name)) return fail(Fail::inner_value, nullptr, v, {}, *name);
  for (const auto& [name, list] : lists_)
    for (ValueId v : names_list(*name) ? std::vector<ValueId>() : list)
      if (inside(v)) return fail(Fail::inner_value, nullptr, v, {}, *name);
  for (const auto& [name, v] : values_) out.bindings.values.emplace(*name, v);
  for (const auto& [name, n] : nodes_) out.bindings.nodes.emplace(*name, n);
  for (const auto& [name, l] : lists_)
    out.bindings.value_lists.emplace(names_list(*name) ? list_name(*name) : std::string_view(*name),
                                     l);
  for (const auto& [name, a] : attrs_) out.bindings.attrs.emplace(*name, a);
  for (const auto& [name, d] : dims_) out.bindings.dims.emplace(*name, d);
  for (const std::string* t : tags_) out.bindings.tags.insert(*t);
  for (const PatternLine& l : pattern_.lines) {
    bind_rest(*l.expr, out.bindings, pattern_);
    for (const std::string& r : l.results)
      if (names_list(r))
        out.bindings.value_lists.try_emplace(std::string(list_name(r)));
      else if (!r.empty())
        out.bindings.values.try_emplace(r);
  }
  if (ctx_.trace) trace(true);
  const auto& names = pattern_.outputs.empty() ? pattern_.root().results : pattern_.outputs;
  for (const std::string& name : names) {
    if (!names_list(name)) {
      out.outputs.push_back(out.bindings.values[name]);
      continue;
    }
    const auto& all = out.bindings.value_lists.find(list_name(name))->second;
    out.outputs.insert(out.outputs.end(), all.begin(), all.end());
  }
  return (*accept_)(out);
}

}  // namespace ferrule
