#include "engine/contract/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace ferrule {
namespace {

/// What is added to a score to mask its key is minus infinity, or the lowest number of half
/// precision, or of a wider type.
constexpr double kMasked = -65504;

}  // namespace

Attention attention_of(const Roles& roles) {
  auto tensor = [&](std::string_view name) {
    const RoleTensor* t = roles.tensor(name);
    return t ? *t : RoleTensor{};
  };
  Attention a{tensor("q"), tensor("k"), tensor("v"), tensor("y"), {}, {}};
  if (const RoleTensor* mask = roles.tensor("add")) a.mask = *mask;
  if (const RoleTensor* keep = roles.tensor("keep")) a.keep = *keep;
  a.fill_added = roles.number("fill_added") != 0;
  a.added_last = roles.number("added_last") != 0;
  a.inverted = roles.number("inverted") != 0;
  // Kernels scale the product: in f32, where what the factors keep from overflow in f16 is none.
  a.scale = roles.number("scale") * roles.number("q_scale") * roles.number("k_scale");
  a.after = roles.number("after");
  a.v_scale = roles.number("v_scale");
  a.fill = roles.number("fill");
  a.zero_if_nan = roles.number("zero_if_nan") != 0;
  a.zero_if_masked = roles.number("zero_if_masked") != 0;
  a.zero_if_hidden = roles.number("zero_if_hidden") != 0;
  a.cap = roles.formula("cap");
  return a;
}

Accept library_attends(const Graph& body, const Attention& a, const Target& target) {
  const auto facts = target.contracts.find("attention");
  if (facts == target.contracts.end()) return {Truth::no, {}};
  const auto& types = facts->second.library_types;
  if (std::ranges::find(types, body.value(body.inputs()[a.q.slot]).type.dtype) == types.end())
    return {Truth::no, {}};
  if (a.keep) return {Truth::no, "scores that are replaced"};
  if (a.v_scale != 1) return {Truth::no, "values that are scaled"};
  if (a.cap) return {Truth::no, "scores that are capped"};
  if (a.after != 1) return {Truth::no, "masked scores that are scaled"};
  if (a.rank() > kMostLibraryRank) return {Truth::no, "more than two batch axes"};
  // The largest score of a row is found before it is scaled.
  if (!(a.scale > 0) || !std::isfinite(static_cast<float>(a.scale)))
    return {Truth::no, "a scale that is not positive"};
  for (const RoleTensor* t : {&a.q, &a.v}) {
    const auto& parts = t->axes.back();
    const auto size = parts.empty() ? std::optional<int64_t>(1) : parts[0].size.constant();
    if (!size) return {Truth::unknown, "the size of a head"};
    if (*size % kLibraryPack)
      return {Truth::no,
              fmt::format("a head of {} elements, no multiple of {}", *size, kLibraryPack)};
  }
  return {Truth::yes, {}};
}

std::string attention_deviation(const Graph& body, const Attention& a, const Target& target) {
  if (library_attends(body, a, target).truth == Truth::no) return {};
  if (a.zero_if_nan || a.zero_if_masked)
    return "results that are NaN become 0, also where a value is";
  if (!a.mask) return {};
  const std::string all = "queries whose keys are all masked are 0, not NaN";
  const Tensor* mask = body.constant(body.inputs()[a.mask->slot]);
  if (!mask || mask->dims().empty() || mask->dims().back() < 1) return all;
  const int64_t keys = mask->dims().back();
  for (int64_t row = 0; row < mask->numel(); row += keys) {
    bool seen = false;
    for (int64_t k = 0; k < keys && !seen; ++k) seen = mask->at_f64(row + k) > kMasked;
    if (!seen) return all;
  }
  return {};
}

}  // namespace ferrule
