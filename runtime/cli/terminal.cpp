#include "runtime/cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "engine/base/environment.h"

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

struct Word {
  std::string_view gap, text;
  size_t begin = 0, end = 0;  // columns of the text, in the line as it is
};

std::vector<Word> words_of(std::string_view line) {
  std::vector<Word> all;
  size_t column = 0;
  while (!line.empty()) {
    Word w;
    w.gap = line.substr(0, line.find_first_not_of(' '));
    line.remove_prefix(w.gap.size());
    w.text = line.substr(0, line.find(' '));
    line.remove_prefix(w.text.size());
    w.begin = column + w.gap.size();
    column = w.end = w.begin + length_of(w.text);
    all.push_back(w);
  }
  return all;
}

/// Where the lines begin that continue one.
size_t indent_of(const std::vector<Word>& words, size_t width) {
  constexpr size_t kFurther = 2;
  size_t longest = 0;
  for (size_t k = words.size(); k-- > 1;) {
    longest = std::max(longest, words[k].end - words[k].begin);
    if (words[k].gap.size() > 1 && words[k].begin * 5 <= width * 3 &&
        words[k].begin + longest <= width)
      return words[k].begin;
  }
  return std::min(words[0].gap.size() + kFurther, width / 2);
}

std::string folded_line(std::string_view line, size_t width) {
  const std::vector<Word> words = words_of(line);
  if (words.empty() || words.back().end <= width) return std::string(line);
  const size_t indent = indent_of(words, width);
  std::string out;
  size_t at = 0;  // column
  for (const Word& w : words) {
    const size_t length = w.end - w.begin;
    if (at > indent && at + w.gap.size() + length > width) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else {
      out += w.gap;
      at += w.gap.size();
    }
    out += w.text;
    at += length;
  }
  return out;
}

/// Folds whole lines on their way to another buffer.
class Folding final : public std::streambuf {
 public:
  Folding(std::streambuf& to, size_t width) : to_(to), width_(width) {}
  bool pass() {
    const std::string text = folded(line_, width_);
    line_.clear();
    return to_.sputn(text.data(), static_cast<std::streamsize>(text.size())) ==
           static_cast<std::streamsize>(text.size());
  }
  void stop() { width_ = 0; }

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    line_ += traits_type::to_char_type(c);
    return c != '\n' || pass() ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* s, std::streamsize n) override {
    line_.append(s, static_cast<size_t>(n));
    return !line_.ends_with('\n') || pass() ? n : 0;
  }
  int sync() override { return to_.pubsync(); }

 private:
  std::streambuf& to_;
  size_t width_;
  std::string line_;
};

std::string painted_for(int fd, std::string_view text, Paint paint) {
  if (!environment(Variable::no_colour).empty() || !on_terminal(fd)) return std::string(text);
  constexpr const char* kCodes[] = {"32", "33", "31"};
  return fmt::format("\033[{}m{}\033[0m", kCodes[static_cast<size_t>(paint)], text);
}

}  // namespace

bool on_terminal(int fd) {
  const std::string term = environment(Variable::terminal);
  return ::isatty(fd) && !term.empty() && term != "dumb";
}

size_t width_of(int fd) {
  if (!::isatty(fd)) return 0;
  if (const int n = std::atoi(environment(Variable::columns).c_str()); n > 0)
    return static_cast<size_t>(n);
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string folded(std::string_view text, size_t width) {
  constexpr size_t kLeast = 40;  // narrower than that, folding helps nobody
  if (width < kLeast) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += folded_line(text.substr(0, end), width);
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

FoldedOutput::FoldedOutput() {
  const size_t width = width_of(STDOUT_FILENO);
  if (!width) return;
  folding_ = std::make_unique<Folding>(*std::cout.rdbuf(), width);
  before_ = std::cout.rdbuf(folding_.get());
}

FoldedOutput::~FoldedOutput() {
  if (!before_) return;
  static_cast<Folding&>(*folding_).pass();
  std::cout.rdbuf(before_);
}

void print_unfolded() {
  if (auto* folding = dynamic_cast<Folding*>(std::cout.rdbuf())) folding->stop();
}

std::string painted(std::string_view text, Paint paint, size_t pad) {
  const std::string spaces(pad > text.size() ? pad - text.size() : 0, ' ');
  return painted_for(STDOUT_FILENO, text, paint) + spaces;
}

std::string laid_out_message(std::string_view text) {
  const std::string lines = folded(text, width_of(STDERR_FILENO));
  const bool bad = lines.starts_with("error");
  const size_t end = bad || lines.starts_with("warning") ? lines.find(':') : 0;
  if (end == 0 || end == std::string::npos) return lines;
  return painted_for(STDERR_FILENO, lines.substr(0, end), bad ? Paint::bad : Paint::doubtful) +
         lines.substr(end);
}

}  // namespace ferrule::cli
