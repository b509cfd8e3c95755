// The condition language's syntax tree; internal to engine/rule (others hold an ExprPtr: expr.h).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/rule/val.h"

namespace ferrule {

struct Function;  // condition_functions.h

struct Expr {
  enum class Kind : uint8_t {
    literal,
    name,
    list,
    call,
    negate,
    negation,
    binary,
    quantifier,
    conditional,
    index
  };
  enum class Binary : uint8_t {
    implies,
    either,
    both,
    eq,
    ne,
    lt,
    le,
    gt,
    ge,
    in,
    not_in,
    like,
    coalesce,
    add,
    sub,
    mul,
    div,
    floordiv,
    mod
  };
  enum class Quantifier : uint8_t { all, any, count, sum, map, filter };

  Kind kind = Kind::literal;
  Binary binary{};
  Quantifier quantifier{};
  uint32_t offset = 0, length = 0;  ///< in the text it was parsed from
  Val literal;
  std::string name;                    ///< name; the variable of a quantifier; a function's name
  const Function* function = nullptr;  ///< call
  std::vector<std::shared_ptr<const Expr>>
      args;  ///< operands; quantifier: list, body; conditional: if, then, else
};

std::string_view spelling(Expr::Binary op);

/// A name that an expression reads, with its place in the text.
struct NameUse {
  std::string name;
  uint32_t offset = 0;
  /// What the function it is an argument of wants there ("value", "node", …); empty elsewhere.
  std::string_view wanted;
  std::string_view function;
};
std::vector<NameUse> name_uses(const Expr& e);
/// End of the {…} hole of a message that starts at text[open], or npos.
size_t hole_end(std::string_view text, size_t open);

}  // namespace ferrule
