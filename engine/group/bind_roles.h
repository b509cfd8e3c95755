// The roles of a group's contract, bound from what a rule's pattern matched: tensors with the way
// their axes lie in the group's operands, and numbers. Movements next to a role become part of the
// group and of its axis map, as far as nothing else reads what they make and strides can say it; so
// patterns need not spell them.
#pragma once
#include "engine/contract/roles.h"
#include "engine/match/attempt.h"
#include "engine/rule/contract.h"

namespace ferrule {

struct BoundRoles {
  std::vector<NodeId> nodes;           ///< that the group is made of, topological order
  std::shared_ptr<const Body> body;    ///< of `nodes`
  std::shared_ptr<const Roles> roles;  ///< by the body's inputs and outputs
};

/// `let`: of the rule, for the match. The contract's conditions are asked on the way, before the
/// body is made. A rejection names the role ("attention.scale") or the condition.
std::variant<BoundRoles, Rejection> bind_roles(const Rule& rule, const Match& m, const Let& let,
                                               const MatchContext& ctx);

}  // namespace ferrule
