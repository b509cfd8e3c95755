#include "engine/proof/node_draw.h"

#include <algorithm>

#include "engine/match/facts.h"
#include "engine/proof/values.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

/// For one node, and of these with the modes that were drawn for it.
constexpr int kTries = 28, kModeTries = 21;

std::vector<int64_t> constant_dims(const Shape& s) {
  std::vector<int64_t> out;
  for (const Dim& d : s) out.push_back(d.value_or(1));
  return out;
}

bool lists_only(const std::vector<DType>& types) {
  return !types.empty() &&
         std::ranges::all_of(types, [](DType t) { return t == DType::i64 || t == DType::i32; });
}

/// The attributes of an operator: ONNX's schema, else the formula's defaults.
std::vector<AttributeSchema> attributes_of(const Node& n, const Semantics& ops) {
  if (const OperatorSchema* s = operator_schema(n)) return s->attributes;
  std::vector<AttributeSchema> out;
  if (const OpFormula* f = ops.find(n))
    for (const auto& [name, usual] : f->attrs) {
      using Kind = AttributeSchema::Kind;
      const Kind kind = std::holds_alternative<int64_t>(usual)       ? Kind::integer
                        : std::holds_alternative<double>(usual)      ? Kind::real
                        : std::holds_alternative<std::string>(usual) ? Kind::text
                                                                     : Kind::other;
      out.push_back({kind, name, usual, false});
    }
  return out;
}

/// `n`: with its modes alone.
Proposer::Place place_of(const Node& n, size_t slot) {
  Proposer::Place out{fmt::format("{}:{}", n.op.text(), slot)};
  for (const auto& [key, value] : n.attrs.items())
    if (const auto* word = std::get_if<std::string>(&value))
      out.push_back(fmt::format("{}:{} {}={}", n.op.text(), slot, key, *word));
  return out;
}

}  // namespace

bool is_mode(const Node& n, const AttributeSchema& a) {
  using Kind = AttributeSchema::Kind;
  return a.kind == Kind::text || a.kind == Kind::real ||
         (a.kind == Kind::integer && !numbers_of(n.op.text(), a.name).empty());
}

bool sequence_lengths(const Node& n, size_t slot) {
  const OperatorSchema* s = operator_schema(n);
  return s && slot < s->inputs.size() && s->inputs[slot].name == "sequence_lens";
}

int64_t elements(const Shape& s) {
  constexpr int64_t kMany = int64_t{1} << 20;
  int64_t n = 1;
  for (const Dim& d : s) n = std::min(n * std::min<int64_t>(d.value_or(7), kMany), kMany);
  return n;
}

bool has_room(const Shape& s, int64_t times) {
  const int64_t all = elements(s);
  if (all <= times * kElements) return true;
  return all <= kMostElements &&
         std::ranges::any_of(s, [&](const Dim& d) { return d == Dim(all); });
}

bool well_typed(const Graph& g) {
  return std::ranges::all_of(g.order(), [&](NodeId id) {
    const Node& n = g.node(id);
    const OperatorSchema* s = operator_schema(n);
    std::map<std::string_view, DType> of_variable;
    if (s && n.inputs.size() > s->inputs.size() &&
        (s->inputs.empty() || !s->inputs.back().variadic))
      return false;
    for (size_t k = 0; s && k < s->inputs.size(); ++k)
      if (!s->inputs[k].optional && !s->inputs[k].variadic &&
          (k >= n.inputs.size() || !n.inputs[k]))
        return false;
    for (size_t k = 0; s && !s->inputs.empty() && k < n.inputs.size(); ++k) {
      const OperandSchema& o = s->inputs[std::min(k, s->inputs.size() - 1)];
      const DType t = n.inputs[k] ? g.value(n.inputs[k]).type.dtype : DType::undefined;
      if (t == DType::undefined || o.types.empty()) continue;
      if (!contains(o.types, t) || of_variable.try_emplace(o.variable, t).first->second != t)
        return false;
    }
    return true;
  });
}

// --- element types

std::vector<DType> NodeDraw::allowed(const Node& n, size_t slot) const {
  if (const OperatorSchema* s = operator_schema(n)) {
    if (s->inputs.empty()) return {};
    std::vector<DType> types = s->inputs[std::min(slot, s->inputs.size() - 1)].types;
    // Operands of less than a byte are made by operators alone: constants of them cannot be drawn.
    std::erase_if(types, [](DType t) { return size_bits(t) < 8; });
    return types;
  }
  const OpFormula* f = ops_.find(n);
  return f && slot == 0 ? f->types : std::vector<DType>();
}

/// Operands of one variable have one element type.
std::string NodeDraw::variable(const Node& n, size_t slot) const {
  const OperatorSchema* s = operator_schema(n);
  if (!s || s->inputs.empty()) return "T";
  const OperandSchema& o = s->inputs[std::min(slot, s->inputs.size() - 1)];
  return o.variadic && o.types.size() > 12 && o.variable == "V" ? "" : o.variable;
}

DType NodeDraw::element(const std::vector<DType>& allowed) {
  auto takes = [&](DType t) { return allowed.empty() || contains(allowed, t); };
  if (takes(world_.dtype) && draw_.chance(80)) return world_.dtype;
  if (takes(DType::f32) && draw_.chance(40)) return DType::f32;
  return allowed.empty() ? world_.dtype : draw_.of(allowed);
}

// --- operands

void NodeDraw::give(OperandDraw& o, Type type, std::optional<Tensor> contents) {
  // A caller's tensor has sizes of its own: that it has one which only a run finds out, nobody can
  // promise.
  if (type.shape)
    for (Dim& d : *type.shape)
      if (d.str().find('?') != std::string::npos) d = Dim::unknown();
  if (!o.value) {
    const std::string name = g_.fresh_name(o.name ? o.name->name : "k");
    o.value = contents ? g_.add_constant(name, std::move(*contents))
                       : g_.add_input(name, std::move(type));
  } else if (contents) {
    g_.set_constant(o.value, std::move(*contents));
  } else {
    g_.set_type(o.value, std::move(type));
  }
}

Shape NodeDraw::pattern_shape(const std::vector<DimPattern>& p, Sizes& sizes) {
  Shape out;
  for (const DimPattern& d : p) {
    switch (d.kind) {
      case DimPattern::Kind::constant:
        out.emplace_back(d.constant);
        break;
      case DimPattern::Kind::symbol:
        out.push_back(sizes
                          .try_emplace(d.symbol, world_.base.empty() || draw_.chance(40)
                                                     ? Dim(propose_.size())
                                                     : draw_.of(world_.base))
                          .first->second);
        break;
      case DimPattern::Kind::any:
        out.push_back(world_.base.empty() || draw_.chance(40) ? Dim(propose_.size())
                                                              : draw_.of(world_.base));
        break;
      case DimPattern::Kind::rest:
        for (int64_t k = draw_.below(3); k > 0; --k) out.emplace_back(propose_.size());
    }
  }
  return out;
}

/// Proposes a type for every operand that is free.
bool NodeDraw::types(const Node& n, std::vector<OperandDraw>& in, const std::vector<bool>& fresh,
                     Sizes& sizes) {
  std::map<std::string, DType> of_variable;
  std::vector<Shape> beside;
  for (size_t k = 0; k < in.size(); ++k) {
    if (!in[k].value || fresh[k]) continue;
    const Type& t = g_.value(in[k].value).type;
    const std::vector<DType> can = allowed(n, k);
    if (!can.empty() && !contains(can, t.dtype)) return false;
    if (const std::string var = variable(n, k);
        !var.empty() && of_variable.try_emplace(var, t.dtype).first->second != t.dtype)
      return false;
    if (t.shape) beside.push_back(*t.shape);
  }
  std::map<std::string_view, ValueId> named;  // x * x: one value
  int64_t listed = -1;
  for (size_t k = 0; k < in.size(); ++k) {
    OperandDraw& o = in[k];
    if (!fresh[k]) continue;
    if (o.name && !o.name->variadic) {
      if (auto it = named.find(o.name->name); it != named.end()) {
        o.value = it->second;
        continue;
      }
    }
    const std::vector<DType> can = allowed(n, k);
    const std::string var = variable(n, k);
    const Proposer::Place place = place_of(n, k);
    const auto it = of_variable.find(var);
    DType t = it != of_variable.end() && !var.empty() ? it->second : DType::undefined;
    if (t == DType::undefined || (!can.empty() && !contains(can, t))) t = element(can);
    of_variable.try_emplace(var, t);
    const bool was = static_cast<bool>(o.value), held = was && g_.constant(o.value);
    const bool lengths = sequence_lengths(n, k);
    const bool list = lists_only(can) && !(o.name && o.name->shape) && !lengths;
    const bool constant = was ? held : o.number || o.name->constant || draw_.chance(list ? 85 : 12);
    int way = -1;
    std::optional<Tensor> contents;
    Shape shape;
    if (o.number) {
      const double by = o.number->near ? 1 + o.number->rtol * draw_.between(-0.9, 0.9) : 1;
      contents = Tensor::scalar(
          t, o.number->number * by,
          std::vector<int64_t>(
              draw_.chance(75) ? 0 : static_cast<size_t>(draw_.between(int64_t{1}, int64_t{3})),
              1));
    } else if (list && constant) {
      contents = propose_.integers(t, beside.empty() ? world_.base : beside.front(), g_, place, way,
                                   listed);
      listed = contents->numel();
    } else {
      shape = o.name->shape ? pattern_shape(*o.name->shape, sizes)
                            : propose_.shape(world_, beside, place, way);
      if (shape.size() > kRank || !has_room(shape)) return false;
      if (constant && lengths && !beside.empty() && !beside.front().empty())
        contents = drawn_lengths(t, constant_dims(shape), beside.front()[0].value_or(1), draw_);
      else if (constant)
        contents = propose_.contents(t, constant_dims(shape), g_);
    }
    if (way >= 0) ways_.emplace_back(place, way);
    if (contents) {
      shape.clear();
      for (int64_t d : contents->dims()) shape.emplace_back(d);
    }
    give(o, Type{t, shape}, std::move(contents));
    if (o.name) named[o.name->name] = o.value;
    beside.push_back(std::move(shape));
  }
  return true;
}

// --- attributes

/// Modes, flags and numbers that the pattern leaves open. They are drawn once for a node, before
/// its operands: what one mode alone reads (the region of a Resize) is seldom right by chance, and
/// modes drawn with the operands would be those that ask for nothing.
Attrs NodeDraw::modes(const Node& n, const PatternExpr& e) {
  Attrs out;
  if (!e.any_attrs || draw_.chance(25)) return out;
  for (const AttributeSchema& a : attributes_of(n, ops_))
    if (!a.required && is_mode(n, a) &&
        std::ranges::find(e.attrs, a.name, &AttrPattern::name) == e.attrs.end() &&
        draw_.chance(a.kind == AttributeSchema::Kind::text ? 70 : 50))
      if (auto v = propose_.attribute(n.op.text(), a, 0)) out.set(a.name, std::move(*v));
  return out;
}

/// The groups that the filters of a convolution have, if more than one.
std::optional<int64_t> NodeDraw::groups(const Node& n) const {
  if (n.inputs.size() < 2 || !n.inputs[0] || !n.inputs[1]) return std::nullopt;
  const auto &x = g_.value(n.inputs[0]).type.shape, &w = g_.value(n.inputs[1]).type.shape;
  if (!x || !w || x->size() < 3 || w->size() != x->size()) return std::nullopt;
  const int64_t channels = (*x)[1].value_or(0), of_one = (*w)[1].value_or(0);
  if (of_one < 1 || channels % of_one || channels <= of_one) return std::nullopt;
  return channels / of_one;
}

/// Beside the modes.
bool NodeDraw::attributes(Node& n, const PatternExpr& e, Bound& attrs, int rank, int attempt) {
  Bound bound = attrs;
  const bool plain = attempt % 3 == 2 || draw_.chance(30);
  for (const AttributeSchema& a : attributes_of(n, ops_)) {
    const auto p = std::ranges::find(e.attrs, a.name, &AttrPattern::name);
    const bool open = p == e.attrs.end()
                          ? e.any_attrs
                          : p->kind == AttrPattern::Kind::bind && !bound.contains(p->bind);
    if (const auto g = a.name == "group" && open && draw_.chance(80) ? groups(n) : std::nullopt) {
      n.attrs.set(a.name, *g);
      if (p != e.attrs.end()) bound.insert_or_assign(p->bind, *g);
      continue;
    }
    if (p == e.attrs.end()) {
      if (a.required || (e.any_attrs && !plain && !is_mode(n, a) && draw_.chance(35)))
        if (auto v = propose_.attribute(n.op.text(), a, rank)) n.attrs.set(a.name, std::move(*v));
      continue;
    }
    if (p->kind == AttrPattern::Kind::literal) {
      n.attrs.set(a.name, p->literal);
      continue;
    }
    auto it = bound.find(p->bind);
    if (it == bound.end()) {
      auto v = !a.required && draw_.chance(30) ? a.usual : propose_.attribute(n.op.text(), a, rank);
      if (!v) v = a.usual;
      if (!v) return false;
      it = bound.emplace(p->bind, std::move(*v)).first;
    }
    n.attrs.set(a.name, it->second);
  }
  fill_defaults(n, ops_);
  return true;
}

// --- nodes

std::optional<std::vector<ValueId>> NodeDraw::finish(Node& n) {
  auto inferred = infer_node(ops_, g_, n);
  if (!inferred) return std::nullopt;
  for (size_t k = 0; k < n.outputs.size(); ++k) {
    if (k >= inferred->types.size() || !inferred->types[k].known()) return std::nullopt;
    if (inferred->types[k].shape->size() > kRank || !has_room(*inferred->types[k].shape, 2))
      return std::nullopt;
  }
  for (size_t k = 0; k < n.outputs.size(); ++k) {
    g_.set_type(n.outputs[k], inferred->types[k]);
    if (k < inferred->contents.size()) g_.set_contents(n.outputs[k], inferred->contents[k]);
  }
  std::vector<ValueId> out = n.outputs;
  g_.add_node(std::move(n));
  return out;
}

std::optional<std::vector<ValueId>> NodeDraw::add(Node n, std::vector<OperandDraw>& in,
                                                  size_t count, const PatternExpr& e, Bound& attrs,
                                                  Sizes& sizes) {
  std::vector<bool> fresh;
  for (const OperandDraw& o : in) fresh.push_back(o.free());
  for (OperandDraw& o : in)  // distinct names may stand for one value
    if (o.name && !o.name->shape && draw_.chance(7))
      for (ValueId v : g_.values())
        if (const Value& x = g_.value(v); !x.producer && x.type.known() &&
                                          (!o.name->constant || x.constant) && draw_.chance(40)) {
          o.value = v;
          fresh[&o - in.data()] = false;
          break;
        }
  for (size_t k = 0; k < count; ++k) n.outputs.push_back(g_.add_value(g_.fresh_name("t")));
  n.name = g_.fresh_name(n.op.text());
  const Attrs modes = this->modes(n, e);
  for (int attempt = 0; attempt < kTries; ++attempt) {
    n.attrs = attempt < kModeTries ? modes : Attrs();
    ways_.clear();
    Sizes local = sizes;
    if (!types(n, in, fresh, local)) continue;
    n.inputs.clear();
    for (const OperandDraw& o : in) n.inputs.push_back(o.value);
    while (!n.inputs.empty() && !n.inputs.back()) n.inputs.pop_back();
    const ValueId first = n.inputs.empty() ? ValueId{} : n.inputs[0];
    Bound bound = attrs;
    if (!attributes(n, e, bound,
                    first ? g_.value(first).type.rank() : static_cast<int>(world_.base.size()),
                    attempt))
      continue;
    auto made = finish(n);
    if (!made) {
      if (std::ranges::none_of(fresh, [](bool f) { return f; }) && attempt > 8) break;
      continue;
    }
    for (const auto& [place, way] : ways_) propose_.learned(place, way);
    for (const AttrPattern& p : e.attrs)
      if (p.kind == AttrPattern::Kind::bind)
        if (const Attr* a = g_.node(g_.value((*made)[0]).producer).attrs.find(p.name))
          attrs.try_emplace(p.bind, *a);
    sizes = std::move(local);
    return made;
  }
  return std::nullopt;
}

OperandDraw NodeDraw::alone(OperandDraw o) {
  if (o.number) {
    give(o, {}, Tensor::scalar(world_.dtype, o.number->number));
    return o;
  }
  Sizes none;
  const Shape shape = o.name->shape ? pattern_shape(*o.name->shape, none) : world_.base;
  std::optional<Tensor> contents;
  if (o.name->constant) contents = propose_.contents(world_.dtype, constant_dims(shape), g_);
  give(o, Type{world_.dtype, shape}, std::move(contents));
  return o;
}

ValueId NodeDraw::reader(const std::string& op, ValueId of) {
  const OperatorSchema* schema = operator_schema("", op);
  if (!schema || schema->inputs.empty() || schema->outputs.empty()) return {};
  static const PatternExpr kOpen = [] {
    PatternExpr e;
    e.any_attrs = true;
    return e;
  }();
  std::vector<size_t> slots;
  for (size_t k = 0; k < schema->inputs.size(); ++k)
    if (!schema->inputs[k].optional && schema->inputs[k].takes(g_.value(of).type.dtype))
      slots.push_back(k);
  if (slots.empty()) return {};
  const size_t slot = draw_.of(slots);
  const bool everywhere = draw_.chance(20);
  std::vector<PatternExpr> names(schema->inputs.size() + 1, kOpen);
  std::vector<OperandDraw> in;
  for (size_t k = 0; k < schema->inputs.size(); ++k) {
    names[k].name = "r" + std::to_string(k);
    if (k == slot || (everywhere && contains(slots, k)))
      in.push_back({of});
    else if (!schema->inputs[k].optional || draw_.chance(20))
      in.push_back(OperandDraw::of_name(names[k]));
    else
      in.push_back({});
  }
  if (schema->inputs.back().variadic && draw_.chance(50)) {
    names.back().name = "more";
    in.push_back(OperandDraw::of_name(names.back()));
  }
  Node n;
  n.op = op;
  Bound attrs;
  Sizes sizes;
  const auto made = add(std::move(n), in, 1, kOpen, attrs, sizes);
  return made ? (*made)[0] : ValueId{};
}

ValueId NodeDraw::producer(const std::string& op, Type type, std::optional<Attrs>& attrs) {
  const OperatorSchema* schema = operator_schema("", op);
  if (!schema || schema->inputs.empty()) return {};
  static const PatternExpr kOpen = [] {
    PatternExpr e;
    e.any_attrs = true, e.name = "p";
    return e;
  }();
  Node n;
  n.op = op;
  n.name = g_.fresh_name(op);
  n.outputs = {g_.add_value(g_.fresh_name("made"))};
  std::vector<OperandDraw> in;
  for (const OperandSchema& o : schema->inputs)
    if (!o.optional || draw_.chance(50))
      in.push_back(OperandDraw{{}, &kOpen, nullptr});
    else
      in.push_back({});
  std::vector<PatternExpr> names(in.size(), kOpen);
  for (size_t k = 0; k < in.size(); ++k) {
    names[k].name = "p" + std::to_string(k);
    if (in[k].name) in[k].name = &names[k];
  }
  const std::vector<bool> fresh = [&] {
    std::vector<bool> f;
    for (const auto& o : in) f.push_back(o.free());
    return f;
  }();
  const Attrs modes = this->modes(n, kOpen);
  for (int attempt = 0; attempt < kTries; ++attempt) {
    n.attrs = attempt < kModeTries ? modes : Attrs();
    Sizes sizes;
    Bound bound;
    if (!types(n, in, fresh, sizes)) continue;
    n.inputs.clear();
    for (const OperandDraw& o : in) n.inputs.push_back(o.value);
    while (!n.inputs.empty() && !n.inputs.back()) n.inputs.pop_back();
    if (attrs && attempt < kTries / 2)
      n.attrs = *attrs;
    else if (!attributes(n, kOpen, bound, type.rank(), attempt))
      continue;
    auto inferred = infer_node(ops_, g_, n);
    if (!inferred || inferred->types[0].dtype != type.dtype || !inferred->types[0].shape ||
        !same_shape(inferred->types[0], type))
      continue;
    g_.set_type(n.outputs[0], type);
    attrs = n.attrs;
    const ValueId made = n.outputs[0];
    g_.add_node(std::move(n));
    return made;
  }
  return {};
}

}  // namespace ferrule
