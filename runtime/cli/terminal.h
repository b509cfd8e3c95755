// How text is laid out on terminals: lines folded to their width, verdicts in colour. In pipes
// nothing is folded, cut or coloured.
#pragma once
#include <cstddef>
#include <memory>
#include <streambuf>
#include <string>
#include <string_view>

namespace ferrule::cli {

/// Whether `fd` is a terminal that understands escape sequences.
bool on_terminal(int fd);
/// Columns of the terminal behind `fd`; $COLUMNS wins; 0: it is none, and there is no limit.
size_t width_of(int fd);
/// Lines folded between words at `width` columns (0: as they are). What continues a line begins
/// below its last column that leaves room, as in a table, or two columns further in than the line.
std::string folded(std::string_view text, size_t width);

/// While it lives, what goes to std::cout is folded to the width of the terminal there.
class FoldedOutput {
 public:
  FoldedOutput();
  ~FoldedOutput();
  FoldedOutput(const FoldedOutput&) = delete;
  FoldedOutput& operator=(const FoldedOutput&) = delete;

 private:
  std::unique_ptr<std::streambuf> folding_;
  std::streambuf* before_ = nullptr;
};
/// What is printed from here on is for programs: as it is.
void print_unfolded();

enum class Paint : unsigned char { good, doubtful, bad };
/// The text in colour, on a terminal and unless $NO_COLOR is set, padded to `pad` columns.
std::string painted(std::string_view text, Paint paint, size_t pad = 0);
/// A message for stderr, folded to the terminal there, the words that say how bad it is in colour.
std::string laid_out_message(std::string_view text);

}  // namespace ferrule::cli
