// The condition language: pure total expressions over a match's bindings, the graph, and the
// target; three-valued. The functions are the closed vocabulary of vocabulary.h; an unknown name is
// a load error with place, caret and suggestion. Also the `{…}` holes of messages and names.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/rule/val.h"

namespace ferrule {

struct Expr;  // expr_ast.h
using ExprPtr = std::shared_ptr<const Expr>;

struct Place;
/// errors: expression_invalid with place, caret, suggestion.
Result<ExprPtr> parse_expression(std::string_view text, const Place& place);
std::string to_text(const Expr& e);
/// Names the expression reads, for load checks.
std::vector<std::string> names(const Expr& e);
/// Whether it asks for kernels (accepts_strided): that costs more than all else it may do.
bool asks_contract(const Expr& e);

Val evaluate(const Expr& e, const EvalContext& ctx);
/// yes / no / unknown; `detail` receives the sub-values that decided ("C = 64, out_channels(conv) =
/// 32"), or the missing fact.
Truth evaluate_condition(const Expr& e, const EvalContext& ctx, std::string* detail = nullptr);
/// Replaces {expr} holes; unknown parts print as "?".
std::string interpolate(std::string_view text, const EvalContext& ctx);

}  // namespace ferrule
