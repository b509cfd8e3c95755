// The generic subgraph matcher: interprets a rule's pattern at a root node. Matching never changes
// the graph. Every attempt yields a Match (bindings, and the nodes inside) or a Rejection that says
// how far it came and which condition or guarantee stood in the way, with the values found.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/match/attempt.h"

namespace ferrule {

/// Tries `rule` (any kind with a pattern) at `root`: structure, guarantees D1 to D8, conditions,
/// let.
Attempt match_rule(const Rule& rule, NodeId root, const MatchContext& ctx);

/// The parts of match_rule, for the passes that bind more before they ask (group.cpp: the tail).
/// What the conditions of a rule say to a match.
struct Judgement {
  std::optional<Rejection> refused;  ///< nullopt: all are true
  Let let;                           ///< parameters and `let` values, for the match
};
/// Types, then every condition of `where`; `accepts`: what the contract says of the group, asked
/// last.
Judgement judge(const Rule& rule, const std::vector<Condition>& where, const Match& m,
                const MatchContext& ctx, const std::function<Accept()>& accepts = {});
/// The first of the conditions that does not hold for what `eval` looks at; nullopt: all do.
std::optional<Rejection> ask(const Rule& rule, const std::vector<Condition>& where, const Match& m,
                             const MatchContext& ctx, const EvalContext& eval,
                             const std::function<Accept()>& accepts = {});
/// What else is asked of a match, which it may change; nullopt: nothing stands in the way.
using AlsoAsked = std::function<std::optional<Rejection>(Match&)>;
/// Structure and guarantees, and of each embedding what `also` asks, until one is taken.
Attempt match_structure(const Rule& rule, NodeId root, const MatchContext& ctx,
                        const AlsoAsked& also = {});

/// D3: whether grouping `nodes` would close a cycle (a path leaves them and comes back).
bool convex(const Graph& g, std::span<const NodeId> nodes);

}  // namespace ferrule
