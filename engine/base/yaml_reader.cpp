#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "engine/base/suggest.h"
#include "engine/base/yaml.h"

namespace ferrule::yaml {
namespace {

constexpr size_t kExcerptWidth = 120;

size_t count_points(std::string_view s) {
  return static_cast<size_t>(std::ranges::count_if(
      s, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string suggest(std::string_view word, std::span<const std::string_view> allowed) {
  std::string hint = did_you_mean(word, allowed);
  return hint.empty() ? fmt::format("allowed: {}", fmt::join(allowed, ", ")) : hint;
}

}  // namespace

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
  auto lines = static_cast<int>(std::ranges::count(before, '\n'));
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
  std::vector<Error> all = errors_;
  if (dropped_)
    all.push_back(ferrule::error(Code::yaml_key, escape(source_->name, 1000),
                                 fmt::format("{} further errors", dropped_), std::string())
                      .value());
  return as_status(std::move(all));
}

bool Reader::expect(const Node& n, Node::Kind kind, std::string_view what) {
  if (n.kind == kind) return true;
  error(n, fmt::format("{} is {}, {} is wanted", what, name(n.kind), name(kind)));
  return false;
}

void Reader::keys(const Node& map, std::span<const std::string_view> allowed) {
  for (const auto& [key, value] : map.entries)
    if (!contains(allowed, key.text))
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

std::vector<DType> Reader::dtypes(const Node& n, const std::vector<std::string>& names,
                                  std::string_view known) {
  std::vector<DType> out;
  for (const std::string& s : names)
    if (auto t = parse_dtype(s); t && ferrule::name(*t) == s)
      out.push_back(*t);
    else
      error(n, fmt::format("\"{}\" is no element type", escape(s)), std::string(known));
  return out;
}

std::string Reader::one_of(const Node& n, std::span<const std::string_view> allowed) {
  size_t before = count();
  std::string s = string(n);
  if (count() == before && !contains(allowed, s))
    error(n, fmt::format("\"{}\" is none of {}", escape(s), fmt::join(allowed, ", ")),
          suggest(s, allowed));
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
