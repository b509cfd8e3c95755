// The pattern language's syntax tree: rule files write patterns and replacements as text
// (EBNF in rules/README.md), pattern_parse.h makes this of them, match/ interprets it. Replacements
// use the same tree: calls, references, numbers, copied attributes; no alternatives, marks or op
// sets.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/rule/shape_pattern.h"
#include "engine/rule/text.h"

namespace ferrule {

struct Expr;  // expr.h: a condition expression

/// `axis=1`, `alpha=$a` (bind, or require the value bound before), and in replacements
/// `pads={expr}`.
struct AttrPattern {
  std::string name;
  enum class Kind { literal, bind, expression } kind = Kind::literal;
  Attr literal;
  std::string bind;  ///< without the $
  std::shared_ptr<const Expr> expression;
  Place place;
};

struct PatternExpr {
  enum class Kind {
    reference,  ///< a name: a line's result, or a value from outside
    call,       ///< an operator applied to arguments
    number,     ///< `2` equal to, `~0.5(1e-3)` near: a constant of one element, never raising rank
    alternatives,  ///< (#a e1 | #b e2); in a replacement (x ?? e): the first that is present
    expression,  ///< replacements only: {expr}, a constant made of a condition expression. A number
                 ///< takes the element type of its neighbour operand; a list of integers is a 1-D
                 ///< i64 tensor
  } kind = Kind::reference;
  Place place;

  // reference
  std::string name;
  bool constant = false;  ///< W! : must be a constant
  bool optional =
      false;  ///< B? : may be absent.   Op?(a, b): the call may be absent and passes `a`
  bool variadic = false;                         ///< xs...
  std::optional<std::vector<DimPattern>> shape;  ///< also allowed on a call

  std::shared_ptr<const Expr> expression;  ///< kind expression

  // number
  double number = 0;
  bool near = false;
  double rtol = 1e-3;  ///< for near; compared in the constant's own dtype

  // call
  std::string label;  ///< [conv]
  std::vector<std::string>
      ops;  ///< "Conv", "com.microsoft::Gelu", "group.conv"; a label in a replacement
  std::vector<std::string> classes;  ///< "activation" for @activation; "group" = any group
  std::vector<AttrPattern> attrs;
  bool any_attrs = false;  ///< `<...>`
  std::string copy_attrs;  ///< replacements: `<...conv>` copies the attributes of label conv
  std::vector<std::shared_ptr<const PatternExpr>> args;
  std::vector<std::string> results;  ///< names of the outputs, "" = unnamed / must be unused

  // alternatives
  std::vector<std::pair<std::string, std::shared_ptr<const PatternExpr>>>
      choices;  ///< tag, expression
};
using PatternExprPtr = std::shared_ptr<const PatternExpr>;

/// `a, b = expr`
struct PatternLine {
  std::vector<std::string> results;
  PatternExprPtr expr;
  Place place;
};

struct Pattern {
  std::vector<PatternLine> lines;  ///< blocks are expanded; nested calls stay nested
  std::vector<std::string>
      outputs;  ///< names that may be used outside; default: the last line's results
  const PatternLine* line_of(const std::string& result) const;
  const PatternLine& root() const { return lines.back(); }
};

std::string to_text(const Pattern& p, bool replacement = false);
std::string to_text(const PatternExpr& e, bool replacement = false);
std::string results_text(const PatternLine& l);  ///< "y, _"

/// What a pattern binds, for load checks.
struct Bound {
  enum class Kind : uint8_t { value, node, value_list, node_list, attr, dim, tag } kind{};
  bool inner = false;         ///< made by a matched node
  bool maybe_absent = false;  ///< optional, or bound on some alternatives only
  Place place;
};
std::string_view name(Bound::Kind k);
/// Tags stand with a # before them, apart from values.
using BoundNames = std::map<std::string, Bound, std::less<>>;
BoundNames bound_names(const Pattern& p);

/// `f` of an expression and of all below it, from the top.
template <class F>
void each_expr(const PatternExpr& e, F&& f) {
  f(e);
  for (const PatternExprPtr& a : e.args) each_expr(*a, f);
  for (const auto& [tag, choice] : e.choices) each_expr(*choice, f);
}

}  // namespace ferrule
