#include "engine/rule/expr.h"

#include <algorithm>
#include <cmath>

#include "engine/rule/condition_functions.h"
#include "engine/rule/expr_ast.h"
#include "engine/rule/lexer.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

using ExprKind = Expr::Kind;
using Binary = Expr::Binary;

constexpr int kMaxDepth = 100, kMaxOperators = 1000;

struct Level {
  std::string_view spelling;
  Binary op;
  int level;
};
// Binds tighter downwards; comparisons do not chain.
constexpr Level kLevels[] = {
    {"implies", Binary::implies, 0}, {"or", Binary::either, 1},     {"and", Binary::both, 2},
    {"==", Binary::eq, 4},           {"!=", Binary::ne, 4},         {"<", Binary::lt, 4},
    {"<=", Binary::le, 4},           {">", Binary::gt, 4},          {">=", Binary::ge, 4},
    {"in", Binary::in, 4},           {"not in", Binary::not_in, 4}, {"~", Binary::like, 4},
    {"??", Binary::coalesce, 5},     {"+", Binary::add, 6},         {"-", Binary::sub, 6},
    {"*", Binary::mul, 7},           {"/", Binary::div, 7},         {"//", Binary::floordiv, 7},
    {"mod", Binary::mod, 7},
};
constexpr int kNot = 3, kComparison = 4, kUnary = 8;

const Level& level_of(Binary op) {
  for (const Level& l : kLevels)
    if (l.op == op) return l;
  FERRULE_ASSERT(false, "an operator without a row");
}

class Parser : TokenReader {
 public:
  Parser(std::string_view text, const Place& place)
      : TokenReader(text, place, Syntax::expression, Code::expression_invalid) {}

  Result<ExprPtr> run() {
    if (now().kind == Token::Kind::end) return fail_at(now(), "an empty expression"), fail(*error_);
    ExprPtr e = expression(0);
    if (!error_ && now().kind != Token::Kind::end) unexpected("the end of the expression");
    if (error_) return fail(*error_);
    return e;
  }

 private:
  bool accept_word(std::string_view name) {
    if (!now().word(name)) return false;
    advance();
    return true;
  }

  ExprPtr unexpected(std::string_view wanted) {
    const Token& t = now();
    if (t.kind == Token::Kind::end)
      return fail_at(t, fmt::format("the expression ends where {} should follow", wanted));
    std::string hint;
    if (t.is("=")) hint = "equality is ==";
    if (t.kind == Token::Kind::bad && (t.text == "&" || t.text == "|")) hint = "write and, or";
    if (t.is("|")) hint = "write or";
    if (t.is("!")) hint = "write not";
    if (t.kind == Token::Kind::bad && t.text == "%") hint = "the remainder is mod";
    return fail_at(t, fmt::format("found \"{}\", expected {}", escape(t.text), wanted), hint);
  }
  bool expect(std::string_view symbol) {
    if (accept(symbol)) return true;
    unexpected(fmt::format("\"{}\"", symbol));
    return false;
  }

  std::shared_ptr<Expr> make(ExprKind kind, uint32_t from) {
    auto e = std::make_shared<Expr>();
    e->kind = kind;
    e->offset = from;
    return e;
  }
  ExprPtr done(std::shared_ptr<Expr> e) {
    if (error_) return nullptr;
    const Token& last = tokens_[at_ > 0 ? at_ - 1 : 0];
    e->length = static_cast<uint32_t>(last.offset + last.length) - e->offset;
    return e;
  }
  uint32_t here() const { return static_cast<uint32_t>(now().offset); }

  const Level* binary_here() const {
    for (const Level& l : kLevels) {
      if (l.op == Binary::not_in) {
        if (now().word("not") && ahead().word("in")) return &l;
      } else if (now().is(l.spelling) || now().word(l.spelling)) {
        return &l;
      }
    }
    return nullptr;
  }

  ExprPtr expression(int lowest) {
    if (++depth_ > kMaxDepth)
      return fail_at(now(), fmt::format("nested deeper than {}", kMaxDepth));
    uint32_t from = here();
    int operators = 0;
    ExprPtr left = lowest <= kNot && now().word("not") ? negation() : unary();
    while (!error_) {
      const Level* l = binary_here();
      if (!l || l->level < lowest) break;
      if (l->level == kComparison && left->kind == ExprKind::binary && left->offset == from &&
          level_of(left->binary).level == kComparison && !parenthesised_.contains(left.get())) {
        fail_at(now(), "comparisons do not chain", "write a < b and b < c");
        break;
      }
      if (++operators > kMaxOperators) {
        fail_at(now(), fmt::format("more than {} operators in a row", kMaxOperators));
        break;
      }
      left = binary(from, left, *l);
    }
    --depth_;
    return error_ ? nullptr : left;
  }

  ExprPtr binary(uint32_t from, ExprPtr left, const Level& l) {
    advance();
    if (l.op == Binary::not_in) advance();
    auto e = make(ExprKind::binary, from);
    e->binary = l.op;
    // implies and ?? group to the right, everything else to the left.
    bool right = l.op == Binary::implies || l.op == Binary::coalesce;
    ExprPtr operand = expression(right ? l.level : l.level + 1);
    e->args = {std::move(left), std::move(operand)};
    return done(e);
  }

  ExprPtr negation() {
    auto e = make(ExprKind::negation, here());
    advance();
    e->args = {expression(kNot)};
    return done(e);
  }

  ExprPtr unary() {
    uint32_t from = here();
    if (accept("-")) {
      auto e = make(ExprKind::negate, from);
      e->args = {expression(kUnary)};
      if (error_) return nullptr;
      const Val& v = e->args[0]->literal;
      if (e->args[0]->kind == ExprKind::literal) {  // so that -1 prints and reads as one number
        if (auto i = get<int64_t>(v)) e->literal = Val{-*i};
        if (auto d = get<double>(v)) e->literal = Val{-*d};
        if (!is_unknown(e->literal)) e->kind = ExprKind::literal, e->args.clear();
      }
      return done(e);
    }
    ExprPtr e = primary();
    while (!error_ && now().is("[")) {
      advance();
      auto i = make(ExprKind::index, from);
      i->args = {std::move(e), expression(0)};
      expect("]");
      e = done(i);
    }
    return e;
  }

  ExprPtr primary() {
    const Token& t = now();
    uint32_t from = here();
    switch (t.kind) {
      case Token::Kind::integer:
        return literal(Val{t.integer});
      case Token::Kind::real:
        return literal(Val{t.real});
      case Token::Kind::string:
        return literal(Val{std::string(t.text)});
      case Token::Kind::name:
        return named();
      default:
        break;
    }
    if (accept("(")) {
      ExprPtr e = expression(0);
      expect(")");
      if (e) parenthesised_.insert(e.get());
      return e;
    }
    if (t.is("[") || t.is("{")) {
      std::string_view close = t.is("[") ? "]" : "}";
      advance();
      auto e = make(ExprKind::list, from);
      arguments(*e, close);
      return done(e);
    }
    return unexpected("a value");
  }

  void arguments(Expr& e, std::string_view close) {
    while (!error_ && !now().is(close)) {
      e.args.push_back(expression(0));
      if (!error_ && !now().is(close)) expect(",");
    }
    if (!error_) expect(close);
  }

  ExprPtr literal(Val v) {
    auto e = make(ExprKind::literal, here());
    e->literal = std::move(v);
    advance();
    return done(e);
  }

  ExprPtr named() {
    const Token name = now();
    static constexpr std::string_view kReserved[] = {"and",  "or",   "in",  "implies",
                                                     "then", "else", "mod", "not"};
    for (std::string_view r : kReserved)
      if (name.text == r) return unexpected("a value");
    if (name.text == "if") return conditional();
    if (ahead().is("(")) return call(name);
    auto e = make(ExprKind::name, here());
    e->name = name.text;
    advance();
    return done(e);
  }

  ExprPtr conditional() {
    auto e = make(ExprKind::conditional, here());
    advance();
    for (std::string_view w : {"then", "else", ""}) {
      e->args.push_back(expression(0));
      if (error_ || w.empty()) break;
      if (!accept_word(w)) return unexpected(fmt::format("\"{}\"", w));
    }
    return done(e);
  }

  ExprPtr call(const Token& name) {
    uint32_t from = here();
    advance();
    advance();
    struct Row {
      std::string_view name;
      Expr::Quantifier quantifier;
    };
    static constexpr Row kQuantifiers[] = {
        {"all", Expr::Quantifier::all},     {"any", Expr::Quantifier::any},
        {"count", Expr::Quantifier::count}, {"sum", Expr::Quantifier::sum},
        {"map", Expr::Quantifier::map},     {"filter", Expr::Quantifier::filter}};
    if (now().kind == Token::Kind::name && ahead().word("in"))
      for (const Row& r : kQuantifiers)
        if (r.name == name.text) return quantified(from, r.quantifier);
    auto e = make(ExprKind::call, from);
    e->name = name.text;
    e->function = find_function(name.text);
    if (!e->function) return unknown_function(name);
    arguments(*e, ")");
    if (error_) return nullptr;
    int n = static_cast<int>(e->args.size());
    const Function& f = *e->function;
    if (n < f.min_args || n > f.max_args)
      return fail_at(name, fmt::format("{} arguments for {}{}", n, name.text, f.entry.signature));
    return done(e);
  }

  ExprPtr unknown_function(const Token& name) {
    std::vector<std::string> known = {"all", "any", "map", "filter"};
    for (const Function& f : functions()) known.emplace_back(f.entry.name);
    if (std::ranges::find(known.begin(), known.begin() + 4, name.text) != known.begin() + 4)
      return fail_at(name, fmt::format("{} needs a variable", name.text),
                     fmt::format("{}(v in list: {})", name.text,
                                 name.text == "map" ? "expression" : "condition"));
    std::string hint = name.text == "accepts"
                           ? "leave the condition out: contracts are asked of every group"
                           : did_you_mean(name.text, known);
    return fail_at(name, fmt::format("there is no function {}", escape(name.text)),
                   hint.empty() ? "see ferrule rules vocabulary" : hint);
  }

  ExprPtr quantified(uint32_t from, Expr::Quantifier q) {
    auto e = make(ExprKind::quantifier, from);
    e->quantifier = q;
    e->name = now().text;
    advance();
    advance();
    e->args.push_back(expression(0));
    if (!error_) expect(":");
    if (!error_) e->args.push_back(expression(0));
    if (!error_) expect(")");
    return done(e);
  }

  int depth_ = 0;
  std::set<const Expr*> parenthesised_;
};

constexpr std::string_view kQuantifierNames[] = {"all", "any", "count", "sum", "map", "filter"};

std::string number_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  std::string s = fmt::format("{}", d);
  return s.find_first_of(".en") == std::string::npos ? s + ".0" : s;
}

std::string literal_text(const Val& v) {
  if (auto i = get<int64_t>(v)) return fmt::format("{}", *i);
  if (auto d = get<double>(v)) return number_text(*d);
  if (auto s = get<std::string>(v))
    return s->find('\'') == std::string::npos ? "'" + *s + "'" : '"' + *s + '"';
  return "?";
}

int level(const Expr& e) {
  if (e.kind == ExprKind::binary) return level_of(e.binary).level;
  if (e.kind == ExprKind::negation) return kNot;
  if (e.kind == ExprKind::conditional) return -1;
  if (e.kind == ExprKind::negate) return kUnary;
  if (e.kind == ExprKind::literal)
    if (auto n = as_number(e.literal); n && std::signbit(*n)) return kUnary;
  return 9;
}

std::string operand(const Expr& e, int lowest) {
  return level(e) < lowest ? "(" + to_text(e) + ")" : to_text(e);
}

std::string joined(const std::vector<ExprPtr>& args) {
  std::string s;
  for (const ExprPtr& a : args) s += (s.empty() ? "" : ", ") + to_text(*a);
  return s;
}

void collect(const Expr& e, std::vector<std::string_view>& local, std::vector<NameUse>& out,
             std::string_view wanted = {}, std::string_view function = {}) {
  if (e.kind == ExprKind::name) {
    for (std::string_view l : local)
      if (l == e.name) return;
    out.push_back({e.name, e.offset, wanted, function});
    return;
  }
  if (e.kind == ExprKind::quantifier) {
    collect(*e.args[0], local, out);
    local.push_back(e.name);
    collect(*e.args[1], local, out);
    local.pop_back();
    return;
  }
  for (size_t k = 0; k < e.args.size(); ++k) {
    std::string_view kind;
    if (e.kind == ExprKind::call && !e.function->wanted.empty())
      kind = e.function->wanted[std::min(k, e.function->wanted.size() - 1)];
    collect(*e.args[k], local, out, kind, kind.empty() ? "" : e.function->entry.name);
  }
}

}  // namespace

std::string_view spelling(Expr::Binary op) { return level_of(op).spelling; }

Result<ExprPtr> parse_expression(std::string_view text, const Place& place) {
  return Parser(text, place).run();
}

std::string to_text(const Expr& e) {
  switch (e.kind) {
    case ExprKind::literal:
      return literal_text(e.literal);
    case ExprKind::name:
      return e.name;
    case ExprKind::list:
      return "[" + joined(e.args) + "]";
    case ExprKind::call:
      return e.name + "(" + joined(e.args) + ")";
    case ExprKind::negate:
      return "-" + operand(*e.args[0], kUnary);
    case ExprKind::negation:
      return "not " + operand(*e.args[0], kNot);
    case ExprKind::index:
      return operand(*e.args[0], 9) + "[" + to_text(*e.args[1]) + "]";
    case ExprKind::quantifier:
      return fmt::format("{}({} in {}: {})", kQuantifierNames[static_cast<int>(e.quantifier)],
                         e.name, to_text(*e.args[0]), to_text(*e.args[1]));
    case ExprKind::conditional:
      return fmt::format("if {} then {} else {}", operand(*e.args[0], 0), operand(*e.args[1], 0),
                         to_text(*e.args[2]));
    case ExprKind::binary:
      break;
  }
  const Level& l = level_of(e.binary);
  bool right = e.binary == Binary::implies || e.binary == Binary::coalesce;
  int left_lowest = right || l.level == kComparison ? l.level + 1 : l.level;
  return fmt::format("{} {} {}", operand(*e.args[0], left_lowest), l.spelling,
                     operand(*e.args[1], right ? l.level : l.level + 1));
}

std::vector<NameUse> name_uses(const Expr& e) {
  std::vector<std::string_view> local;
  std::vector<NameUse> out;
  collect(e, local, out);
  return out;
}

bool asks_contract(const Expr& e) {
  return (e.kind == Expr::Kind::call && e.name == "accepts_strided") ||
         std::ranges::any_of(e.args, [](const ExprPtr& a) { return asks_contract(*a); });
}

std::vector<std::string> names(const Expr& e) {
  std::vector<std::string> out;
  for (NameUse& u : name_uses(e)) out.push_back(std::move(u.name));
  return out;
}

}  // namespace ferrule
