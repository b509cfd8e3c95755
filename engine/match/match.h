// The generic subgraph matcher: interprets a rule's pattern at a root node. Matching never changes the
// graph. Every attempt yields a Match (bindings, and the nodes inside) or a Rejection that says how far it
// came and which condition or guarantee stood in the way, with the values found.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/limits.h"
#include "engine/formula/ops.h"
#include "engine/rule/rule.h"
#include "engine/target.h"

namespace ferrule {

struct Match {
  const Rule* rule = nullptr;
  NodeId root;
  Bindings bindings;
  std::vector<NodeId> nodes;     ///< the matched nodes, topological order
  std::vector<ValueId> outputs;  ///< the values of Pattern::outputs
  std::vector<std::pair<std::string, Val>> let;
};

struct Rejection {
  const Rule* rule = nullptr;
  NodeId root;
  enum class Stage { structure, condition, guarantee } stage = Stage::structure;
  std::string id;        ///< condition id, or "D1" … "D8", or "structure"
  ConditionClass cls = ConditionClass::sound;
  Truth truth = Truth::no;  ///< unknown: a fact is missing
  std::string why;       ///< with the values got and wanted
  std::string hint;
  int matched_nodes = 0; ///< how many pattern nodes were found: nearness
  int passed_conditions = 0, total_conditions = 0;
};

struct MatchContext {
  const Graph* graph = nullptr;
  const OpTable* ops = nullptr;
  const Target* target = nullptr;
  const Limits* limits = nullptr;
  int64_t* steps = nullptr;      ///< steps used by this model so far
  /// profit conditions to ignore: "RULE.CONDITION" globs.
  const std::vector<std::string>* ignore_profit = nullptr;
};

using Attempt = std::variant<Match, Rejection>;
/// Tries `rule` (any kind with a pattern) at `root`: structure, guarantees D1 to D8, conditions, let.
Attempt match_rule(const Rule& rule, NodeId root, const MatchContext& ctx);

/// D3: whether grouping `nodes` would close a cycle (a path leaves them and comes back).
bool convex(const Graph& g, std::span<const NodeId> nodes);

}  // namespace ferrule
