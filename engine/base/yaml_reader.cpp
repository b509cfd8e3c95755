#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "engine/base/yaml.h"

namespace ferrule::yaml {
namespace {

constexpr size_t kExcerptWidth = 120;

size_t count_points(std::string_view s) {
  return static_cast<size_t>(std::count_if(
      s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

/// Edit distance with transpositions, for suggestions; both texts are short.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

template <class Text>
std::string nearest_of(std::string_view word, std::span<const Text> candidates) {
  std::string best;
  word = word.substr(0, 64);
  size_t least = (word.size() <= 3 ? 1 : word.size() <= 6 ? 2 : word.size() / 3) + 1;
  for (std::string_view c : candidates) {
    size_t d = distance(word, c.substr(0, 64));
    if (d < least) least = d, best = c;
  }
  return best;
}

std::string list(std::span<const std::string_view> words) {
  std::string out;
  for (std::string_view w : words) out += (out.empty() ? "" : ", ") + std::string(w);
  return out;
}

std::string suggest(std::string_view word, std::span<const std::string_view> allowed) {
  std::string near = nearest(word, allowed);
  return near.empty() ? "allowed: " + list(allowed) : fmt::format("did you mean \"{}\"?", near);
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string_view> candidates) {
  return nearest_of(word, candidates);
}
std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  return nearest_of(word, candidates);
}

std::string_view name(Node::Kind k) {
  switch (k) {
    case Node::Kind::null:
      return "nothing";
    case Node::Kind::scalar:
      return "a scalar";
    case Node::Kind::sequence:
      return "a list";
    case Node::Kind::map:
      return "a map";
  }
  return "?";
}

std::string Source::place(int line, int column) const {
  return fmt::format("{}:{}:{}", escape(name, 1000), line, column);
}

std::string Source::excerpt(int line, int column) const {
  if (line < 1 || column < 1) return "";
  size_t start = 0;
  for (int k = 1; k < line; ++k) {
    start = text.find('\n', start);
    if (start == std::string::npos) return "";
    ++start;
  }
  size_t end = std::min(text.find('\n', start), text.size());
  std::string_view row = std::string_view(text).substr(start, end - start);
  if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
  size_t caret = std::min(static_cast<size_t>(column) - 1, row.size());
  size_t from = caret > kExcerptWidth * 2 / 3 ? caret - kExcerptWidth / 2 : 0;
  std::string before = escape(row.substr(from, caret - from), kExcerptWidth * 4);
  std::string after =
      escape(row.substr(caret), kExcerptWidth - std::min(kExcerptWidth / 2, caret - from));
  return before + after + "\n" + std::string(count_points(before), ' ') + "^";
}

const Node* Node::find(std::string_view key) const {
  for (const auto& [k, v] : entries)
    if (k.text == key) return &v;
  return nullptr;
}

std::pair<int, int> Node::position(size_t offset) const {
  if (verbatim) return {line, column + (quoted ? 1 : 0) + static_cast<int>(offset)};
  if (block_line == 0) return {line, column};
  std::string_view before = std::string_view(text).substr(0, offset);
  auto lines = static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  size_t newline = before.rfind('\n');
  size_t in_line = newline == std::string_view::npos ? before.size() : before.size() - newline - 1;
  return {block_line + lines, block_indent + static_cast<int>(in_line) + 1};
}

void Reader::error(Code code, int line, int column, std::string message, std::string hint) {
  if (errors_.size() >= kMaxErrors) {
    ++dropped_;
    return;
  }
  std::string place = source_->place(line, column);
  Error e = ferrule::error(code, place, message, hint).value();
  e.excerpt = source_->excerpt(line, column);
  errors_.push_back(std::move(e));
}

void Reader::error_in(const Node& at, size_t offset, std::string message, std::string hint,
                      Code code) {
  auto [line, column] = at.position(offset);
  error(code, line, column, std::move(message), std::move(hint));
}

Status Reader::status() const {
  if (errors_.empty()) return {};
  Error first = errors_.front();
  for (size_t i = 1; i < errors_.size(); ++i) {
    Error next = errors_[i];
    std::vector<Error> nested = std::move(next.more);
    next.more.clear();
    first.more.push_back(std::move(next));
    std::move(nested.begin(), nested.end(), std::back_inserter(first.more));
  }
  if (dropped_)
    first.more.push_back(ferrule::error(Code::yaml_key, escape(source_->name, 1000),
                                        fmt::format("{} further errors", dropped_), std::string())
                             .value());
  return fail(std::move(first));
}

bool Reader::expect(const Node& n, Node::Kind kind, std::string_view what) {
  if (n.kind == kind) return true;
  error(n, fmt::format("{} is {}, {} is wanted", what, name(n.kind), name(kind)));
  return false;
}

void Reader::keys(const Node& map, std::span<const std::string_view> allowed) {
  for (const auto& [key, value] : map.entries)
    if (std::find(allowed.begin(), allowed.end(), key.text) == allowed.end())
      error(key, fmt::format("unknown key \"{}\"", escape(key.text)), suggest(key.text, allowed));
}

const Node* Reader::required(const Node& map, std::string_view key) {
  const Node* n = map.find(key);
  if (!n) error(map, fmt::format("key \"{}\" is missing", key));
  return n;
}

std::string Reader::string(const Node& n) {
  if (n.is_scalar()) return n.text;
  error(n, fmt::format("{} where a text is wanted", name(n.kind)));
  return "";
}

std::string Reader::quoted(const Node& n, std::string_view what) {
  if (!n.is_scalar())
    error(n, fmt::format("{} is {}, a quoted text is wanted", what, name(n.kind)));
  else if (!n.quoted)
    error(n, fmt::format("{} is not quoted", what), "write it in \"quotes\"");
  else
    return n.text;
  return "";
}

bool Reader::boolean(const Node& n) {
  if (n.is_scalar() && !n.quoted && (n.text == "true" || n.text == "false"))
    return n.text == "true";
  error(n, n.is_scalar() ? fmt::format("\"{}\" where true or false is wanted", escape(n.text))
                         : fmt::format("{} where true or false is wanted", name(n.kind)));
  return false;
}

int64_t Reader::integer(const Node& n) {
  if (n.is_scalar() && !n.quoted)
    if (auto v = parse_integer(n.text)) return *v;
  error(n, n.is_scalar() ? fmt::format("\"{}\" where an integer is wanted", escape(n.text))
                         : fmt::format("{} where an integer is wanted", name(n.kind)));
  return 0;
}

double Reader::number(const Node& n) {
  if (n.is_scalar() && !n.quoted)
    if (auto v = parse_number(n.text)) return *v;
  error(n, n.is_scalar() ? fmt::format("\"{}\" where a number is wanted", escape(n.text))
                         : fmt::format("{} where a number is wanted", name(n.kind)));
  return 0;
}

std::vector<std::string> Reader::strings(const Node& n) {
  if (n.is_scalar()) return {n.text};
  std::vector<std::string> out;
  if (!n.is_sequence())
    error(n, fmt::format("{} where a text or a list of texts is wanted", name(n.kind)));
  else
    for (const Node& item : n.items) out.push_back(string(item));
  return out;
}

std::string Reader::one_of(const Node& n, std::span<const std::string_view> allowed) {
  size_t before = count();
  std::string s = string(n);
  if (count() == before && std::find(allowed.begin(), allowed.end(), s) == allowed.end())
    error(n, fmt::format("\"{}\" is none of {}", escape(s), list(allowed)), suggest(s, allowed));
  return s;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t v = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return v;
}

std::optional<double> parse_number(std::string_view text) {
  double v = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return v;
}

}  // namespace ferrule::yaml
