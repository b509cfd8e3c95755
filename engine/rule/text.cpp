#include "engine/rule/text.h"

#include <algorithm>

#include "engine/base/yaml.h"

namespace ferrule {

std::string str(const Place& p) {
  if (p.line == 0) return p.file;
  return fmt::format("{}:{}:{}", p.file, p.line, p.column);
}

Place place_at(std::string_view text, size_t offset, const Place& start) {
  Place p = start;
  offset = std::min(offset, text.size());
  size_t line_start = 0;
  for (size_t i = 0; i < offset; ++i)
    if (text[i] == '\n') ++p.line, line_start = i + 1;
  p.column = start.column + static_cast<int>(offset - line_start);
  return p;
}

Error text_error(Code code, std::string_view text, size_t offset, size_t length, const Place& start,
                 std::string message, std::string hint) {
  Place at = place_at(text, offset, start);
  Error e = make_error_v(code, str(at), fmt::make_format_args(message, hint));
  Place local = place_at(text, offset, Place{"", 1, 1});
  e.excerpt = yaml::Source{"", std::string(text)}.excerpt(local.line, local.column);
  if (length > 1 && e.excerpt.ends_with('^')) {
    size_t line_end = std::min(text.find('\n', offset), text.size());
    e.excerpt.append(std::min(length, std::max<size_t>(line_end - offset, 1)) - 1, '^');
  }
  return e;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace ferrule
