// What the condition language computes with, and what it looks at.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/accept.h"
#include "engine/base/dim.h"
#include "engine/graph/graph.h"
#include "engine/rule/bindings.h"

namespace ferrule {

class Semantics;
struct Target;

/// A value of the condition language. Dims that are not constant stay symbolic; `unknown` says
/// which fact is missing.
struct Val {
  struct Unknown {
    std::string fact;
  };
  struct Absent {};  ///< an absent optional
  using List = std::vector<Val>;
  std::variant<Unknown, Absent, bool, int64_t, double, std::string, Dim, DType, Tensor, ValueId,
               NodeId, std::shared_ptr<List>>
      v = Unknown{};
};
std::string str(const Val& v, const Graph& g);

/// Parameters and `let` values by name, in the order in which they were computed.
using Let = std::vector<std::pair<std::string, Val>>;

/// What an expression may look at.
struct EvalContext {
  const Graph& graph;
  const Bindings& bindings;
  const Semantics& ops;
  const Let& let;
  const Target* target = nullptr;  ///< null: device facts are unknown
  /// Answers `accepts_strided(v)`: whether the kernels around v work where it is a slice of
  /// something larger.
  std::function<Accept(ValueId v)> accepts_strided = {};
};

}  // namespace ferrule
