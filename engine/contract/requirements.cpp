#include "engine/contract/requirements.h"

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

/// Whether the role's value suits it; its axes become sizes. `computed`: the target's kernels take
/// operands that are no constants, too.
Accept suits(const Graph& g, const Graph* whole, const ContractRole& role, bool computed,
             Bindings& names, bool explain) {
  auto refuse = [&](Truth t, auto&& text) -> Accept {
    return {t, explain ? text() : std::string(), role.name};
  };
  const ValueId v = names.values[role.name];
  auto name = [&] { return escape(g.value(v).name); };
  if (!v)
    return role.optional ? answer::yes()
                         : refuse(Truth::no, [&] { return role.name + " is absent"; });
  const auto& shape = g.value(v).type.shape;
  if (!shape) return refuse(Truth::unknown, [&] { return "the rank of " + name(); });
  const size_t own = role.axes.size(), rank = shape->size();
  if (rank < own || (rank > own && !role.run && !role.rest))
    return refuse(Truth::no, [&] {
      return fmt::format("{} has rank {}, {} is {}", name(), rank, role.name, role.text());
    });
  if (role.constant && !computed && !g.constant(v))
    return refuse(Truth::no, [&] {
      const ValueId there = whole ? whole->find_value(g.value(v).name) : ValueId();
      return fmt::format("{} is {}; the kernel wants a constant", name(),
                         there ? origin_of(*whole, there) : origin_of(g, v));
    });
  for (size_t k = 0; k < own; ++k)
    names.dims.try_emplace(role.axes[k], (*shape)[role.run ? rank - own + k : k]);
  return answer::yes();
}

}  // namespace

std::string origin_of(const Graph& g, ValueId v) {
  if (g.value(v).is_input) return "an input of the model";
  const NodeId by = g.value(v).producer;
  if (!by) return "computed";
  const Node& n = g.node(by);
  return fmt::format("computed by \"{}\"{}", escape(n.name),
                     n.body ? std::string() : fmt::format(" ({})", escape(n.op)));
}

Accept Requirements::ask(const Target& target, const Semantics& ops, bool explain) {
  const bool computed = target.facts_of(contract.id).takes("computed");
  for (const ContractRole& role : contract.roles)
    if (Accept a = suits(graph, whole, role, computed, names, explain); a.truth != Truth::yes) {
      a.id = contract.id + "." + a.id;
      return a;
    }
  const EvalContext eval{graph, names, ops, let, &target};
  for (const auto& [name, e] : contract.let) let.emplace_back(name, evaluate(*e, eval));
  for (const Condition& c : contract.conditions) {
    std::string missing;
    const Truth t = evaluate_condition(*c.expr, eval, explain ? &missing : nullptr);
    if (t == Truth::yes) continue;
    return {t, t == Truth::no && explain ? interpolate(c.why, eval) : missing, c.id};
  }
  return answer::yes();
}

}  // namespace ferrule
