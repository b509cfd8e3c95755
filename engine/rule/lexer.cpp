#include "engine/rule/lexer.h"

#include <charconv>

namespace ferrule {
namespace {

bool alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(std::string_view text, Syntax syntax) : text_(text), syntax_(syntax) {}

  std::vector<Token> run() {
    tokens_.reserve(text_.size() / 3 + 2);
    while (at_ < text_.size()) step();
    // Where the text ends for its reader: a block's last newline begins no line of it.
    push(Token::Kind::end, text_.find_last_not_of(" \t\r\n") + 1, 0);
    return std::move(tokens_);
  }

 private:
  char peek(size_t k = 0) const { return at_ + k < text_.size() ? text_[at_ + k] : '\0'; }

  Token& push(Token::Kind kind, size_t from, size_t length) {
    Token t;
    t.kind = kind;
    t.offset = from;
    t.length = length;
    t.text = text_.substr(from, length);
    return tokens_.emplace_back(t);
  }

  void step() {
    char c = peek();
    if (c == '\n') {
      if (syntax_ == Syntax::pattern) push(Token::Kind::newline, at_, 1);
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else if (c == '#' && syntax_ == Syntax::pattern && !tag()) {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else if (alpha(c)) {
      name();
    } else if (digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      string(c);
    } else {
      symbol();
    }
  }

  /// `(#erf …` and `| #tanh …` are tags; any other # starts a comment.
  bool tag() const {
    if (!alpha(peek(1))) return false;
    for (size_t k = tokens_.size(); k-- > 0;)
      if (tokens_[k].kind != Token::Kind::newline)
        return tokens_[k].is("(") || tokens_[k].is("|") || tokens_[k].is("=");
    return false;
  }

  /// Dots join names ("group.conv"); three of them are the variadic mark.
  void name() {
    size_t from = at_;
    auto inside = [&](char c) { return alpha(c) || digit(c); };
    while (inside(peek()) || (peek() == '.' && alpha(peek(1)))) ++at_;
    push(Token::Kind::name, from, at_ - from);
  }

  void number() {
    size_t from = at_;
    bool real = false;
    while (digit(peek())) ++at_;
    if (peek() == '.' && digit(peek(1))) {
      real = true;
      ++at_;
      while (digit(peek())) ++at_;
    }
    size_t sign = peek(1) == '-' || peek(1) == '+' ? 1 : 0;
    if ((peek() == 'e' || peek() == 'E') && digit(peek(1 + sign))) {
      real = true;
      at_ += 1 + sign;
      while (digit(peek())) ++at_;
    }
    Token& t = push(real ? Token::Kind::real : Token::Kind::integer, from, at_ - from);
    const char *first = t.text.data(), *last = first + t.text.size();
    auto parsed =
        real ? std::from_chars(first, last, t.real) : std::from_chars(first, last, t.integer);
    if (parsed.ec != std::errc() || alpha(peek())) t.kind = Token::Kind::bad;
    if (!real) t.real = static_cast<double>(t.integer);
  }

  void string(char quote) {
    size_t from = at_++;
    while (at_ < text_.size() && peek() != quote && peek() != '\n') ++at_;
    if (peek() != quote) {
      push(Token::Kind::bad, from, at_ - from);
      return;
    }
    ++at_;
    push(Token::Kind::string, from, at_ - from).text = text_.substr(from + 1, at_ - from - 2);
  }

  void symbol() {
    static constexpr std::string_view kPattern[] = {"...", "::"};
    static constexpr std::string_view kExpression[] = {"??", "==", "!=", "<=", ">=", "//"};
    std::string_view rest = text_.substr(at_);
    auto longest = [&](auto& table) {
      for (std::string_view s : table)
        if (rest.starts_with(s)) return s.size();
      return size_t{0};
    };
    size_t n = syntax_ == Syntax::pattern ? longest(kPattern) : longest(kExpression);
    bool known =
        n > 0 || std::string_view("()[]{}<>=,|!?~$@:+-*/#").find(peek()) != std::string_view::npos;
    if (n == 0) n = 1;
    while (!known && at_ + n < text_.size() &&
           (static_cast<unsigned char>(text_[at_ + n]) & 0xc0) == 0x80)
      ++n;  // a whole UTF-8 sequence
    push(known ? Token::Kind::symbol : Token::Kind::bad, at_, n);
    at_ += n;
  }

  std::string_view text_;
  Syntax syntax_;
  size_t at_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view text, Syntax syntax) {
  return Lexer(text, syntax).run();
}

}  // namespace ferrule
