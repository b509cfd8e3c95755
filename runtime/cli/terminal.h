// How text is laid out on terminals: lines folded to their width, verdicts in colour. In pipes
// nothing is folded, cut or coloured.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace ferrule::cli {

/// Whether `fd` is a terminal that understands escape sequences.
bool on_terminal(int fd);
/// Columns of the terminal behind `fd`; $COLUMNS wins; 0: no limit.
size_t width_of(int fd);
/// Text for stdout, folded between words; lines after the first begin `indent` columns in.
std::string folded(std::string_view text, size_t indent, size_t width);
std::string folded(std::string_view text, size_t indent);

enum class Paint : unsigned char { good, doubtful, bad };
/// The text in colour, on a terminal and unless $NO_COLOR is set, padded to `pad` columns.
std::string painted(std::string_view text, Paint paint, size_t pad = 0);

}  // namespace ferrule::cli
