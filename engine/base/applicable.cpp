#include "engine/base/applicable.h"

namespace ferrule {

tl::unexpected<NotApplicable> not_applicable(std::string place, std::string_view what,
                                             std::string_view why) {
  Error said = make_error_v(Code::unsupported_operator, {}, fmt::make_format_args(what, why));
  return tl::unexpected<NotApplicable>({std::move(place), std::move(said.message)});
}

Error required(Refusal r) {
  if (const Error* e = r.error()) return *e;
  Error out;
  out.code = Code::unsupported_operator;
  out.place = r.place();
  out.message = r.reason();
  return out;
}

}  // namespace ferrule
