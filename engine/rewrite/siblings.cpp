#include "engine/rewrite/siblings.h"

#include <algorithm>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "engine/match/pattern_matcher.h"
#include "engine/rule/expr.h"

namespace ferrule {
namespace {

/// What an input of a node is to its sibling.
struct Operand {
  enum class Kind : uint8_t { absent, over, inner, constant, other } kind = Kind::absent;
  int maker = -1;  ///< inner
  const Tensor* constant = nullptr;
  ValueId value;  ///< the outer graph's
};

Operand operand_of(const Graph& g, const Sibling& s, size_t node, size_t slot, ValueId over) {
  Operand o;
  const ValueId v = s.graph().input(s.nodes()[node], slot);
  if (!v) return o;
  if ((o.maker = s.maker(v)) >= 0) {
    o.kind = Operand::Kind::inner;
    return o;
  }
  o.value = s.outside(v);
  o.constant = g.constant(o.value);
  o.kind = o.value == over ? Operand::Kind::over
           : o.constant    ? Operand::Kind::constant
                           : Operand::Kind::other;
  return o;
}

/// The size of a constant along the result's axis: 1 where it does not reach so far.
int64_t along(const Tensor& t, const Joining& how) {
  const size_t before = how.rank - how.axis;  // axes from there to the end
  return t.dims().size() < before ? 1 : t.dims()[t.dims().size() - before];
}

/// Sizes along all other axes, from the last one, ones in front left out.
std::vector<int64_t> others(const Tensor& t, size_t skip_from_end) {
  std::vector<int64_t> out;
  for (size_t k = t.dims().size(); k-- > 0;)
    out.push_back(t.dims().size() - 1 - k == skip_from_end ? 1 : t.dims()[k]);
  while (!out.empty() && out.back() == 1) out.pop_back();
  return out;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims() &&
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

std::string constants_differ(const Tensor& a, const Tensor& b, size_t skip_from_end) {
  if (a.dtype() == b.dtype() && size_bits(a.dtype()) >= 8 &&
      others(a, skip_from_end) == others(b, skip_from_end))
    return {};
  auto text = [](const Tensor& t) {
    return str(Type{t.dtype(), Shape(t.dims().begin(), t.dims().end())});
  };
  return fmt::format("constants {} and {} cannot be joined", text(a), text(b));
}

/// Parts of equal sizes but along `axis`, which all have, one behind the other.
Tensor concatenated(const std::vector<Tensor>& parts, size_t axis) {
  std::vector<int64_t> dims = parts[0].dims();
  int64_t outer = 1, inner = size_bits(parts[0].dtype()) / 8;
  for (size_t k = 0; k < axis; ++k) outer *= dims[k];
  for (size_t k = axis + 1; k < dims.size(); ++k) inner *= dims[k];
  dims[axis] = 0;
  for (const Tensor& t : parts) dims[axis] += t.dims()[axis];
  auto [out, bytes] = Tensor::allocate(parts[0].dtype(), dims);
  char* to = static_cast<char*>(bytes);
  for (int64_t o = 0; o < outer; ++o)
    for (const Tensor& t : parts) {
      const int64_t size = t.dims()[axis] * inner;
      std::memcpy(to, static_cast<const char*>(t.data()) + o * size, static_cast<size_t>(size));
      to += size;
    }
  return out;
}

Tensor reshaped(const Tensor& t, std::vector<int64_t> dims) {
  auto [out, bytes] = Tensor::allocate(t.dtype(), std::move(dims));
  std::memcpy(bytes, t.data(), static_cast<size_t>(t.bytes()));
  return out;
}

Tensor zeros(DType t, std::vector<int64_t> dims) {
  auto [out, bytes] = Tensor::allocate(t, std::move(dims));
  std::memset(bytes, 0, static_cast<size_t>(out.bytes()));
  return out;
}

/// Under `rank` axes, as long as `size` along `axis`.
Tensor spread(const Tensor& t, size_t rank, size_t axis, int64_t size) {
  std::vector<int64_t> dims(rank, 1);
  std::copy(t.dims().begin(), t.dims().end(), dims.end() - std::ssize(t.dims()));
  Tensor one = reshaped(t, dims);
  if (dims[axis] == size) return one;
  dims[axis] = size;
  if (size == 0) return zeros(t.dtype(), std::move(dims));
  return concatenated(std::vector<Tensor>(static_cast<size_t>(size), one), axis);
}

}  // namespace

ValueId Sibling::outside(ValueId v) const {
  const Node& n = outer_->node(id_);
  if (!n.body) return v;
  const auto& inputs = n.body->inputs();
  for (size_t k = 0; k < inputs.size(); ++k)
    if (inputs[k] == v) return n.inputs[k];
  return {};
}

int Sibling::maker(ValueId v) const {
  const NodeId p = graph().value(v).producer;
  auto it = std::ranges::find(nodes_, p);
  return p && it != nodes_.end() ? static_cast<int>(it - nodes_.begin()) : -1;
}

std::string unlike(const Graph& g, const Sibling& a, const Sibling& b, const Joining& how) {
  if (a.nodes().size() != b.nodes().size()) return "one has more operators than the other";
  for (const Sibling* s : {&a, &b})
    if (const Type& t = g.value(s->result()).type; t.rank() != static_cast<int>(how.rank))
      return fmt::format("{} has another rank", value_text(g, s->result()));
  for (size_t k = 0; k < a.nodes().size(); ++k) {
    const Node &x = a.graph().node(a.nodes()[k]), &y = b.graph().node(b.nodes()[k]);
    if (x.op != y.op || x.domain != y.domain)
      return fmt::format("{} in one, {} in the other", escape(x.op), escape(y.op));
    if (x.outputs.size() != 1 || y.outputs.size() != 1) return "several results";
    if (!x.subgraphs.empty() || !y.subgraphs.empty()) return "nested graphs";
    for (const auto& [name, value] : x.attrs.items())
      if (const Attr* other = y.attrs.find(name); !other || !same_attr(value, *other))
        return fmt::format("attribute {} of {} differs", escape(name), escape(x.op));
    if (x.attrs.items().size() != y.attrs.items().size())
      return fmt::format("attributes of {} differ", escape(x.op));
    for (size_t s = 0; s < std::max(x.inputs.size(), y.inputs.size()); ++s) {
      using Kind = Operand::Kind;
      const Operand p = operand_of(g, a, k, s, how.over), q = operand_of(g, b, k, s, how.over);
      for (const Operand* o : {&p, &q})
        if (o->kind == Kind::other)
          return fmt::format("{} is read by one of them and computed", value_text(g, o->value));
      const bool filled = k == 0 && how.fill.contains(s) &&
                          (p.kind == Kind::absent || q.kind == Kind::absent) &&
                          (p.kind == Kind::constant || q.kind == Kind::constant);
      if (filled) continue;
      if ((p.kind == Kind::absent) != (q.kind == Kind::absent))
        return fmt::format("one of them has no input {} of {}{}", s, escape(x.op),
                           k == 0 ? ", which would be zero where the rule's fill lists it" : "");
      if (p.kind != q.kind || p.maker != q.maker)
        return fmt::format("input {} of {} differs in kind", s, escape(x.op));
      if (p.kind != Kind::constant) continue;
      size_t from_end = how.rank - how.axis - 1;
      if (auto w = how.weights.find(s); k == 0 && w != how.weights.end()) {
        if (p.constant->dims().size() != q.constant->dims().size() ||
            w->second >= p.constant->dims().size())
          return fmt::format("input {} of {} has another rank", s, escape(x.op));
        from_end = p.constant->dims().size() - 1 - w->second;
      }
      if (std::string why = constants_differ(*p.constant, *q.constant, from_end); !why.empty())
        return why;
    }
  }
  return {};
}

std::optional<Tensor> joined_constant(const Graph& g, const std::vector<Sibling>& all, size_t node,
                                      size_t slot, const Joining& how,
                                      const std::vector<int64_t>& sizes) {
  std::vector<const Tensor*> own;
  const Tensor* some = nullptr;
  for (const Sibling& s : all) {
    own.push_back(operand_of(g, s, node, slot, how.over).constant);
    if (own.back()) some = own.back();
  }
  if (!some) return std::nullopt;
  const auto w = how.weights.find(slot);
  const bool weight = node == 0 && w != how.weights.end();
  std::vector<Tensor> parts;
  if (weight) {
    for (size_t k = 0; k < own.size(); ++k) {
      std::vector<int64_t> dims = some->dims();
      dims[w->second] = sizes[k];
      parts.push_back(own[k] ? *own[k] : zeros(some->dtype(), dims));
    }
    const auto join = [&] { return concatenated(parts, w->second); };
    MadeConstants* made = g.made_constants();
    return made ? made->get(fmt::format("join {}", w->second), parts, join) : join();
  }
  const bool shared = std::ranges::all_of(
      own, [&](const Tensor* t) { return t && same_bytes(*t, *some) && along(*t, how) == 1; });
  if (shared) return *some;
  size_t rank = how.rank - how.axis;
  for (const Tensor* t : own)
    if (t) rank = std::max(rank, t->dims().size());
  const size_t axis = rank - (how.rank - how.axis);
  std::vector<int64_t> none = some->dims();  // what a part without the constant reads
  none.insert(none.begin(), rank - none.size(), 1);
  none[axis] = 1;
  for (size_t k = 0; k < own.size(); ++k)
    parts.push_back(spread(own[k] ? *own[k] : zeros(some->dtype(), none), rank, axis, sizes[k]));
  return concatenated(parts, axis);
}

}  // namespace ferrule
