#include "engine/contract/accepts.h"

#include <algorithm>
#include <array>
#include <set>

#include "engine/base/contains.h"
#include "engine/base/diagnostics.h"
#include "engine/contract/anchored.h"
#include "engine/contract/epilogue.h"
#include "engine/contract/region_pieces.h"
#include "engine/contract/requirements.h"
#include "engine/contract/stages.h"
#include "engine/rule/contract.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/row.h"

namespace ferrule {

using answer::no, answer::yes;

namespace {

/// What a generated kernel of the nodes computes with.
struct Computed {
  Val::List types;  ///< each once
  size_t tensors;   ///< read and written, at least as many as one node reads; numbers are none
};

Computed computed(const Graph& g, std::span<const NodeId> nodes, const Semantics& ops) {
  std::vector<DType> types;
  std::vector<ValueId> made;
  std::set<ValueId> tensors;
  size_t widest = 0;
  auto add = [&](ValueId v) {
    const DType t = g.value(v).type.dtype;
    if (!contains(types, t)) types.push_back(t);
  };
  for (NodeId id : nodes) {
    const Node& n = g.node(id);
    const OpFormula* formula = ops.find(n);
    widest = std::max(widest, n.inputs.size());  // each is a step, be they the same value
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      const ValueId v = n.inputs[k];
      if (!v) continue;
      if (formula ? formula->reads(k) : moves_input(n, k)) add(v);
      if (const Tensor* c = g.constant(v); !(c && c->numel() == 1)) tensors.insert(v);
    }
    std::ranges::copy_if(n.outputs, std::back_inserter(made), [](ValueId v) { return !!v; });
  }
  for (ValueId v : made) {
    add(v);
    if (nodes.size() == 1 || g.value(v).is_output || g.value(v).uses.empty())
      tensors.insert(v);
    else
      tensors.erase(v);
  }
  Computed out{{}, std::max(tensors.size(), widest)};
  for (DType t : types)
    out.types.push_back(t == DType::undefined ? Val{Val::Unknown{"element type"}} : Val{t});
  return out;
}

/// The body's results, or the single node's.
std::vector<ValueId> results_of(const Graph& g, std::span<const NodeId> nodes) {
  std::vector<ValueId> out;
  for (NodeId id : nodes)
    for (ValueId v : g.node(id).outputs)
      if (v && (g.value(v).is_output || nodes.size() == 1)) out.push_back(v);
  return out;
}

template <class T>
std::string reason(const Applicable<T>& made) {
  return made ? "" : not_of_group(made.error());
}

/// Formulas and movements that the generator writes a kernel for.
Accept accepts_generated(const Contract& contract, const Graph& g, std::span<const NodeId> nodes,
                         const Target& target, const Semantics& ops, bool explain) {
  auto refuse = [&](std::string why, std::string_view id) {
    return no(std::move(why), fmt::format("{}.{}", contract.id, id));
  };
  for (NodeId id : nodes)
    if (const Node& n = g.node(id); std::ranges::none_of(contract.nodes, [&](const auto& c) {
          return c == "movement" ? is_movement(n) : ops.in_class(n, c);
        }))
      return refuse(fmt::format("{} is no {}", escape(n.op), fmt::join(contract.nodes, ", no ")),
                    "nodes");
  Computed with = computed(g, nodes, ops);
  Requirements asked{g, contract};
  asked.let.emplace_back("types", Val{std::make_shared<Val::List>(std::move(with.types))});
  asked.let.emplace_back("tensors", Val{static_cast<int64_t>(with.tensors)});
  if (Accept a = asked.ask(target, ops, explain); a.truth != Truth::yes) return a;
  const std::string why = contract.generated == Generated::rows
                              ? reason(lower_rows(ops, g, nodes, results_of(g, nodes)))
                          : any_movement(g, nodes)
                              ? reason(lower_pieces(ops, g, nodes, results_of(g, nodes)))
                              : "";
  return why.empty() ? yes() : refuse(why, name(contract.generated));
}

/// Layers of other contracts, with what this one asks of them together.
Accept accepts_stages(const Contract& contract, const Graph& g, std::span<const NodeId> nodes,
                      const Target& target, const Semantics& ops, bool explain,
                      const Graph* whole) {
  auto refuse = [&](std::string why) {
    return answer::no(std::move(why), contract.id + ".stages");
  };
  auto stages = read_stages(g, nodes, ops);
  if (!stages) return refuse(not_of_group(stages.error()));
  const std::span all(contract.stages);
  const bool lists = all.front().list;
  Requirements asked{g, contract};
  auto& operands = asked.names.value_lists["operands"];
  for (const StageSpec& spec : all)
    if (lists) asked.names.node_lists[spec.name] = {};
  for (size_t k = 0; k < stages->size(); ++k) {
    const GroupStage& s = (*stages)[k];
    const std::string own =
        s.conversion ? std::string(kConversion) : contract_of(g.node(s.node), ops);
    const auto asked_for =
        lists ? all : all.subspan(std::min(k, all.size())).first(k < all.size() ? 1 : 0);
    const auto spec = std::ranges::find_if(
        asked_for, [&](const StageSpec& s) { return contains(s.contracts, own); });
    if (spec == asked_for.end())
      return refuse(
          fmt::format("{} is {}, which is no stage of it", escape(g.node(s.node).name), own));
    if (lists)
      asked.names.node_lists[spec->name].push_back(s.node);
    else
      asked.names.nodes[spec->name] = s.node;
    for (NodeId t : s.tail)
      for (ValueId v : g.node(t).inputs)
        if (v && !g.value(v).producer) operands.push_back(v);
  }
  if (!lists && stages->size() < all.size())
    return refuse(fmt::format("{} layers, not {}", stages->size(), all.size()));
  asked.names.values[contract.roles[0].name] = g.input(stages->front().node, 0);
  asked.names.values[contract.roles[1].name] = stages->back().result;
  if (Accept a = asked.ask(target, ops, explain); a.truth != Truth::yes) return a;
  for (const GroupStage& s : *stages) {
    if (s.conversion) continue;
    std::vector<NodeId> layer{s.node};
    layer.insert(layer.end(), s.tail.begin(), s.tail.end());
    if (Accept a = accepts(g, layer, s.node, contract_of(g.node(s.node), ops), target, ops, explain,
                           whole);
        a.truth != Truth::yes)
      return a;
  }
  if (target.facts_of(contract.id).takes("staged")) return answer::yes();
  const auto epilogues = read_epilogues(g, *stages, ops);
  return epilogues ? answer::yes() : refuse(not_of_group(epilogues.error()));
}

}  // namespace

std::string contract_of(const Node& n, const Semantics& ops) {
  if (n.body && !n.op.contract().empty()) return std::string(n.op.contract());
  const Contract* alone = ops.contracts() ? ops.contracts()->alone(n, ops) : nullptr;
  return alone ? alone->id : "interpret";
}

Accept accepts(const Graph& g, std::span<const NodeId> nodes, NodeId anchor,
               std::string_view contract, const Target& target, const Semantics& ops, bool explain,
               const Graph* whole) {
  if (contract == "interpret") return yes();
  if (!target.contracts.contains(std::string(contract)))
    return no(fmt::format("{} has no {} kernels", target.name, contract),
              fmt::format("{}.target", contract));
  const auto said = ops.contracts() ? ops.contracts()->find(contract) : nullptr;
  if (!said) return no(fmt::format("{} has no file", contract));
  if (!said->stages.empty()) return accepts_stages(*said, g, nodes, target, ops, explain, whole);
  if (!said->nodes.empty()) return accepts_generated(*said, g, nodes, target, ops, explain);
  return accepts_anchored(g, nodes, anchor, contract, target, ops, explain, whole);
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
  const std::string contract = contract_of(n, ops);
  auto facts = target.contracts.find(contract);
  auto refuse = [&](std::string_view what) {
    return no(fmt::format("the {} kernel of \"{}\" reads and writes whole tensors only{}{}",
                          contract, escape(n.name), what.empty() ? "" : ": ", what));
  };
  if (facts == target.contracts.end() || facts->second.strided.empty()) return refuse("");
  const auto has = [&](std::string_view what) {
    return std::find(facts->second.strided.begin(), facts->second.strided.end(), what) !=
           facts->second.strided.end();
  };
  if (has("any")) return yes();
  if (slot > 0) return refuse("only its first operand may be a slice");
  for (size_t k = 1; k < n.inputs.size(); ++k)
    if (n.inputs[k] && !g.constant(n.inputs[k]))
      return refuse("it reads two tensors that are not constant");
  const Graph& body = n.body ? *n.body : g;
  std::vector<NodeId> nodes = n.body ? body.order() : std::vector<NodeId>{};
  NodeId anchor;
  for (NodeId id : nodes)
    if (!anchor && contract_of(body.node(id), ops) == contract) anchor = id;
  const Node& a = anchor ? body.node(anchor) : n;
  if (n.body && (!anchor || body.inputs().empty() || a.inputs[0] != body.inputs()[0]))
    return refuse("its main operator is not the first one");
  if (body.value(a.inputs[0]).type.dtype != DType::f32) return refuse("slices must be f32");
  if (contract == "gemm") {
    if (form.value_or(SliceForm::rows) != SliceForm::rows || !has("rows"))
      return refuse("the rows of a slice must have one constant stride");
    if (a.attrs.i("transA") || !body.constant(a.inputs[1]) ||
        body.value(a.inputs[1]).type.rank() != 2)
      return refuse("it must multiply rows by a constant matrix");
    return yes();
  }
  const std::string kind = window_kind(body, a);
  if (form.value_or(SliceForm::pixels) != SliceForm::pixels)
    return refuse("the pixels of a slice must have one constant stride");
  if (kind.empty() || !has(kind))
    return refuse("the library has no fast kernel for a slice with such a window");
  if (kind != "1x1" && anchor && !simple_tail(body, nodes, anchor, facts->second, ops))
    return refuse("not with this epilogue");
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
