#include "engine/interpreter/regex.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>

#include <fmt/format.h>

namespace ferrule::interp {
namespace {

using Set = Regex::Set;
using Assertion = Regex::Assertion;

constexpr uint32_t kLast = 0x10ffff;
constexpr int kMostNested = 250, kMostRepeated = 1000;
constexpr size_t kMostSteps = 10000;

struct Fault {
  std::string text;
};

/// Sorted, without overlaps.
Set normal(Set s) {
  std::ranges::sort(s);
  Set out;
  for (const auto& [low, high] : s) {
    if (!out.empty() && low <= out.back().second + 1)
      out.back().second = std::max(out.back().second, high);
    else
      out.emplace_back(low, high);
  }
  return out;
}

Set without(const Set& s) {
  Set out;
  uint32_t from = 0;
  for (const auto& [low, high] : normal(s)) {
    if (low > from) out.emplace_back(from, low - 1);
    from = high + 1;
  }
  if (from <= kLast) out.emplace_back(from, kLast);
  return out;
}

/// With what differs in case alone.
Set folded(const Set& s) {
  constexpr uint32_t kCased = 0x1e944;  // behind it nothing has a case
  static const locale_t kUnicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  Set out = s;
  for (const auto& [low, high] : s)
    for (uint32_t c = low; c <= std::min(high, kCased); ++c) {
      const auto w = static_cast<wint_t>(c);
      for (const wint_t other : {kUnicode ? towlower_l(w, kUnicode) : towlower(w),
                                 kUnicode ? towupper_l(w, kUnicode) : towupper(w)})
        if (other != w) out.emplace_back(other, other);
    }
  return normal(out);
}

const Set kDigit{{'0', '9'}}, kSpace{{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}},
    kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

const std::array<std::pair<std::string_view, Set>, 14> kNamed{{
    {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
    {"alpha", {{'A', 'Z'}, {'a', 'z'}}},
    {"ascii", {{0, 0x7f}}},
    {"blank", {{'\t', '\t'}, {' ', ' '}}},
    {"cntrl", {{0, 0x1f}, {0x7f, 0x7f}}},
    {"digit", kDigit},
    {"graph", {{'!', '~'}}},
    {"lower", {{'a', 'z'}}},
    {"print", {{' ', '~'}}},
    {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
    {"space", {{'\t', '\r'}, {' ', ' '}}},
    {"upper", {{'A', 'Z'}}},
    {"word", kWord},
    {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}},
}};

/// A part of a pattern.
struct Part {
  enum class Kind : uint8_t { nothing, set, sequence, choice, repeat, assertion } kind{};
  std::vector<Part> parts{};
  Set set{};
  Assertion assertion{};
  int least = 0, most = 0;  ///< -1: any number
};

class Parser {
 public:
  explicit Parser(std::string_view pattern) : p_(pattern) {}

  Part whole() {
    Part out = choice();
    if (more()) throw Fault{"a ) without ("};
    return out;
  }

 private:
  struct Flags {
    bool fold = false, lines = false, dot_takes_all = false;
  };

  bool more() const { return at_ < p_.size(); }
  bool sees(std::string_view s) const { return p_.substr(at_).starts_with(s); }
  bool take(std::string_view s) {
    const bool there = sees(s);
    if (there) at_ += s.size();
    return there;
  }
  uint32_t code() {
    const uint32_t c = next_code(p_, at_);
    if (c == kNoCode) throw Fault{"bytes that are no UTF-8"};
    return c;
  }

  /// Flags that are set in a group end with it.
  Part choice() {
    if (++depth_ > kMostNested) throw Fault{"too many ( in each other"};
    const Flags before = flags_;
    Part out{Part::Kind::choice};
    do out.parts.push_back(sequence());
    while (take("|"));
    flags_ = before;
    --depth_;
    if (out.parts.size() > 1) return out;
    Part only = std::move(out.parts[0]);
    return only;
  }

  Part sequence() {
    Part out{Part::Kind::sequence};
    while (more() && !sees("|") && !sees(")")) {
      if (take("\\Q")) {
        for (bool end = take("\\E"); more() && !end;) {
          Part part = literal(code());
          end = take("\\E");
          out.parts.push_back(end ? repeated(std::move(part)) : std::move(part));
        }
        continue;
      }
      std::optional<Part> part = item();
      if (part) out.parts.push_back(repeated(std::move(*part)));
    }
    return out;
  }

  Part literal(uint32_t c) const { return of_set({{c, c}}); }
  Part of_set(Set s) const {
    Part out{Part::Kind::set};
    out.set = flags_.fold ? folded(s) : normal(std::move(s));
    return out;
  }
  static Part asserted(Assertion a) {
    Part out{Part::Kind::assertion};
    out.assertion = a;
    return out;
  }

  /// None: flags for what follows.
  std::optional<Part> item() {
    if (take("(")) return group();
    if (take("[")) return bracket();
    if (take("."))
      return flags_.dot_takes_all ? Part{Part::Kind::set, {}, {{0, kLast}}}
                                  : Part{Part::Kind::set, {}, without({{'\n', '\n'}})};
    if (take("^")) return asserted(flags_.lines ? Assertion::line_begin : Assertion::text_begin);
    if (take("$")) return asserted(flags_.lines ? Assertion::line_end : Assertion::text_end);
    if (sees("*") || sees("+") || sees("?")) throw Fault{"a repetition of nothing"};
    if (!take("\\")) return literal(code());
    if (take("A")) return asserted(Assertion::text_begin);
    if (take("z")) return asserted(Assertion::text_end);
    if (take("b")) return asserted(Assertion::word);
    if (take("B")) return asserted(Assertion::no_word);
    if (auto set = class_escape()) return of_set(std::move(*set));
    return literal(escaped());
  }

  std::optional<Part> group() {
    if (take("?")) {
      if (take("P<") || (sees("<") && !sees("<=") && !sees("<!") && take("<"))) {
        const size_t end = p_.find('>', at_);
        if (end == p_.npos || end == at_) throw Fault{"a group without a name"};
        for (; at_ < end; ++at_)
          if (!std::isalnum(static_cast<unsigned char>(p_[at_])) && p_[at_] != '_')
            throw Fault{"a bad name of a group"};
        ++at_;
      } else {
        Flags set = flags_;
        for (bool on = true; !sees(":") && !sees(")");) {
          if (take("-") && on)
            on = false;
          else if (take("i"))
            set.fold = on;
          else if (take("m"))
            set.lines = on;
          else if (take("s"))
            set.dot_takes_all = on;
          else if (!take("U"))
            throw Fault{"a group (? that is not known"};
        }
        if (take(")")) {
          flags_ = set;
          return std::nullopt;
        }
        take(":");
        const Flags before = flags_;
        flags_ = set;
        Part inner = choice();
        flags_ = before;
        if (!take(")")) throw Fault{"a ( without )"};
        return inner;
      }
    }
    Part inner = choice();
    if (!take(")")) throw Fault{"a ( without )"};
    return inner;
  }

  std::optional<int> count() {
    const size_t from = at_;
    int64_t n = 0;
    for (; more() && p_[at_] >= '0' && p_[at_] <= '9'; ++at_)
      n = std::min<int64_t>(n * 10 + (p_[at_] - '0'), kMostRepeated + 1);
    return at_ == from ? std::nullopt : std::optional(static_cast<int>(n));
  }

  /// {n}, {n,} or {n,m}; anything else in braces stands for itself.
  bool braces(int& least, int& most) {
    const size_t from = at_;
    const auto refuse = [&] { return at_ = from, false; };
    if (!take("{")) return false;
    const auto first = count();
    if (!first) return refuse();
    least = most = *first;
    if (take(",")) {
      const auto second = count();
      most = second.value_or(-1);
    }
    if (!take("}")) return refuse();
    if (least > kMostRepeated || most > kMostRepeated || (most >= 0 && most < least))
      throw Fault{fmt::format("the repetition {}", p_.substr(from, at_ - from))};
    return true;
  }

  Part repeated(Part part) {
    for (bool first = true;; first = false) {
      int least = 0, most = -1;
      if (take("+")) {
        least = 1;
      } else if (take("?")) {
        most = 1;
      } else if (!take("*") && !braces(least, most)) {
        return part;
      }
      if (!first) throw Fault{"a repetition of a repetition"};
      take("?");  // fewest first: the same texts match as a whole
      Part out{Part::Kind::repeat};
      out.least = least, out.most = most;
      out.parts.push_back(std::move(part));
      part = std::move(out);
    }
  }

  /// Behind a backslash.
  std::optional<Set> class_escape() {
    if (take("d")) return kDigit;
    if (take("D")) return without(kDigit);
    if (take("s")) return kSpace;
    if (take("S")) return without(kSpace);
    if (take("w")) return kWord;
    if (take("W")) return without(kWord);
    if (sees("p") || sees("P")) throw Fault{"classes by Unicode property are not supported"};
    if (sees("C")) throw Fault{"\\C, a single byte, is not supported"};
    return std::nullopt;
  }

  uint32_t digits(int base, size_t most) {
    uint32_t value = 0;
    size_t n = 0;
    for (; more() && n < most; ++n, ++at_) {
      const char c = p_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : 99;
      if (digit >= base) break;
      value = std::min<uint32_t>(value * static_cast<uint32_t>(base) + static_cast<uint32_t>(digit),
                                 kNoCode);
    }
    if (n == 0 || value > kLast) throw Fault{"a bad number of a character"};
    return value;
  }

  uint32_t escaped() {
    if (!more()) throw Fault{"a \\ at the end"};
    const char c = p_[at_];
    const bool octal =
        c >= '1' && c <= '7' && at_ + 1 < p_.size() && p_[at_ + 1] >= '0' && p_[at_ + 1] <= '7';
    if (c == '0' || octal) return digits(8, 3);
    constexpr std::string_view kLetters = "aftnrv", kCodes = "\a\f\t\n\r\v";
    if (const size_t k = kLetters.find(c); k != kLetters.npos)
      return ++at_, static_cast<uint32_t>(kCodes[k]);
    if (take("x{")) {
      const uint32_t value = digits(16, 8);
      if (!take("}")) throw Fault{"a bad number of a character"};
      return value;
    }
    if (take("x")) {
      const size_t from = at_;
      const uint32_t value = digits(16, 2);
      if (at_ != from + 2) throw Fault{"a bad number of a character"};
      return value;
    }
    if (static_cast<unsigned char>(c) >= 0x80 || std::isalnum(static_cast<unsigned char>(c)))
      throw Fault{fmt::format("\\{} is not known", c)};
    return ++at_, static_cast<uint32_t>(c);
  }

  Part bracket() {
    const bool inverse = take("^");
    Set all;
    const auto add = [&](const Set& s) { all.insert(all.end(), s.begin(), s.end()); };
    for (bool first = true; first || !sees("]"); first = false) {
      if (!more()) throw Fault{"a [ without ]"};
      if (take("[:")) {
        const bool inverse_name = take("^");
        const size_t end = p_.find(":]", at_);
        const auto* named = end == p_.npos
                                ? kNamed.end()
                                : std::ranges::find(kNamed, p_.substr(at_, end - at_),
                                                    &std::pair<std::string_view, Set>::first);
        if (named == kNamed.end()) throw Fault{"a [: class that is not known"};
        add(inverse_name ? without(named->second) : named->second);
        at_ = end + 2;
        continue;
      }
      const auto one = [&]() -> std::optional<uint32_t> {  // none: a class was added
        if (!take("\\")) return code();
        if (auto set = class_escape()) return add(*set), std::nullopt;
        return escaped();
      };
      const auto low = one();
      if (!low) continue;
      uint32_t high = *low;
      if (sees("-") && !sees("-]")) {
        take("-");
        if (!more()) throw Fault{"a [ without ]"};
        const auto end = one();
        if (!end || *end < *low) throw Fault{"a bad range in [ ]"};
        high = *end;
      }
      all.emplace_back(*low, high);
    }
    take("]");
    if (flags_.fold) all = folded(all);
    Part out{Part::Kind::set};
    out.set = inverse ? without(all) : normal(std::move(all));
    return out;
  }

  std::string_view p_;
  size_t at_ = 0;
  int depth_ = 0;
  Flags flags_;
};

class Emitter {
 public:
  Emitter(std::vector<Regex::Step>& steps, std::vector<Set>& sets) : steps_(steps), sets_(sets) {}

  void emit(const Part& p) {
    switch (p.kind) {
      case Part::Kind::nothing:
        break;
      case Part::Kind::set: {
        const uint32_t at = add(Regex::Step::Kind::set);
        steps_[at].set = set_of(p);
        break;
      }
      case Part::Kind::assertion: {
        const uint32_t at = add(Regex::Step::Kind::assertion);
        steps_[at].assertion = p.assertion;
        break;
      }
      case Part::Kind::sequence:
        for (const Part& part : p.parts) emit(part);
        break;
      case Part::Kind::choice: {
        std::vector<uint32_t> ends;
        for (size_t k = 0; k < p.parts.size(); ++k) {
          const bool last = k + 1 == p.parts.size();
          const uint32_t fork = last ? 0 : add(Regex::Step::Kind::fork);
          emit(p.parts[k]);
          if (last) break;
          ends.push_back(add(Regex::Step::Kind::jump));
          steps_[fork].other = here();
        }
        for (uint32_t end : ends) steps_[end].next = here();
        break;
      }
      case Part::Kind::repeat:
        repeat(p);
        break;
    }
  }
  uint32_t add(Regex::Step::Kind kind) {
    if (steps_.size() >= kMostSteps) throw Fault{fmt::format("it has over {} steps", kMostSteps)};
    steps_.push_back({kind, here() + 1});
    return here() - 1;
  }

 private:
  uint32_t here() const { return static_cast<uint32_t>(steps_.size()); }

  void repeat(const Part& p) {
    for (int k = 0; k < p.least; ++k) {
      const uint32_t from = here();
      emit(p.parts[0]);
      if (here() == from) return;  // a repetition of nothing, which could go on for long
    }
    if (p.most < 0) {
      const uint32_t fork = add(Regex::Step::Kind::fork);
      emit(p.parts[0]);
      steps_[add(Regex::Step::Kind::jump)].next = fork;
      steps_[fork].other = here();
      return;
    }
    std::vector<uint32_t> forks;
    for (int k = p.least; k < p.most; ++k) {
      forks.push_back(add(Regex::Step::Kind::fork));
      emit(p.parts[0]);
    }
    for (uint32_t fork : forks) steps_[fork].other = here();
  }

  /// Repetitions share their sets.
  size_t set_of(const Part& p) {
    const auto [it, fresh] = known_.try_emplace(&p, sets_.size());
    if (fresh) sets_.push_back(p.set);
    return it->second;
  }

  std::vector<Regex::Step>& steps_;
  std::vector<Set>& sets_;
  std::map<const Part*, size_t> known_;
};

bool holds(const Set& s, uint32_t c) {
  const auto it = std::ranges::upper_bound(s, c, {}, &std::pair<uint32_t, uint32_t>::first);
  return it != s.begin() && c <= std::prev(it)->second;
}

bool in_word(uint32_t c) { return holds(kWord, c); }

}  // namespace

uint32_t next_code(std::string_view text, size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t size = lead < 0x80       ? 1
                      : lead >> 5 == 6  ? 2
                      : lead >> 4 == 14 ? 3
                      : lead >> 3 == 30 ? 4
                                        : 0;
  uint32_t code = size == 1 ? lead : lead & (0x7f >> size);
  bool good = size != 0 && at + size <= text.size();
  for (size_t k = 1; good && k < size; ++k) {
    const auto next = static_cast<unsigned char>(text[at + k]);
    good = next >> 6 == 2;
    code = code << 6 | (next & 63);
  }
  constexpr std::array<uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  good = good && code >= kLeast[size] && code <= kLast && code >> 11 != 0x1b;  // no surrogates
  at += good ? size : 1;
  return good ? code : kNoCode;
}

tl::expected<Regex, std::string> Regex::compile(std::string_view pattern) {
  Regex out;
  try {
    const Part whole = Parser(pattern).whole();
    Emitter emitter(out.steps_, out.sets_);
    emitter.emit(whole);
    emitter.add(Regex::Step::Kind::match);
  } catch (const Fault& fault) {
    return tl::unexpected(fault.text);
  }
  return out;
}

bool Regex::matches(std::string_view text, const std::function<bool()>& stopped) const {
  constexpr uint32_t kNone = kNoCode + 1;  // before the text, and behind it
  std::vector<uint32_t> now, then, stack;
  std::vector<uint64_t> reached(steps_.size(), 0);  // at which character, counted from 1
  uint64_t number = 0;
  /// Where `from` leads without taking a character, between the two.
  const auto follow = [&](uint32_t from, uint32_t before, uint32_t behind, auto& to) {
    stack.push_back(from);
    while (!stack.empty()) {
      const uint32_t at = stack.back();
      stack.pop_back();
      if (reached[at] == number) continue;
      reached[at] = number;
      const Regex::Step& s = steps_[at];
      if (s.kind == Regex::Step::Kind::jump || s.kind == Regex::Step::Kind::fork) {
        if (s.kind == Regex::Step::Kind::fork) stack.push_back(s.other);
        stack.push_back(s.next);
      } else if (s.kind != Regex::Step::Kind::assertion) {
        to.push_back(at);
      } else {
        const bool edge = in_word(before) != in_word(behind);
        const bool yes = s.assertion == Assertion::text_begin   ? before == kNone
                         : s.assertion == Assertion::text_end   ? behind == kNone
                         : s.assertion == Assertion::line_begin ? before == kNone || before == '\n'
                         : s.assertion == Assertion::line_end   ? behind == kNone || behind == '\n'
                         : s.assertion == Assertion::word       ? edge
                                                                : !edge;
        if (yes) stack.push_back(s.next);
      }
    }
  };
  size_t at = 0;
  uint32_t code = text.empty() ? kNone : next_code(text, at);
  number = 1;
  follow(0, kNone, code, now);
  while (code != kNone && !now.empty()) {
    if (++number % 256 == 0 && stopped && stopped()) return false;
    const uint32_t behind = at < text.size() ? next_code(text, at) : kNone;
    then.clear();
    for (uint32_t step : now)
      if (const Regex::Step& s = steps_[step];
          s.kind == Regex::Step::Kind::set && holds(sets_[s.set], code))
        follow(s.next, code, behind, then);
    std::swap(now, then);
    code = behind;
  }
  return code == kNone && std::ranges::any_of(now, [&](uint32_t step) {
           return steps_[step].kind == Regex::Step::Kind::match;
         });
}

}  // namespace ferrule::interp
