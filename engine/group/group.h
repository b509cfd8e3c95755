// How a group is judged, named and made: nodes become one node `group.<contract>` with the
// originals as its body.
#pragma once
#include "engine/contract/accepts.h"
#include "engine/group/body.h"
#include "engine/match/match_rule.h"

namespace ferrule {

/// Whether the rule's contract has a kernel for these nodes as one group (accepts.h), groups
/// flattened; unknown without a target. `body`: theirs, for the group that they may become.
Accept accepts_group(const Rule& rule, std::span<const NodeId> nodes, const MatchContext& ctx,
                     std::shared_ptr<const Body>* body = nullptr);
/// The rule's conditions on the match as a group of its contract: the match with what they
/// computed, or why it does not fire.
Attempt judge_group(const Rule& rule, Match m, const MatchContext& ctx);
/// The same of a rule whose contract has roles, which it binds: the match becomes that of the
/// group.
std::optional<Rejection> judge_roles(const Rule& rule, Match& m, const MatchContext& ctx);
/// The group's name from the rule's template: tails joined with " + ", regions with ", ".
std::string group_name(const Rule& rule, const Match& m, const MatchContext& ctx);
std::string joined_names(const Graph& g, std::span<const NodeId> nodes, std::string_view between);

/// Replaces `nodes` (topological order, convex) by one group node; existing groups among them are
/// flattened into the new body. Returns it. errors: rule_broken (not convex).
Result<NodeId> make_group(Graph& g, std::span<const NodeId> nodes, std::string contract,
                          std::string rule, std::string name);
/// The same for nodes that are known to be convex; `made`: their body, if one was made already;
/// `roles`: of its inputs and outputs.
NodeId form_group(Graph& g, std::span<const NodeId> nodes, std::string contract, std::string rule,
                  std::string name, std::shared_ptr<const Body> made = nullptr,
                  std::shared_ptr<const Roles> roles = nullptr);

/// Why a node alone is no region: it reads more tensors than a rule allows.
std::string too_many_inputs(const Graph& g, NodeId n, size_t read, int most);
/// Of "operator Resize cannot run here: mode linear computes", which not_applicable says, the end.
inline std::string_view cause_of(std::string_view reason) {
  const size_t colon = reason.find(": ");
  return colon == reason.npos ? reason : reason.substr(colon + 2);
}

}  // namespace ferrule
