#include "engine/semantics/region_key.h"

#include <algorithm>
#include <bit>

namespace ferrule {
namespace {

constexpr size_t kLargest = 32;  // nodes; larger regions are few

class KeyWriter {
 public:
  KeyWriter(const Semantics& ops, const Graph& g) : ops_(ops), g_(g) {}

  RegionKey write(std::span<const NodeId> nodes, std::span<const ValueId> outputs) {
    if (nodes.size() > kLargest) return {};
    key_.text.reserve(256 * nodes.size() + 32);
    key_.values.reserve(4 * nodes.size());
    for (NodeId id : nodes)
      if (!node(g_.node(id))) return {};
    number(outputs.size());
    for (ValueId v : outputs) value(v);
    return std::move(key_);
  }

 private:
  void number(uint64_t x) { key_.text.append(reinterpret_cast<const char*>(&x), sizeof x); }
  void text(std::string_view s) {
    number(s.size());
    key_.text += s;
  }

  bool node(const Node& n) {
    const OpFormula* f = ops_.find(n);
    if (!f || !f->pointwise()) return false;
    number(reinterpret_cast<uintptr_t>(f));  // the table's own, and so is what is kept
    number(n.attrs.items().size());
    for (const auto& [name, a] : n.attrs.items())
      if (!attribute(name, a)) return false;
    number(n.inputs.size());
    for (ValueId v : n.inputs)
      if (!value(v)) return false;
    return n.outputs.size() == 1 && n.outputs[0] && value(n.outputs[0]);
  }

  bool attribute(std::string_view name, const Attr& a) {
    text(name);
    number(a.index());
    if (const auto* i = std::get_if<int64_t>(&a)) return number(static_cast<uint64_t>(*i)), true;
    if (const auto* d = std::get_if<double>(&a)) return number(std::bit_cast<uint64_t>(*d)), true;
    if (const auto* s = std::get_if<std::string>(&a)) return text(*s), true;
    return false;
  }

  /// Its number; where it is met first also its type, and what it is if it is one number.
  bool value(ValueId v) {
    if (!v) return number(UINT64_MAX), true;
    const auto at = std::ranges::find(key_.values, v);
    number(static_cast<uint64_t>(at - key_.values.begin()));
    if (at != key_.values.end()) return true;
    key_.values.push_back(v);
    number(static_cast<uint64_t>(g_.value(v).type.dtype));
    const Tensor* t = g_.constant(v);
    if (!t || t->numel() != 1) return number(UINT64_MAX), true;
    const DType type = t->dtype();
    if (!is_float(type) && !is_int(type) && type != DType::boolean) return false;
    number(static_cast<uint64_t>(type));
    number(is_float(type) ? std::bit_cast<uint64_t>(t->at_f64(0))
                          : static_cast<uint64_t>(t->at_i64(0)));
    return true;
  }

  const Semantics& ops_;
  const Graph& g_;
  RegionKey key_;
};

}  // namespace

RegionKey region_key(const Semantics& ops, const Graph& g, std::span<const NodeId> nodes,
                     std::span<const ValueId> outputs) {
  return KeyWriter(ops, g).write(nodes, outputs);
}

}  // namespace ferrule
