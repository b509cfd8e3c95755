#include "engine/semantics/infer.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "engine/base/join.h"
#include "engine/graph/operator_name.h"
#include "engine/semantics/infer_formula.h"
#include "engine/semantics/infer_impl.h"

namespace ferrule {
namespace infer_detail {

std::string place(const Node& n) {
  std::string op = n.domain.empty() || n.body ? n.op.text() : n.domain + "." + n.op.text();
  return fmt::format("node \"{}\" ({})", escape(n.name, 100), escape(op, 100));
}

tl::unexpected<Error> InferenceContext::wrong(const std::string& what) const {
  return error(Code::bad_shape, place(n), what);
}

std::optional<std::vector<int64_t>> InferenceContext::ints(size_t i) const {
  if (const Tensor* t = g.constant(id(i)); t && is_int(t->dtype()) && t->numel() <= (1 << 20))
    return t->to_i64();
  auto c = contents(i);
  return c ? constant_shape(*c) : std::nullopt;
}

Result<size_t> InferenceContext::axis(int64_t a, size_t rank) const {
  int64_t r = static_cast<int64_t>(rank);
  if (a < -r || a >= r) return wrong(fmt::format("axis {} is out of range for rank {}", a, r));
  return static_cast<size_t>(a < 0 ? a + r : a);
}

Result<std::vector<size_t>> InferenceContext::axes(const std::vector<int64_t>& a,
                                                   size_t rank) const {
  std::vector<size_t> out;
  for (int64_t x : a) {
    FERRULE_ASSIGN(size_t k, axis(x, rank));
    if (contains(out, k)) return wrong(fmt::format("axis {} is given twice", x));
    out.push_back(k);
  }
  return out;
}

Dim min(const Dim& a, const Dim& b) { return Dim(0) - max(Dim(0) - a, Dim(0) - b); }

Shape unknown_shape(size_t rank) {
  Shape s;
  for (size_t i = 0; i < rank; ++i) s.push_back(Dim::unknown());
  return s;
}

const Rule* find_rule(const Node& n) {
  static const Table kTable = [] {
    Table t;
    add_window_rules(t);
    add_movement_rules(t);
    add_select_rules(t);
    add_recurrent_rules(t);
    return t;
  }();
  if (!n.domain.empty()) return nullptr;
  auto it = kTable.find(operator_name(n.op));
  return it == kTable.end() ? nullptr : &it->second;
}

}  // namespace infer_detail

namespace {

using namespace infer_detail;

/// A group's types are those of its body under the group's input types.
Result<Inferred> infer_group(const Semantics& ops, const Graph& g, const Node& n) {
  const Graph* body = n.body.get();
  std::unique_ptr<Graph> changed;
  for (size_t i = 0; i < n.inputs.size() && i < body->inputs().size(); ++i) {
    if (!n.inputs[i]) continue;
    ValueId inner = body->inputs()[i];
    const Type& outside = g.value(n.inputs[i]).type;
    const Type& inside = body->value(inner).type;
    if (outside.dtype == inside.dtype && outside.shape == inside.shape) continue;
    if (!changed) changed = body->clone();
    changed->set_type(inner, outside);
    changed->set_contents(inner, contents_of(g, n.inputs[i]));
  }
  if (changed) {
    FERRULE_TRY(infer_all(ops, *changed));
    body = changed.get();
  }
  Inferred out;
  for (size_t i = 0; i < n.outputs.size(); ++i) {
    const Value& v = body->value(body->outputs()[i]);
    out.types.push_back(v.type);
    out.contents.push_back(v.contents);
  }
  return out;
}

/// Whether the dim says nothing: a lone unknown.
bool is_unknown(const Dim& d) {
  return !d.is_constant() && d.str().front() == '?' &&
         d.str().find_first_of("+*-") == std::string::npos;
}

/// Whether the type holds that number: contents are computed as if nothing wrapped around or was
/// rounded. What a size computes to fits where sizes do.
bool holds(DType t, const Dim& d) {
  if (is_float(t)) {
    const int precision = t == DType::f64    ? 53
                          : t == DType::f32  ? 24
                          : t == DType::f16  ? 11
                          : t == DType::bf16 ? 8
                                             : 0;
    const int64_t most = int64_t{1} << precision;
    return d.is_constant() ? d.value_or(0) <= most && d.value_or(0) >= -most : precision >= 24;
  }
  if (!is_int(t)) return true;
  const int bits = size_bits(t) - is_signed_int(t);
  if (!d.is_constant())
    return bits >= 31 && (is_signed_int(t) || at_least(d, Dim(0)) == Truth::yes);
  const int64_t v = d.value_or(0), most = bits >= 63 ? INT64_MAX : (int64_t{1} << bits) - 1;
  return v <= most && v >= (is_signed_int(t) ? -most - 1 : 0);
}

void drop_what_wraps(Inferred& r) {
  for (size_t i = 0; i < r.contents.size() && i < r.types.size(); ++i)
    if (r.contents[i] && !std::ranges::all_of(*r.contents[i], [&](const Dim& d) {
          return holds(r.types[i].dtype, d);
        }))
      r.contents[i].reset();
}

/// What is declared (or was inferred before) and what follows from the inputs, together.
Result<Type> merge(const Type& declared, const Type& inferred, const Node& n,
                   const std::string& value) {
  Type out = inferred;
  auto clash = [&] {
    return error(Code::bad_shape, place(n),
                 fmt::format("its output \"{}\" is declared {} but computes to {}",
                             escape(value, 100), str(declared), str(inferred)));
  };
  if (out.dtype == DType::undefined) out.dtype = declared.dtype;
  if (declared.dtype != DType::undefined && out.dtype != declared.dtype) return clash();
  if (!declared.shape) return out;
  if (!out.shape) {
    out.shape = declared.shape;
    return out;
  }
  if (out.shape->size() != declared.shape->size()) return clash();
  for (size_t i = 0; i < out.shape->size(); ++i) {
    Dim& have = (*out.shape)[i];
    const Dim& want = (*declared.shape)[i];
    if (have.is_constant() && want.is_constant() && !(have == want)) return clash();
    if (is_unknown(have)) have = want;
  }
  return out;
}

}  // namespace

std::optional<std::vector<Dim>> contents_of(const Graph& g, ValueId v) {
  if (!v) return std::nullopt;
  const Value& value = g.value(v);
  if (!value.constant) return value.contents;
  const Tensor& t = *value.constant;
  if (t.numel() > kMaxContents || size_bits(t.dtype()) == 0) return std::nullopt;
  if (is_int(t.dtype()) || t.dtype() == DType::boolean) {
    std::vector<int64_t> i = t.to_i64();
    return std::vector<Dim>(i.begin(), i.end());
  }
  // Sizes are often computed in floats; whole numbers stay exact there.
  if (!is_float(t.dtype())) return std::nullopt;
  std::vector<Dim> out;
  for (double d : t.to_f64()) {
    if (d != std::floor(d) || std::fabs(d) > 0x1p24) return std::nullopt;
    out.push_back(static_cast<int64_t>(d));
  }
  return out;
}

void bind_captures(const Graph& g, const Node& n) {
  for (const auto& [key, sub] : n.subgraphs)
    each_capture(*sub, [&](ValueId id, const Value& v) {
      const ValueId outer = v.outer;
      sub->set_type(id, g.value(outer).type);
      sub->set_contents(id, contents_of(g, outer));
    });
}

Result<Inferred> infer_node(const Semantics& ops, const Graph& g, const Node& n) {
  if (n.body) return infer_group(ops, g, n);
  InferenceContext c{ops, g, n, {}};
  c.out.types.resize(n.outputs.size());
  c.out.contents.resize(n.outputs.size());
  auto done = [&] {
    c.out.types.resize(n.outputs.size());
    c.out.contents.resize(n.outputs.size());
    derive_contents(c);
    drop_what_wraps(c.out);
    return std::move(c.out);
  };
  if (const Rule* rule = find_rule(n)) {
    FERRULE_TRY((*rule)(c));
    return done();
  }
  if (ops.pointwise(n)) {
    FERRULE_ASSIGN(c.out.types[0], infer_pointwise(ops, g, n));
    return done();
  }
  if (const OpFormula* row = ops.find(n)) {
    FERRULE_ASSIGN(c.out.types[0], infer_row(*row, g, n));
    return done();
  }
  FERRULE_ASSIGN(c.out, ops.infer_by_schema(g, n));
  return done();
}

Status infer(const Semantics& ops, Graph& g, NodeId id) {
  bind_captures(g, g.node(id));
  FERRULE_ASSIGN(Inferred r, infer_node(ops, g, g.node(id)));
  const Node& n = g.node(id);
  for (size_t i = 0; i < n.outputs.size(); ++i) {
    ValueId v = n.outputs[i];
    if (!v) continue;
    FERRULE_ASSIGN(Type type, merge(g.value(v).type, r.types[i], n, g.value(v).name));
    // Contents of another size than the type are no contents.
    if (r.contents[i] && type.shape) {
      Dim count = product(*type.shape);
      if (!(count == Dim(static_cast<int64_t>(r.contents[i]->size())))) r.contents[i].reset();
    }
    g.set_type(v, std::move(type));
    g.set_contents(v, std::move(r.contents[i]));
  }
  return {};
}

Status infer_all(const Semantics& ops, Graph& g) {
  FERRULE_TRY(g.sort());
  for (NodeId n : g.order()) FERRULE_TRY(infer(ops, g, n));
  return {};
}

Status infer_nested(const Semantics& ops, Graph& g) {
  FERRULE_TRY(g.sort());
  for (NodeId n : g.order()) {
    Status status = infer(ops, g, n);
    if (!status && status.error().code != Code::bad_shape &&
        status.error().code != Code::bad_attribute)
      return status;
  }
  return {};
}

namespace {

/// Sizes repeat themselves from value to value: each expression is worked out once.
class Substitution {
 public:
  explicit Substitution(const std::map<std::string, int64_t>& symbols) : symbols_(symbols) {}
  const Dim& operator()(const Dim& d) {
    if (d.is_constant()) return d;
    auto [it, fresh] = known_.try_emplace(d);
    if (fresh) it->second = d.substitute(symbols_);
    return it->second;
  }

 private:
  struct Hash {
    size_t operator()(const Dim& d) const { return d.hash(); }
  };
  const std::map<std::string, int64_t>& symbols_;
  std::unordered_map<Dim, Dim, Hash> known_;
};

void substitute(Graph& g, Substitution& known) {
  for (ValueId id : g.values()) {
    const Value& v = g.value(id);
    if (v.type.shape && !std::ranges::all_of(*v.type.shape, &Dim::is_constant)) {
      Type t = v.type;
      for (Dim& d : *t.shape) d = known(d);
      g.set_type(id, std::move(t));
    }
    if (v.contents) {
      auto c = v.contents;
      for (Dim& d : *c) d = known(d);
      g.set_contents(id, std::move(c));
    }
  }
  for (NodeId n : g.order())
    for (const auto& [key, sub] : g.node(n).subgraphs) substitute(*sub, known);
}

}  // namespace

Status fix_shapes(const Semantics& ops, Graph& g,
                  const std::map<std::string, std::vector<int64_t>>& inputs) {
  std::map<std::string, int64_t> symbols;
  auto text = [](const std::vector<int64_t>& dims) { return str(Shape(dims.begin(), dims.end())); };
  for (const auto& [name, dims] : inputs) {
    ValueId v = g.find_value(name);
    if (!v || !g.value(v).is_input) {
      auto known = [&](ValueId i) { return escape(g.value(i).name, 60); };
      return error(Code::unknown_input, "", escape(name), joined(g.inputs(), known));
    }
    Type type = g.value(v).type;
    if (!is_tensor(type.dtype)) continue;
    auto clash = [&] {
      return error(Code::input_mismatch, "", escape(name), text(dims), str(g.value(v).type));
    };
    for (int64_t d : dims)
      if (d < 0) return clash();
    if (type.shape && type.shape->size() != dims.size()) return clash();
    if (!type.shape) type.shape = Shape(dims.begin(), dims.end());
    for (size_t i = 0; i < dims.size(); ++i) {
      const Dim& d = (*type.shape)[i];
      if (d.is_constant() && d.constant() != dims[i]) return clash();
      if (d.is_constant()) continue;
      // A lone symbol gets its value; an expression must come out right once all have theirs.
      std::string symbol = d.str();
      if (d == Dim::symbol(symbol)) {
        auto [it, fresh] = symbols.try_emplace(symbol, dims[i]);
        if (!fresh && it->second != dims[i])
          return error(
              Code::input_mismatch, "", escape(name), text(dims),
              fmt::format("{} with {} = {}", str(g.value(v).type), escape(symbol), it->second));
      }
    }
  }
  for (const auto& [name, dims] : inputs) {
    ValueId v = g.find_value(name);
    Type type = g.value(v).type;
    if (!is_tensor(type.dtype)) continue;
    for (size_t i = 0; type.shape && i < dims.size(); ++i) {
      auto got = (*type.shape)[i].evaluate(symbols);
      if (got && *got != dims[i])
        return error(Code::input_mismatch, "", escape(name), text(dims), str(type));
    }
    type.shape = Shape(dims.begin(), dims.end());
    g.set_type(v, std::move(type));
  }
  Substitution known(symbols);
  substitute(g, known);
  return infer_all(ops, g);
}

}  // namespace ferrule
