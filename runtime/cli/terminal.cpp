#include "runtime/cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace ferrule::cli {
namespace {

/// Characters of UTF-8, escape sequences of colours not counted.
size_t length_of(std::string_view text) {
  size_t n = 0;
  for (size_t k = 0; k < text.size(); ++k) {
    if (text[k] == '\033') {
      k = std::min(text.find('m', k), text.size() - 1);
      continue;
    }
    n += (static_cast<unsigned char>(text[k]) & 0xc0) != 0x80;
  }
  return n;
}

}  // namespace

bool on_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) && term && std::string_view(term) != "dumb";
}

size_t width_of(int fd) {
  if (const char* columns = std::getenv("COLUMNS"))
    if (const int n = std::atoi(columns); n > 0) return static_cast<size_t>(n);
  winsize size{};
  return ::isatty(fd) && ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string folded(std::string_view text, size_t indent, size_t width) {
  constexpr size_t kLeast = 40;  // narrower than that, folding helps nobody
  if (width < kLeast) return std::string(text);
  std::string out;
  size_t at = 0;  // column
  bool first = true;
  for (size_t k = 0; k < text.size();) {
    const size_t spaces = text.find_first_not_of(' ', k);
    const size_t from = std::min(spaces, text.size()),
                 end = std::min(text.find(' ', from), text.size());
    const std::string_view gap = text.substr(k, from - k), word = text.substr(from, end - from);
    const size_t length = length_of(word);
    if (!first && at + gap.size() + length > width && at > indent) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else {
      out += gap;
      at += gap.size();
    }
    out += word;
    at += length;
    first = false;
    k = end;
  }
  return out;
}

std::string folded(std::string_view text, size_t indent) {
  return folded(text, indent, width_of(STDOUT_FILENO));
}

std::string painted(std::string_view text, Paint paint, size_t pad) {
  const std::string spaces(pad > text.size() ? pad - text.size() : 0, ' ');
  const char* none = std::getenv("NO_COLOR");
  if ((none && *none) || !on_terminal(STDOUT_FILENO)) return std::string(text) + spaces;
  constexpr const char* kCodes[] = {"32", "33", "31"};
  return fmt::format("\033[{}m{}\033[0m{}", kCodes[static_cast<size_t>(paint)], text, spaces);
}

}  // namespace ferrule::cli
