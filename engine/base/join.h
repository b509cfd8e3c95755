// Lists in texts: "a, b and c".
#pragma once
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

namespace ferrule {

/// The texts of all elements, one behind the other. `text`: of one; `last`: what stands before the
/// last.
template <class Range, class Text = std::identity>
std::string joined(const Range& all, const Text& text = {}, std::string_view between = ", ",
                   std::string_view last = {}) {
  std::string out;
  size_t left = std::size(all);
  for (const auto& x : all) {
    if (!out.empty()) out += left == 1 && !last.empty() ? last : between;
    out += std::invoke(text, x);
    --left;
  }
  return out;
}

}  // namespace ferrule
