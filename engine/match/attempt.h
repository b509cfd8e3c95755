// What an attempt to match a rule looks at, and what it yields: a Match, or a Rejection that says
// how far it came.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/limits.h"
#include "engine/rule/rule.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"

namespace ferrule {

struct Rejection {
  const Rule* rule = nullptr;
  NodeId root;
  enum class Stage { structure, condition, guarantee } stage = Stage::structure;
  bool fixed = false;    ///< by structure alone: no size, type or other user changes it
  bool of_tail = false;  ///< of a tail or region: an operator that it takes, but for its shape or
                         ///< a limit of the rule
  std::string id;        ///< condition id, or "D1" … "D10", or "structure"
  ConditionClass cls = ConditionClass::sound;
  Truth truth = Truth::no;  ///< unknown: a fact is missing
  std::string why;          ///< with the values got and wanted
  std::string hint;
  std::string detail;     ///< of a condition: the parts of its expression that decided, or the
                          ///< fact that is missing; for those who write rules
  int matched_nodes = 0;  ///< how many pattern nodes were found: nearness
  int passed_conditions = 0, total_conditions = 0;
};

struct MatchTrace;

/// What an attempt looks at.
struct MatchContext {
  const Graph& graph;
  const Semantics& ops;
  const Limits& limits;
  const Target* target = nullptr;  ///< null: facts of the device are unknown
  /// Profit conditions to ignore: "RULE.CONDITION" globs.
  std::span<const std::string> ignore_profit = {};
  int64_t* steps = nullptr;  ///< steps used by this model so far, where they are counted
  /// Whether rejections get their texts; without, only their stage and id.
  bool explain = true;
  MatchTrace* trace = nullptr;  ///< trace.h: filled when not null, which only `why` asks for
};

/// How far an attempt came: structure, then guarantees, then conditions passed. For the best of
/// several.
int nearness(const Rejection& r);

using Attempt = std::variant<Match, Rejection>;

}  // namespace ferrule
