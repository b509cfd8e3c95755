#include "engine/rule/pattern_parse.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/join.h"
#include "engine/rule/expr.h"
#include "engine/rule/lexer.h"
#include "engine/rule/shape_pattern.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

using Kind = PatternExpr::Kind;
using Mutable = std::shared_ptr<PatternExpr>;

constexpr int kMaxDepth = 64;
constexpr int kMaxNodes = 2000;

bool lower_case(std::string_view name) {
  return !name.empty() && (name[0] == '_' || (name[0] >= 'a' && name[0] <= 'z'));
}

enum class Mode : uint8_t { pattern, replacement, block };

class Parser : TokenReader {
 public:
  Parser(std::string_view text, const Place& place, Mode mode, const Blocks& blocks)
      : TokenReader(text, place, Syntax::pattern, Code::pattern_syntax),
        mode_(mode),
        blocks_(blocks) {}

  Result<Pattern> run() {
    Pattern p;
    skip_newlines();
    if (now().kind == Token::Kind::end)
      fail_at(now(), "an empty pattern", "a line is: result = Operator(operands)");
    while (!error_ && now().kind != Token::Kind::end) {
      lines_ = &p.lines;
      line(p);
      skip_newlines();
    }
    if (!error_) check(p);
    if (error_) return fail(*error_);
    for (const std::string& r : p.lines.back().results)
      if (!r.empty()) p.outputs.push_back(r);
    return p;
  }

  Status op_set_only(std::vector<std::string>& ops, std::vector<std::string>& classes) {
    PatternExpr e;
    op_set(e);
    if (!error_ && now().kind != Token::Kind::end) unexpected("the end of the operator set");
    if (error_) return fail(*error_);
    ops = e.ops, classes = e.classes;
    return {};
  }

 private:
  // --- tokens
  void open() { ++open_, advance(); }
  bool close(std::string_view symbol) {
    if (!now().is(symbol)) return unexpected(fmt::format("\"{}\"", symbol)), false;
    --open_;
    advance();
    return true;
  }
  Place here() const { return place_at(text_, now().offset, place_); }

  /// A name, taken; "" where there is none.
  std::string word(std::string_view wanted) {
    std::string n(now().text);
    if (now().kind != Token::Kind::name) return unexpected(wanted), "";
    advance();
    return n;
  }
  std::nullptr_t unexpected(std::string_view wanted) {
    const Token& t = now();
    if (t.kind == Token::Kind::end)
      return fail_at(t, fmt::format("the text ends where {} should follow", wanted));
    if (t.kind == Token::Kind::newline)
      return fail_at(t, fmt::format("the line ends where {} should follow", wanted));
    std::string hint;
    if (t.is(":")) hint = "a label stands in front: [conv] t = Conv(…)";
    return fail_at(t, fmt::format("found \"{}\", expected {}", escape(t.text), wanted), hint);
  }

  Mutable make(Kind kind) {
    if (++nodes_ > kMaxNodes)
      fail_at(now(), fmt::format("a pattern of more than {} nodes", kMaxNodes));
    auto e = std::make_shared<PatternExpr>();
    e->kind = kind;
    e->place = here();
    return e;
  }

  // --- lines
  void line(Pattern& p) {
    PatternLine l;
    l.place = here();
    size_t start = at_;
    std::string label_name = now().is("[") ? label() : "";
    bool named = results(l);
    if (!named && !error_) at_ = start, l.results = {""}, label_name.clear();
    if (error_) return;
    Mutable e = choices();
    if (error_) return;
    if (!label_name.empty()) apply_label(*e, label_name);
    e->results = e->kind == Kind::call ? l.results : e->results;
    l.expr = e;
    if (now().kind != Token::Kind::newline && now().kind != Token::Kind::end)
      unexpected("the end of the line");
    p.lines.push_back(std::move(l));
  }

  /// `a, b... =`; false if what follows is not that (blocks may be a bare expression).
  bool results(PatternLine& l) {
    size_t k = at_;
    while (tokens_[k].kind == Token::Kind::name || tokens_[k].is(",") || tokens_[k].is("...")) ++k;
    if (!tokens_[k].is("=")) {
      if (mode_ == Mode::block) return false;
      at_ = k;
      unexpected("\"=\"");
      return false;
    }
    do {
      if (now().kind != Token::Kind::name) return unexpected("the name of a result"), false;
      std::string n(now().text);
      if (n.find('.') != n.npos && !expanded(n))
        return fail_at(now(), "a result's name has no dots"), false;
      advance();
      if (now().is("...")) advance(), n += "...";
      l.results.push_back(n == "_" ? "" : n);
    } while (accept(","));
    if (!accept("=")) return unexpected("\"=\""), false;
    skip_newlines();
    return true;
  }

  /// Names that block expansion made ("square.1.t") are read back from printed rules.
  static bool expanded(std::string_view n) { return n.find('.') != n.npos && lower_case(n); }

  std::string label() {
    open();
    std::string n(now().text);
    if (now().kind != Token::Kind::name) return unexpected("a label's name"), "";
    if (!lower_case(n))
      return fail_at(now(), fmt::format("label {} begins with a capital", n),
                     "labels are lower case, so that none looks like an operator"),
             "";
    advance();
    close("]");
    return n;
  }

  static void apply_label(PatternExpr& e, const std::string& label) {
    if (e.kind == Kind::call && e.label.empty()) e.label = label;
    if (e.kind == Kind::alternatives)
      for (auto& [tag, choice] : e.choices) apply_label(const_cast<PatternExpr&>(*choice), label);
  }

  // --- alternatives
  bool at_bar() {
    size_t k = at_;
    while (tokens_[k].kind == Token::Kind::newline) ++k;
    if (!tokens_[k].is("|")) return false;
    at_ = k;
    return true;
  }

  Mutable choices() {
    if (++depth_ > kMaxDepth)
      return fail_at(now(), fmt::format("nested deeper than {}", kMaxDepth));
    std::vector<std::pair<std::string, PatternExprPtr>> all;
    Place start = here();
    do {
      skip_newlines();
      std::string tag;
      if (now().is("#")) {
        advance();
        tag = now().text;
        advance();
      }
      Mutable e = operand();
      if (!error_ && mode_ == Mode::replacement && now().is("?") && ahead().is("?"))
        e = coalesce(std::move(e));
      if (error_) return nullptr;
      all.emplace_back(std::move(tag), std::move(e));
      if (mode_ == Mode::replacement && now().is("|"))
        return fail_at(now(), "a replacement has no alternatives",
                       "write x ?? y for: x if present, else y");
    } while (at_bar() && accept("|"));
    --depth_;
    if (all.size() == 1 && all[0].first.empty())
      return std::const_pointer_cast<PatternExpr>(all[0].second);
    Mutable e = make(Kind::alternatives);
    e->place = start;
    e->choices = std::move(all);
    return e;
  }

  // --- operands
  Mutable operand() {
    const Token& t = now();
    if (t.is("(")) {
      open();
      Mutable e = choices();
      if (!error_) close(")");
      return e;
    }
    if (t.is("[")) {
      std::string l = label();
      if (error_) return nullptr;
      Mutable e = operand();
      if (!error_ && e->kind != Kind::call)
        return fail_at(tokens_[at_ > 0 ? at_ - 1 : 0], "a label stands before an operator");
      if (!error_) e->label = l;
      return e;
    }
    if (t.is("~") || t.is("-") || t.kind == Token::Kind::integer || t.kind == Token::Kind::real ||
        t.word("inf") || t.word("nan"))
      return number();
    if (t.is("{") && mode_ == Mode::replacement) return expression();
    if (t.is("{") || t.is("@")) return call();
    if (t.kind != Token::Kind::name) return unexpected("an operand");
    const Token& n = ahead();
    bool optional_call = n.is("?") && (ahead(2).is("(") || ahead(2).is("<"));
    return n.is("(") || n.is("<") || n.is("::") || optional_call ? call() : reference();
  }

  Mutable coalesce(Mutable first) {
    advance();
    advance();
    Mutable e = make(Kind::alternatives);
    e->choices.emplace_back("", std::move(first));
    Mutable other = operand();
    e->choices.emplace_back("", std::move(other));
    return error_ ? nullptr : e;
  }

  Mutable reference() {
    Mutable e = make(Kind::reference);
    e->name = now().text;
    if (e->name.find('.') != std::string::npos && !expanded(e->name))
      return fail_at(now(), "a value's name has no dots");
    advance();
    if (mode_ == Mode::replacement) {
      e->variadic = accept("...");
      return e;
    }
    while (!error_) {
      if (now().is("!"))
        e->constant = true;
      else if (now().is("?"))
        e->optional = true;
      else if (now().is("..."))
        e->variadic = true;
      else
        break;
      advance();
    }
    shape(*e);
    return e;
  }

  void shape(PatternExpr& e) {
    if (!now().is("[") || mode_ == Mode::replacement) return;
    size_t from = now().offset, k = at_;
    while (tokens_[k].kind != Token::Kind::end && !tokens_[k].is("]")) ++k;
    e.shape = parse_shape_pattern(text_.substr(from, tokens_[k].offset + tokens_[k].length - from));
    if (!e.shape) {
      fail_at(now(), "not a shape pattern",
              "sizes are names, numbers, _ and one ...: [B, H, 64], [..., M, N]");
      return;
    }
    at_ = k;
    advance();
  }

  Mutable number() {
    Mutable e = make(Kind::number);
    e->near = accept("~");
    if (e->near && mode_ == Mode::replacement)
      return fail_at(now(), "a replacement's numbers are exact");
    e->number = signed_number();
    if (error_ || !e->near || !now().is("(")) return e;
    open();
    e->rtol = signed_number();
    if (!error_) close(")");
    return e;
  }
  double signed_number() {
    double sign = accept("-") ? -1 : 1;
    const Token& t = now();
    double v = 0;
    if (t.kind == Token::Kind::integer || t.kind == Token::Kind::real)
      v = t.real;
    else if (t.word("inf"))
      v = HUGE_VAL;
    else if (t.word("nan"))
      v = std::nan("");
    else
      unexpected("a number");
    advance();
    return sign * v;
  }

  /// `{expr}`: the text up to the matching brace.
  ExprPtr braced() {
    size_t from = now().offset + 1, k = at_;
    int depth = 0;
    for (; tokens_[k].kind != Token::Kind::end; ++k) {
      if (tokens_[k].is("{")) ++depth;
      if (tokens_[k].is("}") && --depth == 0) break;
    }
    if (tokens_[k].kind == Token::Kind::end) return fail_at(now(), "no \"}\" closes this");
    auto e = parse_expression(text_.substr(from, tokens_[k].offset - from),
                              place_at(text_, from, place_));
    if (!e) {
      if (!error_) error_ = e.error();
      return nullptr;
    }
    at_ = k;
    advance();
    return *e;
  }
  Mutable expression() {
    Mutable e = make(Kind::expression);
    e->expression = braced();
    return error_ ? nullptr : e;
  }

  // --- calls
  void op_name(PatternExpr& e) {
    bool at = accept("@");
    std::string n = word("an operator");
    if (error_) return;
    if (at) {  // @group.conv is an operator, @activation a class
      if (n.starts_with("group."))
        e.ops.push_back(n);
      else
        e.classes.push_back(n);
      return;
    }
    if (accept("::")) n += "::" + word("an operator");
    if (!error_) e.ops.push_back(n);
  }
  void op_set(PatternExpr& e) {
    if (!now().is("{")) return op_name(e);
    open();
    do op_name(e);
    while (!error_ && accept("|"));
    if (!error_) close("}");
  }

  Mutable call() {
    Mutable e = make(Kind::call);
    const Token head = now();
    op_set(*e);
    if (!error_ && mode_ != Mode::replacement) e->optional = accept("?");
    if (!error_ && now().is("<")) attributes(*e);
    if (!error_ && !now().is("(")) unexpected("\"(\"");
    if (error_) return nullptr;
    open();
    while (!error_ && !now().is(")")) {
      if (now().is(",")) {  // an input left out
        e->args.push_back(make(Kind::reference));
        advance();
        continue;
      }
      e->args.push_back(choices());
      if (!error_ && !now().is(")") && !now().is(",")) unexpected("\",\" or \")\"");
      if (!error_ && now().is(",")) advance();
    }
    if (!error_) close(")");
    if (!error_) shape(*e);
    if (error_) return nullptr;
    if (mode_ != Mode::replacement && e->ops.size() == 1)
      if (auto b = blocks_.find(e->ops[0]); b != blocks_.end()) return expand(b->second, *e, head);
    if (mode_ != Mode::replacement) check_op_names(*e, head);
    return error_ ? nullptr : e;
  }

  void check_op_names(const PatternExpr& e, const Token& head) {
    for (const std::string& op : e.ops) {
      if (!lower_case(op) || op.starts_with("group.") || op.find("::") != op.npos) continue;
      std::vector<std::string> known;
      for (const auto& [n, b] : blocks_) known.push_back(n);
      std::string hint = did_you_mean(op, known);
      fail_at(head, fmt::format("{} is neither an operator nor a block", escape(op)),
              hint.empty() ? "operators begin with a capital, classes with @" : hint);
    }
  }

  void attributes(PatternExpr& e) {
    open();
    while (!error_ && !now().is(">")) {
      if (accept("...")) {
        e.any_attrs = mode_ != Mode::replacement;
        if (mode_ == Mode::replacement)
          e.copy_attrs = word("the label whose attributes are copied");
      } else {
        attribute(e);
      }
      if (!error_ && !now().is(">") && !accept(",")) unexpected("\",\" or \">\"");
    }
    if (!error_) close(">");
  }

  void attribute(PatternExpr& e) {
    AttrPattern a;
    a.place = here();
    const Token key = now();
    if (key.kind != Token::Kind::name) {
      unexpected("an attribute's name");
      return;
    }
    a.name = key.text;
    for (const AttrPattern& other : e.attrs)
      if (other.name == a.name) fail_at(key, fmt::format("attribute {} is given twice", a.name));
    advance();
    if (!error_ && !accept("=")) unexpected("\"=\"");
    if (error_) return;
    if (accept("$")) {
      a.kind = AttrPattern::Kind::bind;
      a.bind = word("a name after $");
    } else if (now().is("{")) {
      a.kind = AttrPattern::Kind::expression;
      a.expression = braced();
    } else {
      a.literal = literal();
    }
    e.attrs.push_back(std::move(a));
  }

  Attr literal() {
    if (!now().is("[")) return scalar();
    open();
    std::vector<Attr> items;
    while (!error_ && !now().is("]")) {
      items.push_back(scalar());
      if (!error_ && !now().is("]") && !accept(",")) unexpected("\",\" or \"]\"");
    }
    if (error_ || !close("]")) return int64_t{0};
    auto all = [&](auto type) {
      using T = decltype(type);
      return std::ranges::all_of(items, [](const Attr& a) { return std::holds_alternative<T>(a); });
    };
    auto list = [&](auto type) {
      std::vector<decltype(type)> out;
      for (const Attr& a : items) out.push_back(std::get<decltype(type)>(a));
      return Attr{out};
    };
    if (all(int64_t{})) return list(int64_t{});
    if (all(std::string{})) return list(std::string{});
    for (Attr& a : items) {
      if (auto i = std::get_if<int64_t>(&a)) a = static_cast<double>(*i);
      if (std::holds_alternative<std::string>(a))
        return fail_at(now(), "a list of strings and numbers"), int64_t{0};
    }
    return list(double{});
  }
  Attr scalar() {
    const Token t = now();
    if (t.kind == Token::Kind::string) return advance(), std::string(t.text);
    if (t.kind == Token::Kind::name && !t.word("inf") && !t.word("nan")) {
      if (auto d = parse_dtype(t.text)) return advance(), static_cast<int64_t>(*d);  // to=f32
      return fail_at(t, fmt::format("{} is not an attribute's value", escape(t.text)),
                     "strings are quoted; $name binds; {expression}"),
             int64_t{0};
    }
    bool negative = accept("-");
    if (now().kind == Token::Kind::integer) {
      int64_t v = now().integer;
      advance();
      return negative ? -v : v;
    }
    double v = signed_number();
    return negative ? -v : v;
  }

  // --- blocks
  /// The block's body with its parameters replaced and everything else in it renamed. A parameter
  /// that is read more than once and stands for more than a name becomes a line of its own: one
  /// value, not copies.
  Mutable expand(const Block& b, const PatternExpr& e, const Token& head) {
    if (e.args.size() != b.params.size())
      return fail_at(head, fmt::format("block {} takes {}, not {}", e.ops[0],
                                       counted(b.params.size(), "operand"), e.args.size()));
    if (!e.attrs.empty() || e.any_attrs) return fail_at(head, "a block has no attributes");
    std::string prefix = fmt::format("{}.x{}.", e.ops[0], ++expansions_);
    std::map<std::string, PatternExprPtr> subst;
    for (size_t k = 0; k < b.params.size(); ++k) {
      PatternExprPtr arg = e.args[k];
      if (arg->kind == Kind::call || arg->kind == Kind::alternatives) {
        std::string n = prefix + b.params[k];
        auto ref = std::make_shared<PatternExpr>();
        ref->name = n;
        ref->place = arg->place;
        auto named = std::make_shared<PatternExpr>(*arg);
        if (named->kind == Kind::call) named->results = {n};
        lines_->push_back(PatternLine{{n}, named, arg->place});
        arg = ref;
      }
      subst[b.params[k]] = arg;
    }
    for (size_t k = 0; k + 1 < b.body.lines.size(); ++k) {
      PatternLine l = b.body.lines[k];
      for (std::string& r : l.results)
        if (!r.empty()) r = prefix + r;
      auto body = copy(*l.expr, subst, prefix);
      if (body->kind == Kind::call) body->results = l.results;
      l.expr = body;
      lines_->push_back(std::move(l));
    }
    Mutable value = copy(*b.body.lines.back().expr, subst, prefix);
    value->results.clear();
    value->place = e.place;
    if (!e.label.empty()) apply_label(*value, e.label);
    if (!e.optional) return value;
    Mutable either = make(Kind::alternatives);
    either->choices = {{"", value}, {"", e.args.at(0)}};
    return either;
  }

  Mutable copy(const PatternExpr& e, const std::map<std::string, PatternExprPtr>& subst,
               const std::string& prefix) {
    if (++nodes_ > kMaxNodes)
      fail_at(now(), fmt::format("blocks expand to more than {} nodes", kMaxNodes));
    if (error_) return std::make_shared<PatternExpr>(e);
    if (e.kind == Kind::reference)
      if (auto s = subst.find(e.name); s != subst.end())
        return std::make_shared<PatternExpr>(*s->second);
    auto c = std::make_shared<PatternExpr>(e);
    if (e.kind == Kind::reference && !e.name.empty()) c->name = prefix + e.name;
    if (!e.label.empty()) c->label = prefix + e.label;
    if (e.kind == Kind::call) c->results.clear();
    for (PatternExprPtr& a : c->args) a = copy(*a, subst, prefix);
    for (auto& [tag, choice] : c->choices) choice = copy(*choice, subst, prefix);
    return c;
  }

  // --- the whole
  void fail_place(const Place& at, std::string message, std::string hint = {}) {
    if (error_) return;
    size_t offset = 0;
    for (int line = place_.line; line < at.line && offset < text_.size(); ++offset)
      if (text_[offset] == '\n') ++line;
    offset += static_cast<size_t>(std::max(0, at.column - place_.column));
    size_t length = 0;
    while (offset + length < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[offset + length])) ||
            text_[offset + length] == '_'))
      ++length;
    error_ = text_error(Code::pattern_syntax, text_, offset, length, place_, std::move(message),
                        std::move(hint));
  }

  void check(Pattern& p) {
    std::map<std::string, const PatternLine*> made;
    for (const PatternLine& l : p.lines)
      for (const std::string& r : l.results) {
        if (r.empty()) continue;
        if (!made.emplace(r, &l).second)
          return fail_place(l.place, fmt::format("{} is the result of two lines", r));
      }
    std::set<std::string> used, defined;
    for (const PatternLine& l : p.lines) {
      each_expr(*l.expr, [&](const PatternExpr& e) {
        if (e.kind != Kind::reference || e.name.empty()) return;
        used.insert(e.name);
        used.insert(e.name + "...");
        if (made.contains(e.name) && !defined.contains(e.name))
          fail_place(e.place, fmt::format("{} is used before the line that makes it", e.name),
                     "order the lines from inputs to outputs");
        if (defined.contains(e.name) && (e.optional || e.constant || e.variadic) &&
            mode_ != Mode::replacement)
          fail_place(e.place,
                     fmt::format("{} is made by a line above, so it has no marks", e.name));
      });
      if (error_) return;
      for (const std::string& r : l.results) defined.insert(r);
      std::set<std::string> labels = labels_;
      if (mode_ != Mode::replacement) check_labels(*l.expr, labels);
      labels_ = std::move(labels);
    }
    if (mode_ == Mode::replacement) return;
    for (size_t k = 0; k + 1 < p.lines.size(); ++k) {
      const auto& results = p.lines[k].results;
      bool connected =
          std::ranges::any_of(results, [&](const std::string& r) { return used.contains(r); });
      if (!connected)
        return fail_place(p.lines[k].place, "no later line uses this one's result",
                          "a pattern is connected; the last line is its root");
    }
    const PatternExpr& root = *p.lines.back().expr;
    if (root.kind != Kind::call && root.kind != Kind::alternatives && mode_ == Mode::pattern)
      fail_place(root.place, "the last line is not an operator");
  }

  /// A label stands for one node, so it may come again on another alternative only.
  void check_labels(const PatternExpr& e, std::set<std::string>& labels) {
    if (!e.label.empty() && !labels.insert(e.label).second)
      fail_place(e.place, fmt::format("label {} is given to two nodes", e.label));
    for (const PatternExprPtr& a : e.args) check_labels(*a, labels);
    std::set<std::string> after = labels;
    for (const auto& [tag, choice] : e.choices) {
      std::set<std::string> mine = labels;
      check_labels(*choice, mine);
      after.merge(mine);
    }
    labels = std::move(after);
  }

  Mode mode_;
  const Blocks& blocks_;
  int depth_ = 0, nodes_ = 0, expansions_ = 0;
  std::vector<PatternLine>* lines_ = nullptr;
  std::set<std::string> labels_;
};

}  // namespace

Result<Pattern> parse_pattern(std::string_view text, const Place& place, const Blocks& blocks) {
  return Parser(text, place, Mode::pattern, blocks).run();
}

Result<Pattern> parse_replacement(std::string_view text, const Place& place) {
  static const Blocks kNone;
  return Parser(text, place, Mode::replacement, kNone).run();
}

Status parse_op_set(std::string_view text, const Place& place, std::vector<std::string>& ops,
                    std::vector<std::string>& classes) {
  static const Blocks kNone;
  return Parser(text, place, Mode::pattern, kNone).op_set_only(ops, classes);
}

Result<std::pair<std::string, Block>> parse_block(std::string_view head, const Place& head_place,
                                                  std::string_view body, const Place& place,
                                                  const Blocks& known) {
  std::vector<Token> t = tokenize(head, Syntax::pattern);
  Block b;
  size_t k = 0;
  bool good = t[0].kind == Token::Kind::name && lower_case(t[0].text) && t[1].is("(");
  std::string name(t[0].text);
  for (k = 2; good && t[k].kind == Token::Kind::name; ++k) {
    b.params.emplace_back(t[k].text);
    if (t[k + 1].is(",")) ++k;
  }
  good = good && t[k].is(")") && t[k + 1].kind == Token::Kind::end && !b.params.empty();
  if (!good)
    return fail(text_error(Code::pattern_syntax, head, 0, head.size(), head_place,
                           "not the head of a block",
                           "a block is written square(x): \"…\", its name in lower case"));
  FERRULE_ASSIGN(b.body, Parser(body, place, Mode::block, known).run());
  return std::pair(std::move(name), std::move(b));
}

}  // namespace ferrule
