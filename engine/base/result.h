// Result<T>: every function of ours that can fail returns one; no exception leaves us (design.md
// §7). An Error says what happened, where, and what to do; its Code is a row of diagnostics.def,
// which fixes the wording and the exit code. A rule that does not apply is not an Error but a
// Rejection (match/).
#pragma once
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace ferrule {

/// Whose fault it was, and with it the process's exit code.
enum class Exit : int {
  ok = 0,
  differs = 1,
  usage = 2,
  unsupported = 3,
  limit = 4,
  environment = 5,
  bug = 70
};

enum class Code : uint16_t {
#define FERRULE_DIAGNOSTIC(id, exit, text, hint) id,
#include "engine/base/diagnostics.def"
#undef FERRULE_DIAGNOSTIC
};

struct Error {
  Code code{};
  std::string place;    ///< "file:line:column", or the object: "node \"Conv_3\" (Conv, opset 13)"
  std::string message;  ///< one sentence, lower case, no full stop; model text already escaped
  std::string hint;     ///< what to do about it; may be empty
  std::string excerpt;  ///< source line and caret, several lines; may be empty
  std::vector<Error>
      more;  ///< further errors found in the same pass (rule files report all at once)
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(Error e) { return tl::unexpected<Error>(std::move(e)); }

/// Returns the error out of the enclosing function, else yields nothing.
#define FERRULE_TRY(expr)                                         \
  do {                                                            \
    if (auto ferrule_status_ = (expr); !ferrule_status_)          \
      return ::ferrule::fail(std::move(ferrule_status_).error()); \
  } while (0)
#define FERRULE_CONCAT_(a, b) a##b
#define FERRULE_CONCAT(a, b) FERRULE_CONCAT_(a, b)
/// `FERRULE_ASSIGN(auto g, import(path));` binds the value or returns the error.
#define FERRULE_ASSIGN(decl, expr) FERRULE_ASSIGN_(FERRULE_CONCAT(ferrule_r_, __LINE__), decl, expr)
#define FERRULE_ASSIGN_(tmp, decl, expr)                    \
  auto tmp = (expr);                                        \
  if (!tmp) return ::ferrule::fail(std::move(tmp).error()); \
  decl = std::move(*tmp)

}  // namespace ferrule
