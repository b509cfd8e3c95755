// Tokens of the pattern and the condition language. The two share names, numbers and strings; they
// differ in their symbols (conditions have == and //, patterns have marks such as ?! that must stay
// apart) and in that line ends and # comments mean something in patterns only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/rule/text.h"

namespace ferrule {

struct Token {
  enum class Kind : uint8_t {
    end,
    newline,
    name,
    integer,
    real,
    string,
    symbol,
    bad
  } kind = Kind::end;
  std::string_view text;  ///< as written; strings without their quotes; bad: the offending text
  int64_t integer = 0;
  double real = 0;
  size_t offset = 0, length = 0;
  bool is(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
  bool word(std::string_view name) const { return kind == Kind::name && text == name; }
};

enum class Syntax : uint8_t { pattern, expression };
/// Ends with a token of kind end. Something unreadable becomes a token of kind bad.
std::vector<Token> tokenize(std::string_view text, Syntax syntax);

/// Walks over tokens; the first error ends the walk.
class TokenReader {
 protected:
  TokenReader(std::string_view text, const Place& place, Syntax syntax, Code code)
      : text_(text), place_(place), tokens_(tokenize(text, syntax)), code_(code) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead(size_t k = 1) const { return tokens_[std::min(at_ + k, tokens_.size() - 1)]; }
  void advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
    // Inside brackets a line may end anywhere.
    if (open_ > 0) skip_newlines();
  }
  void skip_newlines() {
    while (now().kind == Token::Kind::newline) ++at_;
  }
  bool accept(std::string_view symbol) {
    if (!now().is(symbol)) return false;
    advance();
    return true;
  }
  std::nullptr_t fail_at(const Token& t, std::string message, std::string hint = {}) {
    if (!error_)
      error_ =
          text_error(code_, text_, t.offset, t.length, place_, std::move(message), std::move(hint));
    at_ = tokens_.size() - 1;
    return nullptr;
  }

  std::string_view text_;
  const Place& place_;
  std::vector<Token> tokens_;
  Code code_;
  size_t at_ = 0;
  int open_ = 0;  ///< brackets
  std::optional<Error> error_;
};

}  // namespace ferrule
