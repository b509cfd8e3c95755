#include "engine/contract/softmax_topk.h"

namespace ferrule {

SoftmaxTopK softmax_topk_of(const Roles& roles) {
  using enum SoftmaxTopK::Form;
  auto slot = [&](std::string_view name) {
    const RoleTensor* t = roles.tensor(name);
    return t ? std::optional(t->slot) : std::nullopt;
  };
  SoftmaxTopK s;
  s.form = roles.number("log") != 0          ? log_softmax
           : roles.number("log_behind") != 0 ? log_of_softmax
                                             : softmax;
  s.x = slot("x").value_or(0);
  s.values = slot("values"), s.indices = slot("indices");
  s.k = static_cast<int64_t>(roles.number("k"));
  s.largest = roles.number("largest") != 0;
  return s;
}

}  // namespace ferrule
