// The formula language of rules/ops: what an operator computes for one element, as an expression
// over its inputs, attributes and `let` names. Parsed and checked by name and arity when rules are
// loaded; types are decided when a node is lowered (lower_formula.h), because one formula serves
// every element type.
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

/// Functions of the language that are not primitives.
enum class Builtin : uint8_t {
  select,   ///< select(c, a, b), and `if c then a else b`; resolved while lowering when c is known
  cast,     ///< cast(x, T) with T an element type, an attribute holding one, type(x) or compute(x);
            ///< cast(x, T, saturate): what fp8 does on overflow
  present,  ///< present(x): whether the optional input is there
  type,     ///< element type of an input
  compute,  ///< the type arithmetic on it is done in
  is_float,
  is_int,
  is_unsigned,
  is_bool,  ///< of an input's element type
  count,    ///< number of operands of a variadic input
  sum,      ///< of a variadic input, left to right; min(xs) and max(xs) fold likewise
  rsum,
  rmax,
  rmin,
  rmean,
  rprod,  ///< over the row (entries with `row:` only)
};

/// As formulas write it.
std::string_view spelling(Builtin b);
/// Whether it is asked of a whole row.
inline bool is_row(Builtin b) { return b >= Builtin::rsum && b <= Builtin::rprod; }

struct FormulaExpr {
  enum class Kind : uint8_t { integer, real, text, name, prim, builtin } kind = Kind::integer;
  int64_t i = 0;
  double f = 0;
  std::string word;  ///< name, text
  Prim prim{};
  Builtin builtin{};
  std::vector<std::shared_ptr<const FormulaExpr>> args;
  size_t offset = 0;  ///< in `source`
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
}  // namespace ferrule
