// Making and printing errors. Every message is a row of diagnostics.def; nothing else words one.
#pragma once
#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>

#include "engine/base/contains.h"
#include "engine/base/result.h"

namespace ferrule {

std::string_view code_name(Code c);  ///< "model_not_found"
Exit exit_code(Code c);

Error make_error_v(Code c, std::string place, fmt::format_args args);

/// An error of kind `c` at `place`; `args` fill the row's text in order.
template <class... Args>
tl::unexpected<Error> error(Code c, std::string place, const Args&... args) {
  return fail(make_error_v(c, std::move(place), fmt::make_format_args(args...)));
}

/// Adds an error to those of the same pass, and behind it what it has in `more`.
void append(std::vector<Error>& all, Error e);
/// No error, or the first one with the others in `more`.
Status as_status(std::vector<Error> all);

/// What many places of a model lack, as one error for each thing: at its first place, with the
/// number of nodes.
class ErrorOfEach {
 public:
  /// `at_first()` makes the Error.
  template <class F>
  void add(const std::string& thing, F at_first) {
    auto it = all_.find(thing);
    if (it == all_.end()) it = all_.emplace(thing, Counted{at_first(), 0}).first;
    ++it->second.nodes;
  }
  Status status();  ///< the first with the others in `more`; they are moved out

 private:
  struct Counted {
    Error first;
    int nodes;
  };
  std::map<std::string, Counted> all_;
};

/// Text for a terminal: "error[code]: place: message", excerpt, "hint: …"; the `more` follow.
std::string render(const Error& e);

/// Model text made safe for terminals, JSON and generated source: control bytes, escapes, bidi
/// marks and invalid UTF-8 become \xNN; cut at `max` bytes with "…".
std::string escape(std::string_view text, size_t max = 200);

/// A broken invariant of ours, also in release: prints what and where, then exits with 70.
[[noreturn]] void bug(std::string_view what, const char* file, int line);
#define FERRULE_ASSERT(cond, what)              \
  do {                                          \
    if (!(cond)) [[unlikely]]                   \
      ::ferrule::bug(what, __FILE__, __LINE__); \
  } while (0)

}  // namespace ferrule
