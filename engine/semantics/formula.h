// The formula language of rules/ops: what an operator computes for one element, as an expression over its
// inputs, attributes and `let` names. Parsed and checked by name and arity when rules are loaded; types are
// decided when a node is lowered (lower.cpp), because one formula serves every element type.
//
//   expr  := or                                     lowest precedence first
//   or    := and { ("or" | "xor") and }
//   and   := not { "and" not }
//   not   := "not" not | cmp
//   cmp   := sum [ ("==" | "!=" | "<" | "<=" | ">" | ">=") sum ]
//   sum   := term { ("+" | "-") term }
//   term  := unary { ("*" | "/") unary }
//   unary := "-" unary | atom
//   atom  := number | 'text' | name | name "(" expr { "," expr } ")" | "(" expr ")"
//          | "if" expr "then" expr "else" expr
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "engine/semantics/scalar.h"

namespace ferrule {

struct OpFormula;

/// Functions of the language that are not primitives.
enum class Builtin : uint8_t {
  select,    ///< select(c, a, b), and `if c then a else b`; resolved while lowering when c is known
  cast,      ///< cast(x, T) with T an element type, an attribute holding one, type(x) or compute(x);
             ///< cast(x, T, saturate): what fp8 does on overflow
  present,   ///< present(x): whether the optional input is there
  type,      ///< element type of an input
  compute,   ///< the type arithmetic on it is done in
  is_float, is_int, is_unsigned, is_bool,  ///< of an input's element type
  count,     ///< number of operands of a variadic input
  sum,       ///< of a variadic input, left to right; min(xs) and max(xs) fold likewise
  rsum, rmax, rmin, rmean, rprod,  ///< over the row (entries with `row:` only)
};

struct FormulaExpr {
  enum class Kind : uint8_t { integer, real, text, name, prim, builtin } kind = Kind::integer;
  int64_t i = 0;
  double f = 0;
  std::string word;                  ///< name, text
  Prim prim{};
  Builtin builtin{};
  std::vector<std::shared_ptr<const FormulaExpr>> args;
  size_t offset = 0;                 ///< in `source`
  std::shared_ptr<const std::string> source;
};
using FormulaExprPtr = std::shared_ptr<const FormulaExpr>;

/// What is wrong at a place of a formula; the caller knows the file.
struct FormulaError {
  size_t offset = 0;
  std::string message, hint;
};

tl::expected<FormulaExprPtr, FormulaError> parse_formula(std::string_view text);
/// The expression written back, fully parenthesised where precedence needs it.
std::string to_text(const FormulaExpr& e);
/// Unknown names, texts and lists where numbers are wanted, row functions outside row operators; the `let`
/// entry `let` (or the result, let = let.size()) of `op`.
std::vector<FormulaError> check_names(const OpFormula& op, size_t let);
/// Lowers the operator for every element type it allows and every set of present optional inputs.
/// errors: formula_invalid with excerpt.
Status check_types(const OpFormula& op);

/// "x" of "x?", "x...".
std::string_view input_name(std::string_view declared);
inline bool is_optional(std::string_view declared) { return declared.ends_with("?"); }
inline bool is_variadic(std::string_view declared) { return declared.ends_with("..."); }

}  // namespace ferrule
