#include "engine/semantics/formula.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/base/join.h"
#include "engine/base/suggest.h"

namespace ferrule {
namespace {

struct BuiltinInfo {
  Builtin id;
  std::string_view name;
  size_t least, most;
};
constexpr auto kBuiltins = std::to_array<BuiltinInfo>({
    {Builtin::select, "select", 3, 3},
    {Builtin::cast, "cast", 2, 3},
    {Builtin::present, "present", 1, 1},
    {Builtin::type, "type", 1, 1},
    {Builtin::compute, "compute", 1, 1},
    {Builtin::is_float, "is_float", 1, 1},
    {Builtin::is_int, "is_int", 1, 1},
    {Builtin::is_unsigned, "is_unsigned", 1, 1},
    {Builtin::is_bool, "is_bool", 1, 1},
    {Builtin::count, "count", 1, 1},
    {Builtin::sum, "sum", 1, 1},
    {Builtin::rsum, "rsum", 1, 1},
    {Builtin::rmax, "rmax", 1, 1},
    {Builtin::rmin, "rmin", 1, 1},
    {Builtin::rmean, "rmean", 1, 1},
    {Builtin::rprod, "rprod", 1, 1},
});
constexpr auto kPrims = std::to_array<Prim>({
#define FERRULE_PRIMITIVE(id, spelling, arity, cls, cost) Prim::id,
#include "engine/semantics/primitives.def"
#undef FERRULE_PRIMITIVE
});
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
constexpr std::array<std::string_view, 8> kKeywords = {"and", "or",   "xor",  "not",
                                                       "if",  "then", "else", "in"};
bool is_keyword(std::string_view w) { return contains(kKeywords, w); }

/// Binds tighter downwards; comparisons do not chain.
struct Level {
  Prim op;
  int level;
};
constexpr auto kLevels = std::to_array<Level>({{Prim::lor, 1},
                                               {Prim::lxor, 1},
                                               {Prim::land, 2},
                                               {Prim::lnot, 3},
                                               {Prim::eq, 4},
                                               {Prim::ne, 4},
                                               {Prim::lt, 4},
                                               {Prim::le, 4},
                                               {Prim::gt, 4},
                                               {Prim::ge, 4},
                                               {Prim::add, 5},
                                               {Prim::sub, 5},
                                               {Prim::mul, 6},
                                               {Prim::div, 6},
                                               {Prim::neg, 7}});
constexpr int kNegation = 3, kComparison = 4, kSign = 7, kAtom = 9;

constexpr size_t kMaxText = 4000;
constexpr int kMostNested = 100;

struct Token {
  enum class Kind : uint8_t { end, number, text, word, symbol } kind = Kind::end;
  std::string_view text;
  size_t offset = 0;
};

/// Recursive descent; the first error ends it (thrown to parse_formula, which is the only caller).
class Parser {
 public:
  explicit Parser(std::string_view text) : source_(std::make_shared<const std::string>(text)) {
    // Bounds the depth of the tree, also of a + a + a + …
    if (text.size() > kMaxText)
      fail_at(kMaxText,
              fmt::format("the formula has {} characters, more than {}", text.size(), kMaxText),
              "name parts of it in let:");
    next();
  }

  FormulaExprPtr whole() {
    auto e = expression();
    if (token_.kind != Token::Kind::end)
      fail_at(token_.offset,
              fmt::format("\"{}\" where the formula should end", escape(token_.text)));
    return e;
  }

 private:
  [[noreturn]] void fail_at(size_t offset, std::string message, std::string hint = "") {
    throw FormulaError{offset, std::move(message), std::move(hint)};
  }

  void next() {
    std::string_view s = *source_;
    size_t i = token_.offset + token_.text.size() + (token_.kind == Token::Kind::text ? 2 : 0);
    while (i < s.size() && (s[i] == ' ' || s[i] == '\n' || s[i] == '\r')) ++i;
    token_ = {Token::Kind::end, s.substr(i, 0), i};
    if (i == s.size()) return;
    char c = s[i];
    size_t n = 1;
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') {
      token_.kind = Token::Kind::number;
      while (i + n < s.size() && (is_word(s[i + n]) || s[i + n] == '.' ||
                                  ((s[i + n] == '-' || s[i + n] == '+') &&
                                   (s[i + n - 1] == 'e' || s[i + n - 1] == 'E'))))
        ++n;
    } else if (is_word(c)) {
      token_.kind = Token::Kind::word;
      while (i + n < s.size() && is_word(s[i + n])) ++n;
    } else if (c == '\'') {
      size_t end = s.find('\'', i + 1);
      if (end == std::string_view::npos) fail_at(i, "a text that does not end", "close it with '");
      token_ = {Token::Kind::text, s.substr(i + 1, end - i - 1), i};
      return;
    } else {
      token_.kind = Token::Kind::symbol;
      if (i + 1 < s.size() && s[i + 1] == '=' &&
          std::string_view("=!<>").find(c) != std::string_view::npos)
        n = 2;
      else if (std::string_view("+-*/<>(),").find(c) == std::string_view::npos)
        fail_at(i, fmt::format("\"{}\" means nothing in a formula", escape(s.substr(i, 1))),
                c == '='   ? "write == to compare"
                : c == '%' ? "write mod(a, b)"
                           : "");
    }
    token_.text = s.substr(i, n);
  }

  bool at(std::string_view text) const {
    return (token_.kind == Token::Kind::symbol || token_.kind == Token::Kind::word) &&
           token_.text == text;
  }
  bool take(std::string_view text) {
    if (!at(text)) return false;
    next();
    return true;
  }
  void want(std::string_view text) {
    if (!take(text))
      fail_at(token_.offset,
              token_.kind == Token::Kind::end
                  ? fmt::format("the formula ends where \"{}\" is wanted", text)
                  : fmt::format("\"{}\" where \"{}\" is wanted", escape(token_.text), text));
  }

  std::shared_ptr<FormulaExpr> make(FormulaExpr::Kind kind, size_t offset) {
    auto e = std::make_shared<FormulaExpr>();
    e->kind = kind;
    e->offset = offset;
    e->source = source_;
    return e;
  }
  FormulaExprPtr make_prim(Prim p, size_t offset, std::vector<FormulaExprPtr> args) {
    auto e = make(FormulaExpr::Kind::prim, offset);
    e->prim = p;
    e->args = std::move(args);
    return e;
  }

  const Level* binary_here() const {
    const auto l = std::ranges::find_if(
        kLevels, [&](const Level& o) { return info(o.op).arity == 2 && at(info(o.op).spelling); });
    return l == kLevels.end() ? nullptr : &*l;
  }

  /// `lowest`: operators that bind more loosely end it.
  FormulaExprPtr nested(int lowest, size_t offset) {
    if (++depth_ > kMostNested) fail_at(offset, "the formula is nested too deeply");
    auto e = operators(lowest);
    --depth_;
    return e;
  }
  FormulaExprPtr expression() { return nested(0, token_.offset); }
  FormulaExprPtr operators(int lowest) {
    auto e = lowest <= kNegation && at("not") ? prefix(Prim::lnot, kNegation)
             : at("-")                        ? prefix(Prim::neg, kSign)
                                              : atom();
    for (bool compared = false;;) {
      const Level* l = binary_here();
      if (!l || l->level < lowest) break;
      if (l->level == kComparison && compared)
        fail_at(token_.offset, "comparisons cannot be chained", "write a < b and b < c");
      compared = l->level == kComparison;
      const size_t offset = token_.offset;
      next();
      e = make_prim(l->op, offset, {e, operators(l->level + 1)});
    }
    return e;
  }
  FormulaExprPtr prefix(Prim p, int level) {
    const size_t offset = token_.offset;
    next();
    return make_prim(p, offset, {nested(level, offset)});
  }

  FormulaExprPtr atom() {
    Token t = token_;
    switch (t.kind) {
      case Token::Kind::number:
        next();
        return number(t);
      case Token::Kind::text: {
        next();
        auto e = make(FormulaExpr::Kind::text, t.offset);
        e->word = std::string(t.text);
        return e;
      }
      case Token::Kind::word:
        return word();
      case Token::Kind::symbol:
        if (take("(")) {
          auto e = expression();
          want(")");
          return e;
        }
        break;
      case Token::Kind::end:
        break;
    }
    fail_at(t.offset, t.kind == Token::Kind::end
                          ? std::string("the formula ends where an operand is wanted")
                          : fmt::format("\"{}\" where an operand is wanted", escape(t.text)));
  }

  FormulaExprPtr number(const Token& t) {
    const char *first = t.text.data(), *last = first + t.text.size();
    auto e = make(FormulaExpr::Kind::integer, t.offset);
    auto whole = std::from_chars(first, last, e->i);
    if (whole.ec == std::errc() && whole.ptr == last) return e;
    e->kind = FormulaExpr::Kind::real;
    auto real = std::from_chars(first, last, e->f);
    if (real.ec != std::errc() || real.ptr != last)
      fail_at(t.offset, fmt::format("\"{}\" is not a number", escape(t.text)));
    return e;
  }

  FormulaExprPtr word() {
    Token t = token_;
    next();
    if (t.text == "if") {
      auto e = make(FormulaExpr::Kind::builtin, t.offset);
      e->builtin = Builtin::select;
      e->args.push_back(expression());
      want("then");
      e->args.push_back(expression());
      want("else");
      e->args.push_back(expression());
      return e;
    }
    if (is_keyword(t.text))
      fail_at(t.offset, fmt::format("\"{}\" where an operand is wanted", t.text));
    if (at("(")) return call(t);
    auto e = make(FormulaExpr::Kind::name, t.offset);
    e->word = std::string(t.text);
    return e;
  }

  FormulaExprPtr call(const Token& t) {
    want("(");
    std::vector<FormulaExprPtr> args;
    while (!at(")")) {
      args.push_back(expression());
      if (!take(",")) break;
    }
    want(")");
    for (const BuiltinInfo& b : kBuiltins) {
      if (b.name != t.text) continue;
      arity(t, args.size(), b.least, b.most);
      auto e = make(FormulaExpr::Kind::builtin, t.offset);
      e->builtin = b.id;
      e->args = std::move(args);
      return e;
    }
    for (Prim p : kPrims) {
      const PrimInfo& i = info(p);
      if (i.spelling != t.text || is_keyword(t.text) || (i.cls == PrimInfo::Class::other)) continue;
      bool fold = p == Prim::min || p == Prim::max;  // of a variadic input
      arity(t, args.size(), fold ? 1 : static_cast<size_t>(i.arity), static_cast<size_t>(i.arity));
      return make_prim(p, t.offset, std::move(args));
    }
    fail_at(t.offset, fmt::format("unknown function \"{}\"", escape(t.text)), similar(t.text));
  }

  void arity(const Token& t, size_t n, size_t least, size_t most) {
    if (n >= least && n <= most) return;
    fail_at(t.offset, fmt::format("{} takes {}{}, not {}", t.text,
                                  least == most ? "" : fmt::format("{} or ", least),
                                  counted(most, "operand"), n));
  }

  static std::string similar(std::string_view word) {
    std::vector<std::string_view> names;
    for (const BuiltinInfo& b : kBuiltins) names.push_back(b.name);
    for (Prim p : kPrims)
      if (is_word(info(p).spelling[0])) names.push_back(info(p).spelling);
    return did_you_mean(word, names);
  }

  std::shared_ptr<const std::string> source_;
  Token token_;
  int depth_ = 0;
};

int precedence(const FormulaExpr& e) {
  const auto l = std::ranges::find(kLevels, e.prim, &Level::op);
  return e.kind == FormulaExpr::Kind::prim && l != kLevels.end() ? l->level : kAtom;
}

std::string joined(const std::vector<FormulaExprPtr>& args) {
  std::string out;
  for (const auto& a : args) out += (out.empty() ? "" : ", ") + to_text(*a);
  return out;
}

}  // namespace

std::string_view spelling(Builtin b) {
  return std::ranges::find(kBuiltins, b, &BuiltinInfo::id)->name;
}

tl::expected<FormulaExprPtr, FormulaError> parse_formula(std::string_view text) {
  try {
    return Parser(text).whole();
  } catch (FormulaError& e) {
    return tl::unexpected<FormulaError>(std::move(e));
  }
}

std::string to_text(const FormulaExpr& e) {
  switch (e.kind) {
    case FormulaExpr::Kind::integer:
      return fmt::to_string(e.i);
    case FormulaExpr::Kind::real: {
      std::string s = fmt::format("{}", e.f);
      return s.find_first_of(".e") == std::string::npos ? s + ".0" : s;
    }
    case FormulaExpr::Kind::text:
      return "'" + e.word + "'";
    case FormulaExpr::Kind::name:
      return e.word;
    case FormulaExpr::Kind::builtin:
      return fmt::format("{}({})", spelling(e.builtin), joined(e.args));
    case FormulaExpr::Kind::prim:
      break;
  }
  int p = precedence(e);
  std::string_view spelling = info(e.prim).spelling;
  if (p == kAtom) return fmt::format("{}({})", spelling, joined(e.args));
  // Comparisons do not chain, so both their sides bind tighter; the others associate to the left.
  auto side = [&](const FormulaExpr& a, bool tighter) {
    return precedence(a) < p || (tighter && precedence(a) == p) ? "(" + to_text(a) + ")"
                                                                : to_text(a);
  };
  if (e.args.size() == 1)
    return fmt::format("{}{}{}", spelling, e.prim == Prim::lnot ? " " : "",
                       side(*e.args[0], false));
  return fmt::format("{} {} {}", side(*e.args[0], p == kComparison), spelling,
                     side(*e.args[1], true));
}

}  // namespace ferrule
