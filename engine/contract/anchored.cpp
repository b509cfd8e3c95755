#include "engine/contract/anchored.h"

#include <algorithm>
#include <array>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/contract/broadcast.h"
#include "engine/contract/epilogue.h"
#include "engine/contract/library_tail.h"
#include "engine/contract/requirements.h"
#include "engine/rule/contract.h"
#include "engine/semantics/nodes_to_programs.h"

namespace ferrule {

using answer::no, answer::yes;

namespace {

const Type& type_of(const Graph& g, ValueId v) { return g.value(v).type; }

/// The node under the names that its contract gives it.
Requirements named(const Graph& g, NodeId id, const Contracts::Single& as) {
  Requirements out{g, *as.contract};
  const Node& n = g.node(id);
  const SingleNode& line = *as.line;
  if (!line.label.empty()) out.names.nodes[line.label] = id;
  const size_t named = line.operands.size() - (line.variadic ? 1 : 0);
  for (size_t k = 0; k < named; ++k)
    out.names.values[line.operands[k]] = k < n.inputs.size() ? n.inputs[k] : ValueId{};
  if (line.variadic) {
    auto& rest = out.names.value_lists[line.operands.back()];
    for (size_t k = named; k < n.inputs.size(); ++k)
      if (n.inputs[k]) rest.push_back(n.inputs[k]);
  }
  for (size_t k = 0; k < line.results.size() && k < n.outputs.size(); ++k)
    out.names.values[line.results[k]] = n.outputs[k];
  return out;
}

/// The axis of the anchor's result along which an operand of its tail may have one value each; -1:
/// none. The product with a vector has rows in its place.
int channel_axis(const Graph& g, const Node& anchor, std::string_view contract) {
  if (contract != "gemm") return 1;
  return type_of(g, anchor.inputs[1]).rank() > 1 ? type_of(g, anchor.outputs[0]).rank() - 1 : -1;
}

/// Whether a tail takes an operand that is spread so over the anchor's result: a library's epilogue
/// one value, one a channel or one an element; `generated`: any.
bool epilogue_operand(const Type& r, const Type& y, int channel, bool generated) {
  if (!r.shape || !y.shape || r.rank() > y.rank()) return false;
  if (broadcast_of(*r.shape, *y.shape, channel) != Broadcast::other) return true;
  const int missing = y.rank() - r.rank();
  for (int k = 0; k < r.rank(); ++k)
    if (const Dim& d = (*r.shape)[k]; !(d == Dim(1)) && !(d == (*y.shape)[k + missing]))
      return false;
  return generated;
}

/// Images lie channels-last; a computed value of fewer axes that has one value for each of their
/// elements does not.
bool lies_plain(const Graph& g, ValueId v, const Type& y, std::string_view contract) {
  const Type& r = type_of(g, v);
  return contract != "gemm" && !g.constant(v) && r.rank() < y.rank() &&
         broadcast_of(*r.shape, *y.shape, 1) == Broadcast::full;
}

/// Which operator of the tail it is that no sequence of the epilogue's steps computes.
std::string without_epilogue(const Graph& g, ValueId from, std::span<const NodeId> tail,
                             const Semantics& ops) {
  auto computed = [&](std::span<const NodeId> front) {
    const std::array<ValueId, 1> outputs{g.node(front.back()).outputs[0]};
    const auto region = lower_region(ops, g, front, outputs);
    if (!region) return false;
    const auto at = std::ranges::find(region->inputs, from);
    return at != region->inputs.end() &&
           to_post_ops(region->program, static_cast<uint32_t>(at - region->inputs.begin()),
                       Deviations::all)
               .has_value();
  };
  size_t before = 0;
  while (before + 1 < tail.size() && computed(tail.first(before + 1))) ++before;
  return fmt::format(
      "the library has no epilogue for {}{}", escape(g.node(tail[before]).op),
      before ? fmt::format(" (after {})", operators_of(g, tail.first(before))) : std::string());
}

/// The tail as one program must be a sequence of what the library's epilogue does. What the library
/// would leave to a second kernel is no tail: with what stands around it, that kernel may do more.
Accept accepts_tail(const Graph& g, NodeId anchor, std::span<const NodeId> tail,
                    std::string_view contract, const Target& target, const Semantics& ops,
                    bool explain) {
  if (tail.empty()) return yes();
  const ContractFacts& facts = target.contracts.at(std::string(contract));
  const ValueId from = g.node(anchor).outputs[0];
  const bool any_spread = facts.generated_tail || spreads_any(facts.library);
  if (facts.max_epilogue_ops < static_cast<int>(tail.size()))
    return no(fmt::format("{} stand{} behind the {}, and its epilogue takes {}",
                          counted(tail.size(), "operator"), tail.size() == 1 ? "s" : "", contract,
                          facts.max_epilogue_ops));
  ValueId last = g.node(tail.back()).outputs[0];
  std::array<ValueId, 1> outputs{last};
  auto region = lower_region(ops, g, tail, outputs);
  if (!region) return no(not_of_group(region.error()));
  const Type& y = type_of(g, from);
  if (const DType made = type_of(g, last).dtype; made != y.dtype)
    return no(fmt::format("{} is {}, and {} is {}: an epilogue keeps the type",
                          escape(g.value(last).name), name(made), escape(g.value(from).name),
                          name(y.dtype)));
  uint32_t result = 0xffffffffu;
  int operands = 0;
  for (size_t k = 0; k < region->inputs.size(); ++k) {
    if (region->inputs[k] == from) {
      result = static_cast<uint32_t>(k);
      continue;
    }
    ++operands;
    const Value& r = g.value(region->inputs[k]);
    const int channel = channel_axis(g, g.node(anchor), contract);
    if (r.type.dtype != y.dtype || !epilogue_operand(r.type, y, channel, any_spread)) {
      const char* each = channel < 0          ? ""
                         : contract == "gemm" ? ", nor one for each column"
                                              : ", nor one for each channel";
      return no(
          fmt::format("{} is {}: neither one number{}, nor of the shape and type of {} ({}), "
                      "which is what the library takes",
                      escape(r.name), str(r.type), each, escape(g.value(from).name), str(y)));
    }
    if (lies_plain(g, region->inputs[k], y, contract))
      return no(fmt::format(
          "{} is {} and has fewer axes than {} ({}): it does not lie in memory as images "
          "do, channels last",
          escape(r.name), str(r.type), escape(g.value(from).name), str(y)));
  }
  if (result == 0xffffffffu) return no("the tail does not read the result");
  if (operands > facts.max_operands)
    return no(fmt::format("the operators behind the {} read {}, and its epilogue takes {}",
                          contract, counted(operands, "more tensor"), facts.max_operands));
  if (facts.generated_tail) return yes();
  const auto steps = to_post_ops(region->program, result, Deviations::all);
  if (!steps && tail.size() > kMostPostOps)
    return no(fmt::format("{} stand{} behind the {}, and its epilogue takes {}",
                          counted(tail.size(), "operator"), tail.size() == 1 ? "s" : "", contract,
                          kMostPostOps));
  if (!steps) return no(explain ? without_epilogue(g, from, tail, ops) : std::string());
  const bool image = y.rank() >= 3;  // windows slide over channels-last images
  return library_takes({&target, contract, &g, anchor, image, *steps, region->inputs});
}

}  // namespace

std::string operators_of(const Graph& g, std::span<const NodeId> tail) {
  std::vector<std::string> all;
  for (NodeId n : tail)
    if (std::string op = escape(g.node(n).op); std::ranges::find(all, op) == all.end())
      all.push_back(std::move(op));
  return fmt::format("{}", fmt::join(all, ", "));
}

Accept accepts_anchored(const Graph& g, std::span<const NodeId> nodes, NodeId anchor,
                        std::string_view contract, const Target& target, const Semantics& ops,
                        bool explain, const Graph* whole) {
  auto id = [&](std::string_view what) { return fmt::format("{}.{}", contract, what); };
  const Contracts::Single as = anchor ? ops.contracts()->of(g.node(anchor)) : Contracts::Single{};
  if (!as.contract || as.contract->id != contract)
    return no(fmt::format("no node is a {}", contract), id("node"));
  Requirements asked = named(g, anchor, as);
  asked.whole = whole;
  if (Accept c = asked.ask(target, ops, explain); c.truth != Truth::yes) return c;
  std::vector<NodeId> tail;
  for (NodeId n : nodes)
    if (n != anchor) tail.push_back(n);
  Accept c = as.contract->tail || tail.empty()
                 ? accepts_tail(g, anchor, tail, contract, target, ops, explain)
                 : no(fmt::format("a {} takes no tail", contract));
  if (c.truth != Truth::yes) c.id = id("tail");
  return c;
}

std::string not_of_group(const Refusal& r) {
  constexpr std::string_view kAlone = " cannot run here: ";
  std::string text = r.reason();
  if (const size_t at = text.find(kAlone); at != text.npos)
    text.replace(at, kAlone.size(), " cannot be part of this group: ");
  return text;
}

}  // namespace ferrule
