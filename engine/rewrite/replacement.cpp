#include "engine/rewrite/replacement.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/graph/made_constants.h"
#include "engine/interpreter/interpreter.h"
#include "engine/match/facts.h"
#include "engine/rule/number_class.h"
#include "engine/semantics/evaluate.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/operator_kinds.h"

namespace ferrule {

using Kind = PatternExpr::Kind;

Tensor converted(const Tensor& t, DType to) {
  if (t.dtype() == to) return t;
  auto [out, bytes] = Tensor::allocate(to, t.dims());
  if (t.dtype() == DType::f32 && to == DType::f64) {
    std::ranges::copy(t.as<float>(), static_cast<double*>(bytes));
    return out;
  }
  if (t.dtype() == DType::f64 && to == DType::f32) {
    std::ranges::transform(t.as<double>(), static_cast<float*>(bytes),
                           [](double d) { return static_cast<float>(d); });
    return out;
  }
  for (int64_t i = 0; i < t.numel(); ++i) Tensor::put(to, bytes, i, t.at_f64(i));
  return out;
}

namespace {

bool wide_type(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

/// Results of this many elements are rounded as they are computed.
constexpr int64_t kLarge = 1 << 16, kLargest = 1 << 28;

class Instantiation {
 public:
  Instantiation(const Graph& g, const Match& m, const Semantics& ops, const Limits& limits,
                bool normal_operands = false)
      : g_(g),
        m_(m),
        ops_(ops),
        limits_(limits),
        normal_operands_(normal_operands),
        eval_{g, m.bindings, ops, m.let} {}

  Status run() {
    for (const PatternLine& l : m_.rule->rewrite.lines) FERRULE_TRY(line(l));
    const Pattern& p = m_.rule->match;
    const auto& names = p.outputs.empty() ? p.root().results : p.outputs;
    for (const std::string& name : names) {
      if (name.ends_with("...")) {
        FERRULE_TRY(results_of(name));
        continue;
      }
      auto it = env_.find(name);
      out_.outputs.push_back(it == env_.end() ? ValueId{} : it->second);
    }
    for (ValueId v : out_.outputs) round_to_constant(v);
    return {};
  }

  /// D9: the constants that the results are made of are the kinds of numbers that they were
  /// computed as.
  Status keep_class() {
    if (underflow_ && !(again() && !again()->underflow_))
      return declined("D9: computing {} underflows in f64", quoted(underflow_));
    for (const auto& [v, elements] : constants_read()) {
      const Tensor& t = *s().constant(v);
      const bool infinite = !finite(t);
      if (infinite && moves_only() && inputs_not_finite()) continue;
      if (const auto change = infinite ? overflow(v) : loses(v, elements))
        return declined("D9: the rule would compute {}{} as {}", quoted(v),
                        t.numel() == 1 ? "" : fmt::format("[{}]", change->element),
                        text(*change, t.dtype()));
    }
    return {};
  }

  Instance take() {
    out_.origin.resize(s().value_slots());
    out_.like.resize(s().node_slots());
    return std::move(out_);
  }

 private:
  /// An operand before its element type is known: a value (none = absent), several, or a number.
  struct Operand {
    std::vector<ValueId> values;
    std::optional<double> number;
  };

  Graph& s() { return out_.scratch; }
  template <class... Args>
  tl::unexpected<Error> declined(fmt::format_string<Args...> text, Args&&... args) const {
    return error(Code::rewrite_declined, m_.rule->id,
                 fmt::format(text, std::forward<Args>(args)...));
  }

  /// A value of the model's graph, seen from the scratch graph.
  ValueId import(ValueId v) {
    if (!v) return {};
    auto [it, fresh] = imported_.try_emplace(v);
    if (!fresh) return it->second;
    const Value& from = g_.value(v);
    if (from.constant) {
      auto normal = normal_operands_ ? without_subnormals(*from.constant) : std::nullopt;
      replaced_ |= normal.has_value();
      it->second = s().add_constant(s().fresh_name("c"), normal ? *normal : *from.constant);
    } else {
      it->second = s().add_input(s().fresh_name("i"), from.type);
      s().set_contents(it->second, from.contents);
    }
    origin(it->second, v);
    return it->second;
  }
  void origin(ValueId scratch, ValueId v) {
    if (out_.origin.size() <= scratch.index) out_.origin.resize(scratch.index + 1);
    out_.origin[scratch.index] = v;
  }

  /// "ys...": as many as the matched node has.
  size_t wanted(const std::string& name) const {
    auto it = m_.bindings.value_lists.find(std::string_view(name).substr(0, name.size() - 3));
    return it == m_.bindings.value_lists.end() ? 1 : it->second.size();
  }
  Status results_of(const std::string& name) {
    auto it = env_lists_.find(name);
    if (it == env_lists_.end() || it->second.size() != wanted(name))
      return declined("{} results are needed for {}", wanted(name), name);
    out_.outputs.insert(out_.outputs.end(), it->second.begin(), it->second.end());
    return {};
  }

  Status line(const PatternLine& l) {
    const PatternExpr& e = *l.expr;
    if (l.results.size() == 1 && l.results[0].ends_with("...")) {
      const std::string& name = l.results[0];
      if (e.kind == Kind::call) {
        FERRULE_ASSIGN(env_lists_[name], call(e, wanted(name), "y"));
      } else {
        FERRULE_ASSIGN(Operand o, operand(e));
        env_lists_[name] = std::move(o.values);
      }
      return {};
    }
    if (e.kind == Kind::call) {
      FERRULE_ASSIGN(std::vector<ValueId> made,
                     call(e, l.results.size(), l.results.empty() ? "" : l.results[0]));
      for (size_t k = 0; k < l.results.size(); ++k)
        if (!l.results[k].empty()) env_[l.results[k]] = k < made.size() ? made[k] : ValueId{};
      return {};
    }
    FERRULE_ASSIGN(Operand o, operand(e));
    FERRULE_ASSIGN(std::vector<ValueId> values, typed(o, root_type()));
    env_[l.results.at(0)] = values.empty() ? ValueId{} : values[0];
    return {};
  }

  DType root_type() const {
    for (ValueId v : m_.outputs)
      if (v) return g_.value(v).type.dtype;
    return DType::undefined;
  }

  Result<Operand> operand(const PatternExpr& e) {
    switch (e.kind) {
      case Kind::reference:
        if (e.name.empty()) return Operand{{ValueId{}}, std::nullopt};  // an input left out
        return named(e.name);
      case Kind::number:
        return Operand{{}, e.number};
      case Kind::expression:
        return from_val(evaluate(*e.expression, eval_));
      case Kind::call: {
        FERRULE_ASSIGN(auto made, call(e, 1, ""));
        return Operand{{made.empty() ? ValueId{} : made[0]}, std::nullopt};
      }
      case Kind::alternatives:
        for (const auto& [_, choice] : e.choices) {
          FERRULE_ASSIGN(Operand o, operand(*choice));
          if (o.number || (!o.values.empty() && o.values[0])) return o;
        }
        return Operand{{ValueId{}}, std::nullopt};
    }
    return declined("an unknown replacement");
  }

  Result<Operand> named(const std::string& name) {
    if (auto it = env_.find(name); it != env_.end()) return Operand{{it->second}, std::nullopt};
    if (auto it = env_lists_.find(name + "..."); it != env_lists_.end())
      return Operand{it->second, std::nullopt};
    const Bindings& b = m_.bindings;
    if (auto it = b.values.find(name); it != b.values.end())
      return Operand{{import(it->second)}, std::nullopt};
    if (auto it = b.value_lists.find(name); it != b.value_lists.end()) {
      Operand o;
      for (ValueId v : it->second) o.values.push_back(import(v));
      return o;
    }
    for (const auto& [n, v] : m_.let)
      if (n == name) return from_val(v);
    return declined("the replacement reads {}, which is not bound", escape(name));
  }

  ValueId constant(Tensor t) { return s().add_constant(s().fresh_name("number"), std::move(t)); }

  Result<Operand> from_val(const Val& v) {
    if (auto* i = std::get_if<int64_t>(&v.v)) return Operand{{}, static_cast<double>(*i)};
    if (auto* d = std::get_if<double>(&v.v)) return Operand{{}, *d};
    if (auto* b = std::get_if<bool>(&v.v)) return Operand{{}, *b ? 1.0 : 0.0};
    if (auto* d = std::get_if<Dim>(&v.v)) {
      if (auto c = d->constant()) return Operand{{}, static_cast<double>(*c)};
      return declined("the size {} is not known", d->str());
    }
    if (auto* t = std::get_if<Tensor>(&v.v)) return Operand{{constant(*t)}, std::nullopt};
    if (auto* x = std::get_if<ValueId>(&v.v)) return Operand{{import(*x)}, std::nullopt};
    if (std::holds_alternative<Val::Absent>(v.v)) return Operand{{ValueId{}}, std::nullopt};
    if (auto* l = std::get_if<std::shared_ptr<Val::List>>(&v.v)) {
      auto is_value = [](const Val& x) { return std::holds_alternative<ValueId>(x.v); };
      if (!(*l)->empty() && std::ranges::all_of(**l, is_value)) {
        Operand o;
        for (const Val& x : **l) o.values.push_back(import(std::get<ValueId>(x.v)));
        return o;
      }
      FERRULE_ASSIGN(auto list, numbers(**l));
      bool whole = std::ranges::all_of(list, [](double d) { return d == std::floor(d); });
      if (whole) {
        std::vector<int64_t> ints(list.begin(), list.end());
        return Operand{{constant(Tensor::of_i64({std::ssize(ints)}, ints))}, std::nullopt};
      }
      return Operand{{exactly(Tensor::of<double>(DType::f64, {std::ssize(list)},
                                                 std::span<const double>(list)),
                              root_type())},
                     std::nullopt};
    }
    return declined("a fact that the replacement needs is not known");
  }

  Result<std::vector<double>> numbers(const Val::List& l) const {
    std::vector<double> out;
    for (const Val& v : l) {
      if (auto* i = std::get_if<int64_t>(&v.v))
        out.push_back(static_cast<double>(*i));
      else if (auto* d = std::get_if<double>(&v.v))
        out.push_back(*d);
      else if (auto* d = std::get_if<Dim>(&v.v); d && d->constant())
        out.push_back(static_cast<double>(*d->constant()));
      else
        return declined("an element of a list is not a known number");
    }
    return out;
  }

  Result<std::vector<ValueId>> typed(const Operand& o, DType context) {
    if (!o.number) return o.values;
    if (context == DType::undefined)
      return declined("the element type of the number {} is not known", *o.number);
    return std::vector<ValueId>{exactly(Tensor::scalar(DType::f64, *o.number), context)};
  }

  /// Numbers of the rule: rounded to `type` where they stay, but not where more is computed with
  /// them.
  ValueId exactly(Tensor t, DType type) {
    const ValueId v = constant(converted(t, type));
    if (wide_type(type) && finite(t)) folded_[v] = std::move(t);
    return v;
  }

  // --- nodes

  const Node* label(const std::string& name, NodeId* id = nullptr) const {
    auto it = m_.bindings.nodes.find(name);
    if (it == m_.bindings.nodes.end() || !it->second) return nullptr;
    if (id) *id = it->second;
    return &g_.node(it->second);
  }

  Result<std::vector<ValueId>> call(const PatternExpr& e, size_t results, const std::string& hint) {
    std::vector<Operand> operands;
    for (const auto& a : e.args) {
      FERRULE_ASSIGN(Operand o, operand(*a));
      operands.push_back(std::move(o));
    }
    // An operator of nothing is nothing: Cast(bias) where the bias is left out.
    if (operands.size() == 1 && operands[0].values == std::vector<ValueId>{ValueId{}})
      return operands[0].values;
    Node n;
    NodeId like;
    if (e.ops.empty()) return declined("the replacement calls a class of operators");
    if (auto f = m_.bindings.formulas.find(e.ops[0]); f != m_.bindings.formulas.end()) {
      if (operands.size() != 1 || operands[0].values.size() != 1)
        return declined("{} is a formula of one tensor", e.ops[0]);
      return f->second ? inlined(*f->second, operands[0].values[0]) : operands[0].values;
    }
    if (m_.bindings.nodes.contains(e.ops[0])) {
      const Node* from = label(e.ops[0], &like);
      if (!from)
        return operands.empty() ? std::vector<ValueId>{} : operands[0].values;  // absent: passes
      n = of_operator(*from);
    } else if (size_t at = e.ops[0].find("::"); at != std::string::npos) {
      n.domain = e.ops[0].substr(0, at), n.op = e.ops[0].substr(at + 2);
    } else {
      n.op = e.ops[0];
    }
    if (!e.copy_attrs.empty())
      if (const Node* from = label(e.copy_attrs, &like))
        for (const auto& [name, value] : from->attrs.items()) n.attrs.set(name, value);
    const DType context = context_type(operands);
    for (const AttrPattern& a : e.attrs) FERRULE_TRY(attribute(n, a, context));
    fill_defaults(n, ops_);
    for (const Operand& o : operands) {
      FERRULE_ASSIGN(auto values, typed(o, context));
      n.inputs.insert(n.inputs.end(), values.begin(), values.end());
    }
    while (!n.inputs.empty() && !n.inputs.back()) n.inputs.pop_back();
    return make(std::move(n), results, like, hint);
  }

  /// The graph's nodes over `operand` in place of its one input that is no constant.
  Result<std::vector<ValueId>> inlined(const Graph& f, ValueId operand) {
    std::map<ValueId, ValueId> made{{ValueId{}, ValueId{}}};
    for (ValueId v : f.inputs()) {
      const Tensor* c = f.constant(v);
      made[v] = c ? constant(*c) : operand;
    }
    for (NodeId id : f.order()) {
      const Node& from = f.node(id);
      Node n = of_operator(from);
      for (ValueId v : from.inputs) n.inputs.push_back(made[v]);
      FERRULE_ASSIGN(auto results, make(std::move(n), from.outputs.size(), {}, "f"));
      for (size_t k = 0; k < results.size(); ++k) made[f.output(id, k)] = results[k];
    }
    return std::vector{made[f.outputs()[0]]};
  }

  /// Numbers take the type of their neighbour; a condition operand (bool) says nothing about the
  /// others.
  DType context_type(const std::vector<Operand>& operands) {
    DType out = DType::undefined;
    for (const Operand& o : operands)
      for (ValueId v : o.values)
        if (v && (out == DType::undefined || out == DType::boolean)) out = s().value(v).type.dtype;
    return out == DType::undefined ? root_type() : out;
  }

  /// `context`: the type that the node computes in.
  Status attribute(Node& n, const AttrPattern& a, DType context) {
    const Attr* before = n.attrs.find(a.name);
    std::optional<Attr> usual = before ? *before : default_attr(n, a.name, ops_);
    std::optional<Attr> value;
    if (a.kind == AttrPattern::Kind::literal) {
      value = a.literal;
    } else if (a.kind == AttrPattern::Kind::bind) {
      auto it = m_.bindings.attrs.find(a.bind);
      if (it != m_.bindings.attrs.end()) value = it->second;
    } else {
      FERRULE_ASSIGN(value, attr_of(evaluate(*a.expression, eval_), a.name));
    }
    if (!value) {
      n.attrs.erase(a.name);
      return {};
    }
    if (usual && std::holds_alternative<double>(*usual))
      if (auto* i = std::get_if<int64_t>(&*value)) value = static_cast<double>(*i);
    if (auto* d = std::get_if<double>(&*value); d && std::isfinite(*d)) {  // attributes are f32
      const ClassChange change{0, *d, static_cast<double>(static_cast<float>(*d))};
      const bool subnormal =
          *d != 0 && std::abs(change.rounded) < least_normal(DType::f32) && change.rounded != *d;
      if (subnormal || !std::isfinite(change.rounded))
        return declined("D9: attribute {} would be {}", escape(a.name), text(change, DType::f32));
      if (context == DType::f64 && change.rounded != *d)
        return declined("D9: attribute {} would be rounded to f32 in a layer of f64",
                        escape(a.name));
    }
    n.attrs.set(a.name, std::move(*value));
    return {};
  }

  Result<std::optional<Attr>> attr_of(const Val& v, const std::string& name) const {
    using R = std::optional<Attr>;
    if (std::holds_alternative<Val::Absent>(v.v)) return R{};
    if (auto* b = std::get_if<bool>(&v.v)) return R{int64_t{*b}};
    if (auto* i = std::get_if<int64_t>(&v.v)) return R{*i};
    if (auto* d = std::get_if<double>(&v.v)) return R{*d};
    if (auto* s = std::get_if<std::string>(&v.v)) return R{*s};
    if (auto* t = std::get_if<DType>(&v.v)) return R{static_cast<int64_t>(*t)};
    if (auto* t = std::get_if<Tensor>(&v.v)) {
      if (t->numel() == 1) return is_float(t->dtype()) ? R{t->at_f64(0)} : R{t->at_i64(0)};
      return R{*t};
    }
    if (auto* d = std::get_if<Dim>(&v.v); d && d->constant()) return R{*d->constant()};
    if (auto* l = std::get_if<std::shared_ptr<Val::List>>(&v.v)) {
      if (!(*l)->empty() && std::holds_alternative<std::string>((*l)->front().v)) {
        std::vector<std::string> out;
        for (const Val& x : **l)
          if (auto* s = std::get_if<std::string>(&x.v)) out.push_back(*s);
        return R{std::move(out)};
      }
      FERRULE_ASSIGN(auto list, numbers(**l));
      bool real = std::ranges::any_of(
          **l, [](const Val& x) { return std::holds_alternative<double>(x.v); });
      if (real) return R{list};
      return R{std::vector<int64_t>(list.begin(), list.end())};
    }
    return declined("attribute {} of the replacement depends on a fact that is not known",
                    escape(name));
  }

  /// Infers the node, folds it if it can be, else adds it.
  Result<std::vector<ValueId>> make(Node n, size_t results, NodeId like, const std::string& hint) {
    for (size_t k = 0; k < std::max<size_t>(results, 1); ++k)
      n.outputs.push_back(s().add_value(s().fresh_name(hint.empty() || k ? "t" : hint)));
    FERRULE_ASSIGN(Inferred types, infer_node(ops_, s(), n));
    for (size_t k = 0; k < n.outputs.size() && k < types.types.size(); ++k) {
      s().set_type(n.outputs[k], types.types[k]);
      if (k < types.contents.size()) s().set_contents(n.outputs[k], types.contents[k]);
    }
    if (foldable(n) && fold(n)) return n.outputs;
    for (ValueId v : n.inputs) round_to_constant(v);
    std::vector<ValueId> outputs = n.outputs;
    NodeId id = s().add_node(std::move(n));
    out_.like.resize(id.index + 1);
    out_.like[id.index] = like;
    return outputs;
  }

  // --- constants

  bool is_constant(ValueId v) { return folded_.contains(v) || s().constant(v); }
  /// What does not saturate is no plain rounding of its value in f64.
  bool foldable(const Node& n) {
    return n.attrs.i("saturate", 1) != 0 && deterministic(n) && interpretable(n, ops_) &&
           n.subgraphs.empty() &&
           std::ranges::all_of(n.inputs, [&](ValueId v) { return !v || is_constant(v); });
  }

  /// The value in f64 where its type is a float, in the graph where folding happens.
  ValueId widened(ValueId v) {
    if (!v) return {};
    auto [it, fresh] = wide_ids_.try_emplace(v);
    if (!fresh) return it->second;
    Tensor t = *unrounded(v);
    if (wide_type(t.dtype())) t = converted(t, DType::f64);
    return it->second = wide_.add_constant(wide_.fresh_name("w"), std::move(t));
  }

  /// What is known of a constant: its value before rounding, where it was computed here.
  const Tensor* unrounded(ValueId v) {
    auto f = folded_.find(v);
    if (f == folded_.end()) return s().constant(v);
    if (auto r = rounded_.find(v); r != rounded_.end()) {
      if (auto t = evaluate_rounded(ops_, r->second, operands(r->second), {DType::f64}))
        f->second = std::move(*t);
      rounded_.erase(r);
    }
    return &f->second;
  }
  std::vector<const Tensor*> operands(const Node& n) {
    std::vector<const Tensor*> all;
    for (ValueId v : n.inputs) all.push_back(v ? unrounded(v) : nullptr);
    return all;
  }

  /// New weights, mostly: rounded element by element, for two copies of them in f64 cost more than
  /// the rest of planning. If a later line computes with the result, unrounded() computes it again.
  bool fold_large(const Node& n) {
    if (n.outputs.size() != 1 || !ops_.pointwise(n)) return false;
    const Type type = s().value(n.outputs[0]).type;
    auto numel = type.shape ? product(*type.shape).constant() : std::nullopt;
    if (!numel || *numel < kLarge || *numel > kLargest || !wide_type(type.dtype)) return false;
    bool less = false;
    auto result =
        evaluate_rounded(ops_, n, operands(n), {type.dtype, least_normal(type.dtype), &less});
    if (!result) return false;
    if (less) less_.insert(n.outputs[0]);
    folded_[n.outputs[0]] = std::move(*result);
    Node& made = rounded_[n.outputs[0]] = of_operator(n);
    made.inputs = n.inputs;
    return true;
  }

  /// In the node's own types, as the model would compute it; large results once for all plans that
  /// start from one graph.
  bool fold_as_written(const Node& n) {
    std::string recipe = n.op.text();
    for (const auto& [name, value] : n.attrs.items())
      recipe += fmt::format(" {}={}", name, str(value));
    std::vector<Tensor> sources;
    std::vector<const Tensor*> inputs;
    for (ValueId v : n.inputs) {
      inputs.push_back(v ? s().constant(v) : nullptr);
      if (v) sources.push_back(*inputs.back());
    }
    InterpreterOptions options;
    options.ops = &ops_;
    options.limits = &limits_;
    const auto make = [&] {
      auto result = interpret_node(s(), n, inputs, options);
      return result && result->size() == 1 ? std::move((*result)[0]) : Tensor();
    };
    const auto large = [](const Tensor& t) { return t.numel() >= kLarge; };
    MadeConstants* shared = std::ranges::any_of(sources, large) ? g_.made_constants() : nullptr;
    Tensor made = shared ? shared->get(recipe, sources, make) : make();
    if (made.dtype() == DType::undefined) return false;
    s().set_constant(n.outputs[0], std::move(made));
    return true;
  }
  /// Weights that the model stores with scales; integers that f64 does not hold, which would be
  /// rounded twice.
  bool folds_as_written(const Node& n) {
    const auto given = [&](ValueId v) {
      return !v || (s().constant(v) && (!folded_.contains(v) || is_int(s().constant(v)->dtype())));
    };
    if (n.outputs.size() != 1 || !std::ranges::all_of(n.inputs, given)) return false;
    const Tensor* first = n.inputs.empty() || !n.inputs[0] ? nullptr : s().constant(n.inputs[0]);
    const bool long_integers = first && is_int(first->dtype()) && size_bits(first->dtype()) == 64;
    return dequantizes(n) ||
           (long_integers && ops_.pointwise(n) && wide_type(s().value(n.outputs[0]).type.dtype));
  }

  bool fold(const Node& n) {
    if (folds_as_written(n)) return fold_as_written(n);
    if (fold_large(n)) return true;
    if (fold_in(n, true) || fold_in(n, false)) {
      for (ValueId v : n.outputs)
        if (!wide_type(s().value(v).type.dtype) || folded_[v].numel() <= 64) round_to_constant(v);
      return true;
    }
    return false;
  }

  bool fold_in(const Node& n, bool wide) {
    Node w = of_operator(n);
    w.name = "folded";
    std::vector<const Tensor*> inputs;
    if (!wide)
      for (ValueId v : n.inputs) round_to_constant(v);
    Graph& g = wide ? wide_ : s();
    for (ValueId v : n.inputs) w.inputs.push_back(wide ? widened(v) : v);
    for (size_t k = 0; k < n.outputs.size(); ++k)
      w.outputs.push_back(g.add_value(g.fresh_name("t")));
    for (ValueId in : w.inputs)
      inputs.push_back(in ? g.constant(in) : nullptr);  // after the last new value
    if (auto types = infer_node(ops_, g, w))
      for (size_t k = 0; k < w.outputs.size() && k < types->types.size(); ++k)
        g.set_type(w.outputs[k], types->types[k]);
    InterpreterOptions options;
    options.ops = &ops_;
    options.limits = &limits_;
    options.f64 = true;
    std::feclearexcept(FE_UNDERFLOW);
    auto result = interpret_node(g, w, inputs, options);
    if (!result || result->size() < n.outputs.size()) return false;
    if (std::fetestexcept(FE_UNDERFLOW) && s().value(n.outputs[0]).type.dtype == DType::f64)
      underflow_ = n.outputs[0];
    for (size_t k = 0; k < n.outputs.size(); ++k) folded_[n.outputs[k]] = std::move((*result)[k]);
    return true;
  }

  /// A folded value becomes a constant of its own type: the one rounding.
  void round_to_constant(ValueId v) {
    auto it = v ? folded_.find(v) : folded_.end();
    if (it == folded_.end() || s().constant(v)) return;
    DType to = s().value(v).type.dtype;
    s().set_constant(v, is_float(to) ? converted(it->second, to) : it->second);
  }

  // --- D9

  std::string quoted(ValueId v) { return fmt::format("\"{}\"", escape(s().value(v).name)); }

  /// What was computed and is read by the nodes that make the results, or is one, and how its
  /// elements are.
  std::map<ValueId, Elements> constants_read() {
    std::map<ValueId, Elements> read;
    std::vector<bool> seen(s().node_slots());
    std::vector<ValueId> work;
    auto reads = [&](ValueId v, Elements how) {
      if (!v) return;
      work.push_back(v);
      if (!folded_.contains(v) || !s().constant(v)) return;
      const auto [at, fresh] = read.try_emplace(v, how);
      if (!fresh && how == Elements::alone) at->second = how;
    };
    for (ValueId v : out_.outputs) reads(v, Elements::alone);
    while (!work.empty()) {
      const NodeId p = s().value(work.back()).producer;
      work.pop_back();
      if (!p || seen[p.index]) continue;
      seen[p.index] = true;
      for (ValueId v : s().node(p).inputs)
        reads(v, ops_.find(s().node(p)) ? Elements::alone : Elements::summed);
    }
    return read;
  }

  std::optional<ClassChange> overflow(ValueId v) {
    const Tensor rounded = *s().constant(v);
    const Tensor* exact = unrounded(v);
    for (int64_t i = 0; i < rounded.numel(); ++i)
      if (!std::isfinite(rounded.at_f64(i)))
        return ClassChange{i, exact->at_f64(i), rounded.at_f64(i)};
    return std::nullopt;
  }

  /// A rule that takes a shorter type loses small numbers on purpose.
  std::optional<ClassChange> loses(ValueId v, Elements elements) {
    if (m_.rule->numerics == "reduced" || (rounded_.contains(v) && !less_.contains(v)))
      return std::nullopt;
    const Tensor rounded = *s().constant(v);
    const auto change = underflow(*unrounded(v), rounded, elements, nullptr);
    if (!change || !again()) return change;
    return underflow(*unrounded(v), rounded, elements, again()->unrounded(v));
  }

  /// The same with 0 in the place of subnormal operands; null: there are none.
  Instantiation* again() {
    if (!again_) {
      again_ = std::make_unique<Instantiation>(g_, m_, ops_, limits_, true);
      if (!again_->run()) again_->replaced_ = false;
    }
    return again_->replaced_ ? again_.get() : nullptr;
  }

  /// Rules that compute nothing new may move infinities around; where sums are reordered, they
  /// would become NaN.
  bool moves_only() const {
    return m_.rule->numerics == "exact" || m_.rule->numerics == "signed_zero";
  }

  bool inputs_not_finite() const {
    auto bad = [&](ValueId v) { return v && g_.constant(v) && !finite(*g_.constant(v)); };
    for (const auto& [_, v] : m_.bindings.values)
      if (bad(v)) return true;
    for (const auto& [_, l] : m_.bindings.value_lists)
      if (std::ranges::any_of(l, bad)) return true;
    return false;
  }

  const Graph& g_;
  const Match& m_;
  const Semantics& ops_;
  const Limits& limits_;
  const bool normal_operands_;  // subnormal constants of the model are taken for 0
  bool replaced_ = false;       // there were some
  EvalContext eval_;
  Instance out_;
  std::map<std::string, ValueId> env_;
  std::map<std::string, std::vector<ValueId>> env_lists_;  // by "ys..."
  std::map<ValueId, ValueId> imported_;
  Graph wide_;                           // constants in f64
  std::map<ValueId, ValueId> wide_ids_;  // scratch -> wide_
  std::map<ValueId, Tensor> folded_;     // scratch -> unrounded result
  std::map<ValueId, Node>
      rounded_;  // those of folded_ that are rounded all the same, and what made them
  std::set<ValueId>
      less_;           // those of rounded_ with elements that were no normal numbers of their type
  ValueId underflow_;  // an f64 that has no f64 to be exact in, and was 0 or subnormal
  std::unique_ptr<Instantiation> again_;
};

}  // namespace

Result<Instance> instantiate(const Graph& g, const Match& m, const Semantics& ops,
                             const Limits& limits) {
  Instantiation i(g, m, ops, limits);
  FERRULE_TRY(i.run());
  FERRULE_TRY(i.keep_class());
  return i.take();
}

}  // namespace ferrule
