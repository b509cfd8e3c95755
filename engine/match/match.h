// The generic subgraph matcher: interprets a rule's pattern at a root node. Matching never changes
// the graph. Every attempt yields a Match (bindings, and the nodes inside) or a Rejection that says
// how far it came and which condition or guarantee stood in the way, with the values found.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/limits.h"
#include "engine/semantics/ops.h"
#include "engine/rule/rule.h"
#include "engine/target/target.h"

namespace ferrule {

struct Body;  // engine/group/body.h

struct Match {
  const Rule* rule = nullptr;
  NodeId root;
  Bindings bindings;
  std::vector<NodeId> nodes;     ///< the matched nodes, topological order
  std::vector<ValueId> outputs;  ///< the values of Pattern::outputs
  std::vector<std::pair<std::string, Val>> let;
  std::shared_ptr<const Body> body = nullptr;  ///< of `nodes` as a group, where a condition asked for it
};

struct Rejection {
  const Rule* rule = nullptr;
  NodeId root;
  enum class Stage { structure, condition, guarantee } stage = Stage::structure;
  bool fixed = false;  ///< by structure alone: no size, type or other user changes it
  std::string id;  ///< condition id, or "D1" … "D9", or "structure"
  ConditionClass cls = ConditionClass::sound;
  Truth truth = Truth::no;  ///< unknown: a fact is missing
  std::string why;          ///< with the values got and wanted
  std::string hint;
  int matched_nodes = 0;  ///< how many pattern nodes were found: nearness
  int passed_conditions = 0, total_conditions = 0;
};

struct MatchTrace;

struct MatchContext {
  const Graph* graph = nullptr;
  const OpTable* ops = nullptr;
  const Target* target = nullptr;
  const Limits* limits = nullptr;
  int64_t* steps = nullptr;  ///< steps used by this model so far
  /// profit conditions to ignore: "RULE.CONDITION" globs.
  const std::vector<std::string>* ignore_profit = nullptr;
  /// Whether rejections get their texts; without, only their stage and id.
  bool explain = true;
  MatchTrace* trace = nullptr;  ///< trace.h: filled when not null, which only `why` asks for
};

/// How far an attempt came: structure, then guarantees, then conditions passed. For the best of
/// several.
int nearness(const Rejection& r);

using Attempt = std::variant<Match, Rejection>;
/// Tries `rule` (any kind with a pattern) at `root`: structure, guarantees D1 to D8, conditions,
/// let.
Attempt match_rule(const Rule& rule, NodeId root, const MatchContext& ctx);

/// The parts of match_rule, for the passes that bind more before they ask (group.cpp: the tail).
/// Types, then every condition of `where`; nullopt: all are true. `let` values of `m` are set on
/// the way.
std::optional<Rejection> judge(const Rule& rule, const std::vector<Condition>& where, Match& m,
                               const MatchContext& ctx,
                               const std::function<Truth(std::string*)>& accepts = {});
/// Structure and guarantees only; `conditions` true: as match_rule.
Attempt match_structure(const Rule& rule, NodeId root, const MatchContext& ctx, bool conditions);

/// D3: whether grouping `nodes` would close a cycle (a path leaves them and comes back).
bool convex(const Graph& g, std::span<const NodeId> nodes);

}  // namespace ferrule
