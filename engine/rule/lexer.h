// Tokens of the pattern and the condition language. The two share names, numbers and strings; they
// differ in their symbols (conditions have == and //, patterns have marks such as ?! that must stay
// apart) and in that line ends and # comments mean something in patterns only.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace ferrule
