// Applicable<T>: the answer of a function that may take something or not: a reader of contracts a
// group, a planner a launch, a factory a call. Not taking it is an answer and no error: the next
// candidate is asked, and explain and `why` may show the reason. The types keep the two apart:
// nothing but required() makes an Error of it, where nobody is left to ask.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "engine/base/diagnostics.h"

namespace ferrule {

struct NotApplicable {
  std::string place;   ///< the node or the layer; may be empty
  std::string reason;  ///< one sentence, lower case, no full stop; model text already escaped
};

/// Why there is no T.
class Refusal {
 public:
  Refusal(NotApplicable n) : why_(std::move(n)) {}
  Refusal(Error e) : why_(std::move(e)) {}

  bool not_applicable() const { return std::holds_alternative<NotApplicable>(why_); }
  /// Null: not applicable.
  const Error* error() const { return std::get_if<Error>(&why_); }
  /// Of either; the message of an error.
  const std::string& reason() const {
    const Error* e = error();
    return e ? e->message : std::get_if<NotApplicable>(&why_)->reason;
  }
  const std::string& place() const {
    const Error* e = error();
    return e ? e->place : std::get_if<NotApplicable>(&why_)->place;
  }
  /// Set by a caller that knows the place.
  void set_place(std::string place) {
    Error* e = std::get_if<Error>(&why_);
    (e ? e->place : std::get_if<NotApplicable>(&why_)->place) = std::move(place);
  }

 private:
  std::variant<NotApplicable, Error> why_;
};

template <class T = void>
using Applicable = tl::expected<T, Refusal>;

/// What FERRULE_TRY and FERRULE_ASSIGN hand on.
inline tl::unexpected<Refusal> fail(Refusal r) { return tl::unexpected<Refusal>(std::move(r)); }

/// `what` (an operator, a region, a tail) is not taken: `why`.
tl::unexpected<NotApplicable> not_applicable(std::string place, std::string_view what,
                                             std::string_view why);

/// Nobody else can be asked: what is not applicable is the user's error unsupported_operator.
Error required(Refusal r);
template <class T>
Result<T> required(Applicable<T> a) {
  if (!a) return fail(required(std::move(a).error()));
  if constexpr (std::is_void_v<T>)
    return {};
  else
    return std::move(*a);
}

}  // namespace ferrule
