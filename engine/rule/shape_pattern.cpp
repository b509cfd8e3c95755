#include "engine/rule/shape_pattern.h"

#include "engine/rule/lexer.h"

namespace ferrule {

std::optional<std::vector<DimPattern>> parse_shape_pattern(std::string_view text) {
  std::vector<Token> t = tokenize(text, Syntax::pattern);
  size_t i = 0;
  if (!t[i++].is("[")) return std::nullopt;
  std::vector<DimPattern> out;
  bool rest = false;
  while (!t[i].is("]")) {
    DimPattern d;
    if (t[i].is("...")) {
      if (rest) return std::nullopt;
      rest = true;
      d.kind = DimPattern::Kind::rest;
    } else if (t[i].kind == Token::Kind::integer) {
      d.kind = DimPattern::Kind::constant;
      d.constant = t[i].integer;
    } else if (t[i].word("_")) {
      d.kind = DimPattern::Kind::any;
    } else if (t[i].kind == Token::Kind::name && t[i].text.find('.') == std::string_view::npos) {
      d.kind = DimPattern::Kind::symbol;
      d.symbol = t[i].text;
    } else {
      return std::nullopt;
    }
    out.push_back(std::move(d));
    ++i;
    if (t[i].is(","))
      ++i;
    else if (!t[i].is("]"))
      return std::nullopt;
  }
  return t[i + 1].kind == Token::Kind::end ? std::optional(out) : std::nullopt;
}

std::string to_text(const std::vector<DimPattern>& shape) {
  std::string s;
  for (const DimPattern& d : shape) {
    if (!s.empty()) s += ", ";
    switch (d.kind) {
      case DimPattern::Kind::symbol:
        s += d.symbol;
        break;
      case DimPattern::Kind::constant:
        s += std::to_string(d.constant);
        break;
      case DimPattern::Kind::rest:
        s += "...";
        break;
      case DimPattern::Kind::any:
        s += "_";
        break;
    }
  }
  return "[" + s + "]";
}

Truth match_shape(const std::vector<DimPattern>& pattern, const Shape& shape,
                  std::map<std::string, Dim, std::less<>>& dims) {
  size_t rest = pattern.size();
  for (size_t k = 0; k < pattern.size(); ++k)
    if (pattern[k].kind == DimPattern::Kind::rest) rest = k;
  bool open = rest < pattern.size();
  size_t fixed = pattern.size() - (open ? 1 : 0);
  if (open ? shape.size() < fixed : shape.size() != fixed) return Truth::no;
  Truth all = Truth::yes;
  for (size_t k = 0; k < pattern.size(); ++k) {
    if (k == rest) continue;
    const DimPattern& p = pattern[k];
    const Dim& d = k < rest ? shape[k] : shape[shape.size() - (pattern.size() - k)];
    Truth t = Truth::yes;
    if (p.kind == DimPattern::Kind::constant) t = equal(d, Dim(p.constant));
    if (p.kind == DimPattern::Kind::symbol) {
      auto [it, fresh] = dims.emplace(p.symbol, d);
      if (!fresh) t = equal(it->second, d);
    }
    if (t == Truth::no) return t;
    if (t == Truth::unknown) all = t;
  }
  return all;
}

}  // namespace ferrule
