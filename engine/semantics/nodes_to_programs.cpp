#include "engine/semantics/nodes_to_programs.h"

#include <algorithm>
#include <bit>
#include <map>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/region_programs.h"

namespace ferrule {
namespace {

/// What lower_region's program depends on, and the region's values in the order that they are met.
struct RegionKey {
  std::string text;  ///< empty: not to be kept
  std::vector<ValueId> values;
};

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

std::string operand_name(const OpFormula& f, size_t slot) {
  size_t k = std::min(slot, f.inputs.size() - 1);
  std::string name(input_name(f.inputs[k]));
  return is_variadic(f.inputs[k]) ? name + std::to_string(slot - k) : name;
}

}  // namespace

Applicable<const OpFormula*> pointwise_formula(const Semantics& ops, const Node& n) {
  const OpFormula* f = ops.find(n);
  if (!f || !f->pointwise())
    return not_applicable(node_place(n), escape(n.op), "it has no formula");
  if (n.inputs.size() > f->inputs.size() && !is_variadic(f->inputs.back()))
    return error(Code::formula_invalid, node_place(n),
                 fmt::format("{} has {}, its formula {}", f->op, counted(n.inputs.size(), "input"),
                             f->inputs.size()),
                 "");
  return f;
}

Result<LoweredNode> lower_node(const OpFormula& f, const Node& n, std::span<const DType> types,
                               bool f64, const std::function<const Tensor*(size_t)>& constant) {
  FERRULE_ASSIGN(LoweringInput in, lowering_input(f, n, types, f64));
  LoweredNode out;
  ProgramBuilder b;
  for (size_t k = 0; k < in.operands.size(); ++k) {
    LoweringOperand& o = in.operands[k];
    if (!o.present() || !f.reads(k)) continue;
    const Tensor* t = constant ? constant(k) : nullptr;
    uint32_t id = t && t->numel() == 1 ? immediate(b, *t) : b.input(o.type, operand_name(f, k));
    if (!t || t->numel() != 1) out.input_slots.push_back(k);
    o.get = [id] { return id; };
  }
  FERRULE_ASSIGN(uint32_t result, lower_formula(in, b));
  b.output(result);
  out.program = b.take();
  return out;
}

Applicable<LoweredNode> lower_node(const Semantics& ops, const Graph& g, const Node& n,
                                   bool immediates) {
  FERRULE_ASSIGN(const OpFormula* f, pointwise_formula(ops, n));
  std::vector<DType> types;
  for (ValueId v : n.inputs) types.push_back(v ? g.value(v).type.dtype : DType::undefined);
  auto constant = [&](size_t k) { return g.constant(n.inputs[k]); };
  return lower_node(*f, n, types, false,
                    immediates ? std::function<const Tensor*(size_t)>(constant) : nullptr);
}

Applicable<uint32_t> lower_in_region(const Semantics& ops, const Graph& g, const Node& n,
                                     ProgramBuilder& out,
                                     const std::function<uint32_t(size_t, ValueId)>& value) {
  FERRULE_ASSIGN(const OpFormula* f, pointwise_formula(ops, n));
  std::vector<DType> types;
  for (ValueId v : n.inputs) types.push_back(v ? g.value(v).type.dtype : DType::undefined);
  FERRULE_ASSIGN(LoweringInput in, lowering_input(*f, n, types, false));
  for (size_t k = 0; k < n.inputs.size(); ++k)
    in.operands[k].get = [&value, k, v = n.inputs[k]] { return value(k, v); };
  in.round_result = false;
  return lower_formula(in, out);
}

namespace {

Applicable<LoweredRegion> lower_fresh(const Semantics& ops, const Graph& g,
                                      std::span<const NodeId> nodes,
                                      std::span<const ValueId> outputs) {
  LoweredRegion region;
  ProgramBuilder b;
  std::map<ValueId, uint32_t>
      known;  // interior values stay in the compute type: rounded once, at the end
  auto value = [&](ValueId v) {
    if (auto it = known.find(v); it != known.end()) return it->second;
    uint32_t id = 0;
    if (const Tensor* t = g.constant(v); t && t->numel() == 1) {
      id = immediate(b, *t);
    } else {
      id = b.input(g.value(v).type.dtype, fmt::format("in{}", region.inputs.size()));
      region.inputs.push_back(v);
    }
    return known.emplace(v, id).first->second;
  };
  for (NodeId id : nodes) {
    FERRULE_ASSIGN(
        uint32_t result,
        lower_in_region(ops, g, g.node(id), b, [&value](size_t, ValueId v) { return value(v); }));
    known[g.output(id)] = result;
  }
  for (ValueId v : outputs) {
    auto it = known.find(v);
    if (it == known.end())
      return error(Code::formula_invalid, fmt::format("value \"{}\"", escape(g.value(v).name)),
                   std::string("an output of a region that no node of it makes"), "");
    b.output(b.cast(it->second, g.value(v).type.dtype));
    region.outputs.push_back(v);
  }
  region.program = b.take();
  return region;
}

}  // namespace

Applicable<LoweredRegion> lower_region(const Semantics& ops, const Graph& g,
                                       std::span<const NodeId> nodes,
                                       std::span<const ValueId> outputs) {
  RegionPrograms* programs = ops.programs();
  RegionKey key = programs ? KeyWriter(ops, g).write(nodes, outputs) : RegionKey{};
  if (key.text.empty()) return lower_fresh(ops, g, nodes, outputs);
  if (auto known = programs->find(key.text)) {
    LoweredRegion region;
    region.program = known->program;
    for (uint32_t k : known->inputs) region.inputs.push_back(key.values[k]);
    region.outputs.assign(outputs.begin(), outputs.end());
    return region;
  }
  auto region = lower_fresh(ops, g, nodes, outputs);
  if (!region) return region;
  RegionPrograms::Known known{region->program, {}};
  for (ValueId v : region->inputs)
    known.inputs.push_back(
        static_cast<uint32_t>(std::ranges::find(key.values, v) - key.values.begin()));
  programs->add(std::move(key.text), std::move(known));
  return region;
}

}  // namespace ferrule
