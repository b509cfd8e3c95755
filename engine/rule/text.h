// Small helpers over rule text: where a character stands in its file, errors with a caret, and
// globs over names.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/suggest.h"

namespace ferrule {

/// Where in a rule file something stands (1-based), for errors and `why`.
struct Place {
  std::string file;
  int line = 0, column = 0;
};

/// "file:line:column"
std::string str(const Place& p);
/// Place of character `offset` of `text`, whose first character stands at `start`; later lines
/// begin in the same column (as they do in a YAML block).
Place place_at(std::string_view text, size_t offset, const Place& start);
/// An error about text[offset, offset + length) with the line and a caret.
Error text_error(Code code, std::string_view text, size_t offset, size_t length, const Place& start,
                 std::string message, std::string hint = {});
/// Shell-like: * any run, ? one character; everything else literal.
bool glob_match(std::string_view pattern, std::string_view text);
/// Whether a glob can match more than its own text.
inline bool is_glob(std::string_view pattern) {
  return pattern.find_first_of("*?") != pattern.npos;
}

}  // namespace ferrule
