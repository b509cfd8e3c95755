#include "engine/contract/contracts.h"

#include <algorithm>
#include <array>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/contract/anchored.h"
#include "engine/contract/epilogue.h"
#include "engine/contract/quantized.h"
#include "engine/contract/region_pieces.h"
#include "engine/contract/window_chain.h"
#include "engine/rule/contract.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/row.h"

namespace ferrule {

using answer::no, answer::unknown, answer::yes;

namespace {

/// With movements: whether all of it can be written as boxes with constant strides.
Accept accepts_pieces(const Graph& g, std::span<const NodeId> nodes, const Semantics& ops) {
  std::vector<ValueId> results;
  for (NodeId id : nodes)
    for (ValueId v : g.node(id).outputs)
      if (v && (g.value(v).is_output || nodes.size() == 1)) results.push_back(v);
  auto region = lower_pieces(ops, g, nodes, results);
  return region ? yes() : no(region.error().reason());
}

/// Generated kernels take a bounded number of tensors; more than a rule's max_inputs only where one
/// node reads so many.
Accept few_operands(const Graph& g, std::span<const NodeId> nodes) {
  constexpr size_t kMost = 128;  // codegen/cpu/loop_nest.h's
  size_t slots = nodes.size();
  for (NodeId id : nodes) {
    const size_t own =
        g.node(id).inputs.size();  // each is a step of its formula, be they the same value
    if (own > kMost)
      return no(
          fmt::format("{} has {} operands, a kernel takes {}", escape(g.node(id).op), own, kMost));
    slots += own;
  }
  if (slots <= kMost) return yes();
  std::set<ValueId> operands;
  for (NodeId id : nodes)
    for (ValueId v : g.node(id).inputs)
      if (const Tensor* c = g.constant(v); v && !(c && c->numel() == 1)) operands.insert(v);
  for (NodeId id : nodes)
    for (ValueId v : g.node(id).outputs) {
      const bool result =
          v && (g.value(v).is_output || std::ranges::any_of(g.value(v).uses, [&](const Use& u) {
                  return std::ranges::find(nodes, u.node) == nodes.end();
                }));
      if (result || (v && g.value(v).uses.empty()))
        operands.insert(v);
      else
        operands.erase(v);
    }
  return operands.size() <= kMost
             ? yes()
             : no(fmt::format("{} operands, a kernel takes {}", operands.size(), kMost));
}

Accept has_type(const Graph& g, ValueId v, std::string_view contract, const Target& target) {
  const DType t = g.value(v).type.dtype;
  if (t == DType::undefined) return unknown("element type");
  if (std::ranges::count(target.facts_of(contract).types, t)) return yes();
  return no(fmt::format("{} has no {} kernel for {}", target.name, contract, name(t)));
}

/// Generated kernels: for the types of all that the nodes write and, where `reads` says so, read.
template <class Reads>
Accept generated(const Graph& g, std::span<const NodeId> nodes, std::string_view contract,
                 const Target& target, const Reads& reads) {
  if (!target.contracts.contains(std::string(contract)))
    return no(fmt::format("{} has no {} kernels", target.name, contract));
  if (Accept a = few_operands(g, nodes); a.truth != Truth::yes) return a;
  for (NodeId id : nodes) {
    const Node& n = g.node(id);
    for (size_t k = 0; k < n.inputs.size() + n.outputs.size(); ++k) {
      const bool input = k < n.inputs.size();
      const ValueId v = input ? n.inputs[k] : n.outputs[k - n.inputs.size()];
      if (!v || (input && !reads(n, k))) continue;
      if (Accept a = has_type(g, v, contract, target); a.truth != Truth::yes) return a;
    }
  }
  return yes();
}

/// Pointwise: every node a formula or a movement.
Accept accepts_pointwise(const Graph& g, std::span<const NodeId> nodes, const Target& target,
                         const Semantics& ops) {
  for (NodeId id : nodes)
    if (!ops.pointwise(g.node(id)) && !is_movement(g.node(id)))
      return no(fmt::format("{} is not pointwise", escape(g.node(id).op)));
  Accept a = generated(g, nodes, "pointwise", target, [](const Node& n, size_t k) {
    return !is_movement(n) || moves_input(n, k);
  });
  return a.truth == Truth::yes && any_movement(g, nodes) ? accepts_pieces(g, nodes, ops) : a;
}

/// Row operators over the same axes with pointwise neighbours: what can be lowered has a kernel.
Accept accepts_rows(const Graph& g, std::span<const NodeId> nodes, const Target& target,
                    const Semantics& ops) {
  std::vector<ValueId> outputs;
  for (NodeId id : nodes) {
    if (!ops.find(g.node(id))) return no(fmt::format("{} has no formula", escape(g.node(id).op)));
    const Value& y = g.value(g.node(id).outputs[0]);
    auto member = [&](const Use& u) { return std::ranges::count(nodes, u.node) > 0; };
    if (nodes.size() == 1 || y.is_output || !std::ranges::all_of(y.uses, member))
      outputs.push_back(g.node(id).outputs[0]);
  }
  Accept a = generated(g, nodes, "row_reduce", target,
                       [&](const Node& n, size_t k) { return ops.find(n)->reads(k); });
  if (a.truth != Truth::yes) return a;
  auto region = lower_rows(ops, g, nodes, outputs);
  return region ? yes() : no(region.error().reason());
}

/// Integers first, and a kernel for every step between conversions.
Accept accepts_quantized(const Graph& g, std::span<const NodeId> nodes, const Target& target,
                         const Semantics& ops) {
  auto steps = read_quantized(g, nodes, ops);
  if (!steps) return no(steps.error().reason());
  if (Accept a = has_type(g, g.input(steps->front().node, 0), "quantized", target);
      a.truth != Truth::yes)
    return a;
  for (const QuantizedStep& step : *steps) {
    if (step.conversion) continue;
    const std::string contract = contract_of(g, g.node(step.node), ops);
    const Contract* single =
        ops.contracts() ? ops.contracts()->of(g.node(step.node)).contract : nullptr;
    if (!single || contract == "view" || contract == "copy")
      return no(fmt::format("{} is no anchor", escape(g.node(step.node).op)));
    std::vector<NodeId> inner = {step.node};
    inner.insert(inner.end(), step.tail.begin(), step.tail.end());
    if (Accept a = accepts(g, inner, step.node, contract, target, ops); a.truth != Truth::yes)
      return a;
  }
  return yes();
}

/// Contracts that are made of all their nodes together.
struct Joint {
  std::string_view contract;
  Accept (*accepts)(const Graph&, std::span<const NodeId>, const Target&, const Semantics&);
};
constexpr Joint kJoint[] = {
    {"conv_pool", accepts_conv_pool},
    {"depthwise_pointwise", accepts_depthwise_pointwise},
    {"quantized", accepts_quantized},
};
const Joint* joint_of(std::string_view contract) {
  for (const Joint& j : kJoint)
    if (j.contract == contract) return &j;
  return nullptr;
}

}  // namespace

std::string contract_of(const Graph& g, const Node& n, const Semantics& ops) {
  if (n.body && !n.op.contract().empty()) return std::string(n.op.contract());
  if (const Contracts* all = ops.contracts())
    if (const Contract* single = all->of(n).contract) return single->id;
  if (ops.pointwise(n)) return "pointwise";
  if (ops.find(n)) return "row_reduce";
  (void)g;
  return "interpret";
}

bool is_joint_contract(std::string_view name) { return joint_of(name) != nullptr; }

Accept accepts(const Graph& g, std::span<const NodeId> nodes, NodeId anchor,
               std::string_view contract, const Target& target, const Semantics& ops,
               bool explain) {
  if (contract == "interpret") return yes();
  if (contract == "pointwise") return accepts_pointwise(g, nodes, target, ops);
  if (const Joint* joint = joint_of(contract)) return joint->accepts(g, nodes, target, ops);
  if (contract == "row_reduce") return accepts_rows(g, nodes, target, ops);
  return accepts_anchored(g, nodes, anchor, contract, target, ops, explain);
}

namespace {

bool all_are(const std::vector<int64_t>& v, int64_t wanted) {
  return std::all_of(v.begin(), v.end(), [&](int64_t x) { return x == wanted; });
}

/// The window as a target's `strided` names it; empty: none of them.
std::string window_kind(const Graph& g, const Node& conv) {
  const Type& w = g.value(conv.inputs[1]).type;
  auto dims = w.shape ? constant_shape(*w.shape) : std::nullopt;
  if (!dims || dims->size() < 3 || w.dtype != DType::f32) return {};
  if (!all_are(conv.attrs.ints("dilations"), 1)) return {};
  const int64_t group = conv.attrs.i("group", 1);
  if (group > 1)
    return group == (*dims)[0] && (*dims)[1] == 1 && dims->size() <= 4 ? "depthwise" : "";
  if (!all_are(conv.attrs.ints("strides"), 1)) return {};
  const std::vector<int64_t> window(dims->begin() + 2, dims->end());
  if (all_are(window, 1)) return all_are(conv.attrs.ints("pads"), 0) ? "1x1" : "";
  return window == std::vector<int64_t>{3, 3} ? "3x3" : "";
}

/// Whether each step of the tail is one of those named.
bool simple_tail(const Graph& g, std::span<const NodeId> nodes, NodeId anchor,
                 const ContractFacts& facts, const Semantics& ops) {
  std::vector<NodeId> tail;
  for (NodeId n : nodes)
    if (n != anchor) tail.push_back(n);
  if (tail.empty()) return true;
  const std::array<ValueId, 1> last{g.node(tail.back()).outputs[0]};
  auto region = lower_region(ops, g, tail, last);
  if (!region) return false;
  auto at = std::find(region->inputs.begin(), region->inputs.end(), g.node(anchor).outputs[0]);
  if (at == region->inputs.end()) return false;
  auto steps = to_post_ops(region->program, static_cast<uint32_t>(at - region->inputs.begin()),
                           Deviations::all);
  return steps && std::all_of(steps->begin(), steps->end(), [&](const PostOp& p) {
           const std::string name = p.kind == PostOp::Kind::sum ? "add" : std::string(p.alg);
           return std::find(facts.epilogues.begin(), facts.epilogues.end(), name) !=
                  facts.epilogues.end();
         });
}

}  // namespace

Accept accepts_strided(const Graph& g, const Node& n, int slot, std::optional<SliceForm> form,
                       const Target& target, const Semantics& ops) {
  const std::string contract = contract_of(g, n, ops);
  auto facts = target.contracts.find(contract);
  auto refuse = [&](std::string_view what) {
    return no(fmt::format("{} \"{}\" takes no slices{}{}", contract, escape(n.name),
                          what.empty() ? "" : ": ", what));
  };
  if (facts == target.contracts.end() || facts->second.strided.empty()) return refuse("");
  const auto has = [&](std::string_view what) {
    return std::find(facts->second.strided.begin(), facts->second.strided.end(), what) !=
           facts->second.strided.end();
  };
  if (has("any")) return yes();
  if (slot > 0) return refuse("only its first operand may be one");
  for (size_t k = 1; k < n.inputs.size(); ++k)
    if (n.inputs[k] && !g.constant(n.inputs[k])) return refuse("it reads two tensors");
  const Graph& body = n.body ? *n.body : g;
  std::vector<NodeId> nodes = n.body ? body.order() : std::vector<NodeId>{};
  NodeId anchor;
  for (NodeId id : nodes)
    if (!anchor && contract_of(body, body.node(id), ops) == contract) anchor = id;
  const Node& a = anchor ? body.node(anchor) : n;
  if (n.body && (!anchor || body.inputs().empty() || a.inputs[0] != body.inputs()[0]))
    return refuse("its anchor does not come first");
  if (body.value(a.inputs[0]).type.dtype != DType::f32) return refuse("only of f32");
  if (contract == "gemm") {
    if (form.value_or(SliceForm::rows) != SliceForm::rows || !has("rows"))
      return refuse("its rows must lie at one distance");
    if (a.attrs.i("transA") || !body.constant(a.inputs[1]) ||
        body.value(a.inputs[1]).type.rank() != 2)
      return refuse("only rows times constants");
    return yes();
  }
  const std::string kind = window_kind(body, a);
  if (form.value_or(SliceForm::pixels) != SliceForm::pixels)
    return refuse("its pixels must lie at one distance");
  if (kind.empty() || !has(kind)) return refuse("a window of this kind");
  if (kind != "1x1" && anchor && !simple_tail(body, nodes, anchor, facts->second, ops))
    return refuse("with this tail");
  return yes();
}

Accept accepts_strided(const Graph& g, ValueId v, const Target& target, const Semantics& ops) {
  const Value& value = g.value(v);
  if (value.is_output) return no(escape(value.name) + " is an output of the model");
  for (const Use& u : value.uses) {
    if (u.slot == Use::kCapture) return no(escape(value.name) + " is read by a nested graph");
    if (Accept a = accepts_strided(g, g.node(u.node), u.slot, {}, target, ops);
        a.truth != Truth::yes)
      return a;
  }
  return yes();
}

}  // namespace ferrule
