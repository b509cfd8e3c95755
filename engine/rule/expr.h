// The condition language: pure total expressions over a match's bindings, the graph, and the target;
// three-valued. The functions are the closed vocabulary of vocabulary.h; an unknown name is a load error
// with place, caret and suggestion. Also the `{…}` holes of messages and names.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/dim.h"
#include "engine/graph/graph.h"
#include "engine/rule/bindings.h"

namespace ferrule {

class OpTable;
struct Target;
struct Expr;   // defined in expr.cpp
using ExprPtr = std::shared_ptr<const Expr>;

/// A value of the condition language. Dims that are not constant stay symbolic; `unknown` says which fact
/// is missing.
struct Val {
  struct Unknown { std::string fact; };
  struct Absent {};                       ///< an absent optional
  using List = std::vector<Val>;
  std::variant<Unknown, Absent, bool, int64_t, double, std::string, Dim, DType, Tensor, ValueId, NodeId,
               std::shared_ptr<List>> v = Unknown{};
};
std::string str(const Val& v, const Graph& g);

/// What an expression may look at.
struct EvalContext {
  const Graph* graph = nullptr;
  const Bindings* bindings = nullptr;
  const Target* target = nullptr;         ///< null: device facts are unknown
  const OpTable* ops = nullptr;
  /// Answers `accepts(group)`: whether the contract has a kernel for the nodes about to be grouped.
  std::function<Truth(std::string* reason)> accepts;
  const std::vector<std::pair<std::string, Val>>* let = nullptr;
  /// Answers `accepts_strided(v)`: whether the kernels around v work where it is a slice of something larger.
  std::function<Truth(ValueId v, std::string* reason)> accepts_strided = {};
};

struct Place;
/// errors: expression_invalid with place, caret, suggestion.
Result<ExprPtr> parse_expression(std::string_view text, const Place& place);
std::string to_text(const Expr& e);
/// Names the expression reads, for load checks.
std::vector<std::string> names(const Expr& e);
/// Whether it asks for kernels (accepts, accepts_strided): that costs more than all else it may do.
bool asks_contract(const Expr& e);

Val evaluate(const Expr& e, const EvalContext& ctx);
/// yes / no / unknown; `detail` receives the sub-values that decided ("C = 64, out_channels(conv) = 32"),
/// or the missing fact.
Truth evaluate_condition(const Expr& e, const EvalContext& ctx, std::string* detail = nullptr);
/// Replaces {expr} holes; unknown parts print as "?".
std::string interpolate(std::string_view text, const EvalContext& ctx);

}  // namespace ferrule
