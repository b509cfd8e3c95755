#include "engine/proof/generate.h"

#include <xxhash.h>

#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/match/facts.h"
#include "engine/proof/edit.h"
#include "engine/proof/node_draw.h"
#include "engine/rewrite/replacement.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

using Kind = PatternExpr::Kind;

/// One walk through the pattern, from the root to the values from outside, and the graph that it
/// makes.
class Walk {
 public:
  Walk(const Rule& rule, const ProofContext& ctx, Proposer& propose, Draw& draw)
      : rule_(rule),
        ctx_(ctx),
        draw_(draw),
        propose_(propose),
        world_(propose.world(rule.types)),
        nodes_(g_, world_, *ctx.ops, propose, draw),
        sparse_(draw.chance(50)) {}

  std::unique_ptr<Graph> run() {
    const Pattern& p = rule_.match;
    if (!line(p.root())) return nullptr;
    std::set<ValueId> out;
    for (const std::string& name : p.outputs.empty() ? p.root().results : p.outputs) {
      if (auto it = lists_.find(bare(name)); it != lists_.end())
        out.insert(it->second.begin(), it->second.end());
      else if (ValueId v = env_[name])
        out.insert(v);
    }
    for (const std::string& name : rule_.shared)
      if (auto it = env_.find(name);
          it != env_.end() && it->second && g_.value(it->second).producer && draw_.chance(30))
        out.insert(it->second);
    if (rule_.kind == RuleKind::merge) siblings(out);
    for (ValueId v : out) g_.add_output(v);
    return std::ranges::any_of(out, [&](ValueId v) { return reads_input(v); }) && g_.sort()
               ? std::make_unique<Graph>(std::move(g_))
               : nullptr;
  }

 private:
  /// A merge's nodes over the same value again, with operands of their own; their results are added
  /// to `out`.
  void siblings(std::set<ValueId>& out) {
    std::set<ValueId> over;
    if (const auto it = lists_.find(rule_.merge.over); it != lists_.end())
      over.insert(it->second.begin(), it->second.end());
    else if (const auto found = env_.find(rule_.merge.over); found != env_.end())
      over.insert(found->second);
    const std::vector<NodeId> nodes = g_.order();
    const std::set<ValueId> first = out;
    for (int64_t n = draw_.chance(25) ? 2 : 1; n > 0; --n) {
      std::map<ValueId, ValueId> mine;
      for (NodeId id : nodes) {
        if (std::ranges::none_of(g_.node(id).inputs,
                                 [&](ValueId v) { return over.contains(v) || mine.contains(v); }))
          continue;
        const Node& one = g_.node(id);
        if (!one.subgraphs.empty()) return;
        Node node;
        node.op = one.op, node.domain = one.domain, node.attrs = one.attrs;
        node.inputs = one.inputs, node.outputs = one.outputs;
        node.name = g_.fresh_name(one.name);
        for (ValueId& v : node.inputs)
          if (const auto it = mine.find(v); it != mine.end())
            v = it->second;
          else if (v && !over.contains(v))
            v = sibling(v);
        for (ValueId& v : node.outputs)
          if (v) {
            const ValueId copy = g_.add_value(g_.fresh_name("t"), g_.value(v).type);
            mine[v] = copy;
            v = copy;
          }
        g_.add_node(std::move(node));
      }
      for (ValueId v : first)
        if (const auto it = mine.find(v); it != mine.end()) out.insert(it->second);
    }
  }
  /// An operand in the place of one that the first of the siblings reads.
  ValueId sibling(ValueId v) {
    if (draw_.chance(20)) return v;
    const Tensor* t = g_.constant(v);
    if (!t) {
      if (!g_.value(v).is_input || draw_.chance(50)) return v;
      return g_.add_input(g_.fresh_name("other"), g_.value(v).type);
    }
    std::vector<int64_t> dims = t->dims();
    if (!dims.empty() && draw_.chance(30))
      dims[static_cast<size_t>(draw_.below(std::ssize(dims)))] = propose_.size();
    int64_t all = 1;
    for (int64_t d : dims) all *= std::min(d, kElements + 1);
    if (all > kElements || t->dtype() == DType::string || size_bits(t->dtype()) % 8) return v;
    return g_.add_constant(g_.fresh_name("k"), propose_.contents(t->dtype(), dims, g_));
  }

  /// What is constant throughout would have been folded before.
  bool reads_input(ValueId v) const {
    if (g_.value(v).is_input) return true;
    const Node* p = g_.producer(v);
    return p && std::ranges::any_of(p->inputs, [&](ValueId in) { return in && reads_input(in); });
  }

  static std::string bare(const std::string& name) {
    return name.ends_with("...") ? name.substr(0, name.size() - 3) : name;
  }

  const PatternLine* line_of(const std::string& name) const {
    for (const PatternLine& l : rule_.match.lines)
      for (const std::string& r : l.results)
        if (bare(r) == name) return &l;
    return nullptr;
  }

  /// Makes the line's node or value and binds its results.
  bool line(const PatternLine& l) {
    const bool single = l.results.size() == 1 && !l.results[0].ends_with("...");
    if (single) {
      auto o = operand(*l.expr);
      if (!o) return false;
      // A line may name a value from outside: Op?(x) that is absent.
      if (o->free() && !(*o = nodes_.alone(*o)).value) return false;
      if (!l.results[0].empty()) env_[l.results[0]] = o->value;
      return true;
    }
    auto results = call(*chosen(*l.expr), l.results);
    if (!results) return false;
    for (size_t k = 0; k < l.results.size(); ++k) {
      if (l.results[k].ends_with("..."))
        lists_[bare(l.results[k])] = {results->begin() + k, results->end()};
      else if (!l.results[k].empty())
        env_[l.results[k]] = (*results)[k];
    }
    return true;
  }

  /// The alternative that is taken here.
  const PatternExpr* chosen(const PatternExpr& e) {
    const PatternExpr* at = &e;
    while (at->kind == Kind::alternatives) {
      const auto nothing = std::ranges::find_if(
          at->choices, [](const auto& c) { return c.second->kind == Kind::reference; });
      at =
          nothing != at->choices.end() && left_out(0)
              ? nothing->second.get()
              : at->choices[static_cast<size_t>(draw_.below(std::ssize(at->choices)))].second.get();
    }
    return at;
  }

  /// Whether operators that need not be there are not; `percent`: of the walks that are not sparse.
  bool left_out(int percent) {
    constexpr int kSparse = 80;
    return draw_.chance(sparse_ ? kSparse : percent);
  }

  std::optional<OperandDraw> operand(const PatternExpr& any) {
    const PatternExpr& e = *chosen(any);
    if (e.kind == Kind::number) return OperandDraw::of_number(e);
    if (e.kind == Kind::reference) return reference(e);
    if (e.kind != Kind::call) return std::nullopt;
    if (e.optional && !e.args.empty() && left_out(40)) return operand(*e.args[0]);
    auto results = call(e, {""});
    if (!results) return std::nullopt;
    return OperandDraw{(*results)[0]};
  }

  std::optional<OperandDraw> reference(const PatternExpr& e) {
    if (e.name.empty()) return OperandDraw{};
    if (auto it = env_.find(e.name); it != env_.end()) return OperandDraw{it->second};
    if (const PatternLine* l = line_of(e.name)) {
      if (!line(*l)) return std::nullopt;
      return OperandDraw{env_[e.name]};
    }
    if (e.optional && draw_.chance(45)) {
      env_[e.name] = {};
      return OperandDraw{};
    }
    return OperandDraw::of_name(e);
  }

  /// "xs...": what a line made, or up to three values from outside.
  bool variadic(const PatternExpr& e, std::vector<OperandDraw>& out) {
    if (const PatternLine* l = line_of(e.name); l && !lists_.contains(e.name) && !line(*l))
      return false;
    if (auto it = lists_.find(e.name); it != lists_.end()) {
      for (ValueId v : it->second) out.push_back({v});
      return true;
    }
    const int64_t many = propose_.count(draw_.below(draw_.chance(10) ? 8 : 4));
    for (int64_t n = many; n > 0; --n) out.push_back(OperandDraw::of_name(e));
    return true;
  }

  std::optional<std::vector<ValueId>> call(const PatternExpr& e,
                                           const std::vector<std::string>& results) {
    if (e.kind != Kind::call) return std::nullopt;
    Node n;
    if (!head(e, n)) return std::nullopt;
    std::vector<OperandDraw> in;
    bool list = false;
    for (const auto& a : e.args) {
      if (a->kind == Kind::reference && a->variadic) {
        list = true;
        if (!variadic(*a, in)) return std::nullopt;
        continue;
      }
      auto o = operand(*a);
      if (!o) return std::nullopt;
      in.push_back(*o);
    }
    if (ctx_.ops->in_class(n, "commutative") && (!list || e.args.size() < 3)) draw_.shuffle(in);
    size_t count = results.size();
    if (results.back().ends_with("...")) count += static_cast<size_t>(draw_.below(3));
    auto made = nodes_.add(std::move(n), in, count, e, attrs_, dims_);
    if (!made) return std::nullopt;
    for (const OperandDraw& o : in)
      if (o.name && !o.name->variadic)
        env_[o.name->name] = o.value;
      else if (o.name)
        lists_[o.name->name].push_back(o.value);
    return made;
  }

  bool head(const PatternExpr& e, Node& n) {
    std::vector<std::string> all = e.ops;
    for (const std::string& c : e.classes)
      for (const auto& [key, f] : ctx_.ops->all())
        if (contains(f.classes, c) || (c == "pointwise" && f.pointwise())) all.push_back(key);
    if (all.empty()) return false;
    const std::string& op = draw_.of(all);
    if (const size_t at = op.find("::"); at != std::string::npos)
      n.domain = op.substr(0, at), n.op = op.substr(at + 2);
    else
      n.op = op;
    return true;
  }

  const Rule& rule_;
  const ProofContext& ctx_;
  Draw& draw_;
  Proposer& propose_;
  Graph g_;
  World world_;
  NodeDraw nodes_;
  /// Few of the operators that need not be there: the more a graph has, the fewer of its kind are
  /// valid, and a mistake is mostly in one of them.
  const bool sparse_;
  std::map<std::string, ValueId, std::less<>> env_;
  std::map<std::string, std::vector<ValueId>, std::less<>> lists_;
  std::map<std::string, Attr, std::less<>> attrs_;
  std::map<std::string, Dim, std::less<>> dims_;
};

/// Puts an operator in front of some inputs, the same one in front of each.
void put_producers(Graph& g, const std::string& op, const Semantics& ops, Proposer& propose,
                   Draw& draw) {
  World world;
  std::optional<Attrs> attrs;
  const std::vector<ValueId> inputs = g.inputs();
  const bool all = draw.chance(50);
  for (ValueId v : inputs) {
    if (!g.value(v).type.shape || (!all && draw.chance(50))) continue;
    world.base = *g.value(v).type.shape;
    world.dtype = g.value(v).type.dtype;
    NodeDraw nodes(g, world, ops, propose, draw);
    ValueId made = nodes.producer(op, g.value(v).type, attrs);
    if (made) g.replace_uses(v, made);
  }
}

/// Lets operators read some values beside the match: its results, which then are the graph's or
/// not, and what it reads itself.
void put_readers(Graph& g, const Hints& hints, const Semantics& ops, Proposer& propose,
                 Draw& draw) {
  static const std::vector<std::string> kAny{"Neg", "Abs", "Add", "Mul", "Relu", "Identity"};
  const std::vector<ValueId> results = g.outputs();
  std::vector<ValueId> outside = g.inputs();
  const std::vector<ValueId> constants = g.constants();
  outside.insert(outside.end(), constants.begin(), constants.end());
  std::vector<ValueId> read;
  for (ValueId v : results)
    if (draw.chance(75)) read.push_back(v);
  if (draw.chance(35) && !outside.empty()) read.push_back(draw.of(outside));
  World world;
  for (ValueId v : read) {
    if (!g.value(v).type.known()) continue;
    world.base = *g.value(v).type.shape;
    world.dtype = g.value(v).type.dtype;
    bool stays = !contains(results, v) || draw.chance(25);
    for (int64_t n = propose.count(draw.between(int64_t{1}, int64_t{4})); n > 0; --n) {
      NodeDraw nodes(g, world, ops, propose, draw);
      const bool named = !hints.readers.empty() && draw.chance(90);
      const ValueId made = nodes.reader(draw.of(named ? hints.readers : kAny), v);
      if (!made) continue;
      const std::vector<ValueId> now = g.outputs();
      const auto at = std::ranges::find(now, v);
      if (stays || at == now.end())
        g.add_output(made);
      else
        g.set_output(static_cast<size_t>(at - now.begin()), made);
      stays = true;
    }
  }
}

/// A size becomes another wherever it stands in inputs and constants (-1: every size that is open),
/// with `multiples` those that hold it as a factor, too, and with `lists` where lists of integers
/// and attributes name one.
void rescale(Graph& g, int64_t from, int64_t to, bool multiples, bool lists) {
  auto changed = [&](int64_t d) {
    return d == from ? to : multiples && from > 1 && d > 0 && d % from == 0 ? d / from * to : d;
  };
  for (ValueId v : g.inputs()) {
    Type t = g.value(v).type;
    if (!t.shape) continue;
    for (Dim& d : *t.shape)
      if (const int64_t was = d.value_or(-1); changed(was) != was) d = Dim(changed(was));
    g.set_type(v, std::move(t));
  }
  for (ValueId v : g.constants()) {
    const Tensor* t = g.constant(v);
    if (t->dtype() == DType::string || size_bits(t->dtype()) % 8) continue;
    std::vector<int64_t> dims = t->dims();
    for (int64_t& d : dims) d = changed(d);
    int64_t all = 1;
    for (int64_t d : dims) all = std::min(all * d, 4 * kElements);
    if (dims != t->dims() && all < 4 * kElements)
      g.set_constant(v, filled(t->dtype(), dims, t->to_f64()));
  }
  if (!lists) return;
  for (NodeId n : g.order()) {
    const Attrs attrs = g.node(n).attrs;
    for (const auto& [key, value] : attrs.items())
      if (const auto* i = std::get_if<int64_t>(&value);
          i && from > 1 && *i == from && key != "to" &&
          numbers_of(g.node(n).op.text(), key).empty())
        g.set_attr(n, key, to);
      else if (auto* all = std::get_if<std::vector<int64_t>>(&value); all && from > 1) {
        std::vector<int64_t> list = *all;
        std::ranges::replace(list, from, to);
        g.set_attr(n, key, std::move(list));
      }
  }
  for (ValueId v : g.constants()) {
    const Tensor* t = g.constant(v);
    if (t->rank() != 1 || (t->dtype() != DType::i64 && t->dtype() != DType::i32)) continue;
    std::vector<int64_t> list = t->to_i64();
    for (int64_t& d : list) d = changed(d);
    g.set_constant(v, Tensor::of_ints(t->dtype(), t->dims(), list));
  }
}

/// f64 has no wider type to judge long sums by.
bool small(const Graph& g) {
  return std::ranges::all_of(g.values(), [&](ValueId v) {
    const auto& [dtype, shape] = g.value(v).type;
    if (!shape) return true;
    if (shape->size() > kRank) return false;
    return dtype == DType::f64 ? elements(*shape) <= 512 : has_room(*shape, 2);
  });
}

}  // namespace

Generator::Generator(const Rule& rule, const ProofContext& ctx, const Hints& hints)
    : rule_(rule),
      ctx_(ctx),
      draw_(Draw::of(rule.text)),
      propose_(hints, draw_),
      asks_producers_(!hints.operators.empty()),
      hints_(hints) {}

std::unique_ptr<Graph> Generator::next() {
  auto g = Walk(rule_, ctx_, propose_, draw_).run();
  if (!g || (rule_.kind == RuleKind::merge && !infer_again(*ctx_.ops, *g))) return nullptr;
  static const std::vector<std::string> kAny{"Neg", "Abs", "Relu", "Identity"};
  bool more = false;
  if (asks_producers_ && draw_.chance(70)) {
    put_producers(*g, draw_.of(hints_.operators), *ctx_.ops, propose_, draw_);
    more = true;
  } else if (hints_.surroundings && draw_.chance(20)) {
    put_producers(*g, draw_.of(kAny), *ctx_.ops, propose_, draw_);
    more = true;
  }
  if (hints_.surroundings && draw_.chance(65)) {
    put_readers(*g, hints_, *ctx_.ops, propose_, draw_);
    more = true;
  }
  if (!more) return g;
  g->remove_dead();
  return infer_again(*ctx_.ops, *g) ? std::move(g) : nullptr;
}

/// Null: it is no valid graph, or too large a one.
std::unique_ptr<Graph> Generator::valid(std::unique_ptr<Graph> g) const {
  return infer_again(*ctx_.ops, *g) && small(*g) ? std::move(g) : nullptr;
}

/// One element of a constant becomes another one's, a number that the rule names, or any:
/// conditions ask for the first and the last, and mean all.
bool Generator::vary_element(Graph& g, ValueId v) {
  const Tensor& t = *g.constant(v);
  const int64_t n = t.numel();
  std::vector<double> all = t.to_f64();
  const int64_t at = draw_.chance(50) ? draw_.below(n) : draw_.chance(50) ? 0 : n - 1;
  const int64_t other = draw_.chance(50) ? draw_.below(n) : draw_.chance(50) ? 0 : n - 1;
  double& x = all[static_cast<size_t>(at)];
  switch (draw_.below(4)) {
    case 0:
      x = all[static_cast<size_t>(other)];
      break;
    case 1:
      x = draw_.of(hints_.numbers);
      break;
    case 2:
      x = is_float(t.dtype()) ? x * draw_.between(0.5, 1.5) : x + (draw_.chance(50) ? 1 : -1);
      break;
    default:
      x = is_float(t.dtype()) ? draw_.between(-2.0, 2.0)
                              : static_cast<double>(draw_.between(int64_t{-2}, int64_t{12}));
  }
  g.set_constant(v, filled(t.dtype(), t.dims(), all));
  return true;
}

std::unique_ptr<Graph> Generator::varied(const Graph& g) {
  auto out = g.clone();
  return vary(*out) ? valid(std::move(out)) : nullptr;
}

bool Generator::vary(Graph& g) {
  const std::vector<ValueId> constants = g.constants();
  const std::vector<NodeId> nodes = g.order();
  if (!constants.empty() && (draw_.chance(70) || nodes.empty())) {
    const ValueId v = draw_.of(constants);
    const Tensor& t = *g.constant(v);
    constexpr int64_t kFew = 64;
    if (t.numel() > 1 && t.numel() <= kFew && t.dtype() != DType::string &&
        size_bits(t.dtype()) % 8 == 0 && draw_.chance(35))
      return vary_element(g, v);
    int way = 0;
    const NodeId reader = g.value(v).uses.empty() ? NodeId{} : g.value(v).uses[0].node;
    const ValueId beside = reader ? g.input(reader, 0) : ValueId{};
    const bool list = is_int(t.dtype()) && t.rank() < 2 && beside && g.value(beside).type.shape &&
                      draw_.chance(70);
    g.set_constant(
        v, list ? propose_.integers(t.dtype(), *g.value(beside).type.shape, g, {"again"}, way)
                : propose_.contents(t.dtype(), t.dims(), g));
  } else if (!nodes.empty()) {
    const NodeId n = draw_.of(nodes);
    const OperatorSchema* schema = operator_schema(g.node(n));
    if (!schema || schema->attributes.empty()) return false;
    std::vector<const AttributeSchema*> asked;
    for (const AttributeSchema& a : schema->attributes)
      if (hints_.asked.contains(a.name)) asked.push_back(&a);
    const AttributeSchema& a =
        !asked.empty() && draw_.chance(50) ? *draw_.of(asked) : draw_.of(schema->attributes);
    const ValueId first = g.input(n, 0);
    auto to = propose_.attribute(g.node(n).op.text(), a, first ? g.value(first).type.rank() : 0);
    if (!to) return true;
    const Attr* now = g.node(n).attrs.find(a.name);
    if (const auto* was = now ? std::get_if<double>(now) : nullptr; was && draw_.chance(20))
      to = *was * (1 + draw_.between(-3e-3, 3e-3));
    if (now && draw_.chance(60)) {  // one name in the pattern may stand for all that are equal
      const Attr was = *now;
      for (NodeId m : nodes)
        if (const Attr* same = g.node(m).attrs.find(a.name); same && same_attr(*same, was))
          g.set_attr(m, a.name, *to);
    } else {
      g.set_attr(n, a.name, *to);
    }
  }
  return true;
}

std::unique_ptr<Graph> Generator::resized(const Graph& g) {
  auto out = g.clone();
  return rescale_one(*out) ? valid(std::move(out)) : nullptr;
}

bool Generator::rescale_one(Graph& g) {
  std::vector<int64_t> sizes;
  std::vector<DType> types;
  for (ValueId v : g.values()) {
    const Value& x = g.value(v);
    if (x.producer || !x.type.shape) continue;
    for (const Dim& d : *x.type.shape) sizes.push_back(d.value_or(-1));
    if (x.is_input) types.push_back(x.type.dtype);
  }
  if (!types.empty() && (sizes.empty() || draw_.chance(25))) {
    const DType from = draw_.of(types), to = propose_.element(rule_.types);
    if (from == to || is_float(from) != is_float(to)) return false;
    retype(g, from, to);
  } else if (sizes.empty() || draw_.chance(15)) {  // one axis more in front
    const Dim more(draw_.between(int64_t{1}, int64_t{5}));
    for (ValueId v : g.inputs()) {
      Type t = g.value(v).type;
      if (!t.shape) return false;
      t.shape->insert(t.shape->begin(), more);
      g.set_type(v, std::move(t));
    }
  } else if (draw_.chance(20)) {  // of one input alone
    const ValueId v = draw_.of(g.inputs());
    Type t = g.value(v).type;
    if (!t.shape || t.shape->empty()) return false;
    (*t.shape)[static_cast<size_t>(draw_.below(std::ssize(*t.shape)))] =
        Dim(propose_.another_size());
    g.set_type(v, std::move(t));
  } else {
    constexpr int64_t kLong = 1000;
    const int64_t from = draw_.of(sizes), to = propose_.another_size();
    if (to > kLong)  // beside it there is room for nothing else
      for (const int64_t other : std::set<int64_t>(sizes.begin(), sizes.end()))
        if (other != from && other > 1) rescale(g, other, 1, false, false);
    rescale(g, from, to, draw_.chance(40), draw_.chance(60));
  }
  return true;
}

std::unique_ptr<Graph> Generator::reset(const Graph& g) {
  auto out = g.clone();
  return reset_one(*out) ? valid(std::move(out)) : nullptr;
}

bool Generator::reset_one(Graph& g) {
  const std::vector<NodeId> nodes = g.order();
  const NodeId n = draw_.of(nodes);
  const OperatorSchema* schema = operator_schema(g.node(n));
  if (!schema) return false;
  for (const AttributeSchema& a : schema->attributes) {
    if (is_mode(g.node(n), a) && draw_.chance(50))
      if (auto to = propose_.attribute(g.node(n).op.text(), a, 0))
        g.set_attr(n, a.name, std::move(*to));
  }
  return true;
}

std::unique_ptr<Graph> Generator::moved(const Graph& g, const std::vector<Mutation>& changes) {
  auto out = g.clone();
  // Few of all changes are of the operator in one place, and one may be all that a way asks for.
  std::map<NodeId, std::vector<const Mutation*>> exchanges;
  for (const Mutation& m : changes)
    if (m.exchanged) exchanges[m.exchanged].push_back(&m);
  for (int64_t n = draw_.between(int64_t{1}, int64_t{3}); n > 0; --n) {
    const int64_t how = draw_.below(8);
    if (how < 1 && !exchanges.empty()) {
      draw_.of(std::next(exchanges.begin(), draw_.below(std::ssize(exchanges)))->second)
          ->apply(*out);
    } else if (how < 4 && !changes.empty()) {
      const Mutation& m = draw_.of(changes);
      m.apply(*out);
      if (m.last) break;
    } else if (how < 5) {
      if (!vary(*out)) return nullptr;
    } else if (how < 6) {
      if (!reset_one(*out)) return nullptr;
    } else if (!rescale_one(*out)) {
      return nullptr;
    }
  }
  return valid(std::move(out));
}

std::unique_ptr<Graph> Generator::changed(const Graph& g, const std::vector<Mutation>& changes) {
  std::vector<const Mutation*> all, of_operators;
  for (const Mutation& m : changes) (m.of_operator ? of_operators : all).push_back(&m);
  auto out = g.clone();
  for (int64_t n = draw_.between(int64_t{1}, int64_t{3}); n > 0; --n)
    if (const auto& from =
            all.empty() || (!of_operators.empty() && draw_.chance(70)) ? of_operators : all;
        !from.empty()) {
      const Mutation* m = draw_.of(from);
      m->apply(*out);
      if (m->last) break;
    }
  return valid(std::move(out));
}

uint64_t kind_of_operators(const Graph& g) {
  std::string text;
  for (ValueId v : g.inputs()) text += fmt::format("{};", name(g.value(v).type.dtype));
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    text += n.op.text();
    for (const auto& [key, a] : n.attrs.items())
      if (std::holds_alternative<std::string>(a)) text += "," + str(a);
    for (ValueId v : n.outputs) text += v ? fmt::format("-{}", name(g.value(v).type.dtype)) : "-";
  }
  return XXH3_64bits(text.data(), text.size());
}

uint64_t kind_of_instance(const Graph& g) {
  std::string text;
  std::map<ValueId, size_t>
      numbers;  // in the order in which they are read: which slot a value has says nothing
  auto number = [&](ValueId v) { return numbers.try_emplace(v, numbers.size()).first->second; };
  for (ValueId v : g.inputs())
    if (!g.value(v).uses.empty() || g.value(v).is_output)
      text += fmt::format("{}:{};", number(v), str(g.value(v).type));
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    text += n.op.text();
    for (const auto& [key, a] : n.attrs.items()) text += "," + key + "=" + str(a);
    for (ValueId v : n.inputs)
      text += v ? fmt::format("({}{}{})", number(v), g.constant(v) ? "!" : "", str(g.value(v).type))
                : "()";
    for (ValueId v : n.outputs)
      if (v) text += fmt::format(">{}{}", number(v), str(g.value(v).type));
  }
  for (ValueId v : g.outputs()) text += fmt::format("-{}", number(v));
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace ferrule
