// Lists and counts in texts: "a, b and c", "1 layer", "2 layers".
#pragma once
#include <fmt/format.h>

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

/// "1 layer", "2 layers", "2 axes". `what`: of one; its plural ends in s.
template <class Count>
std::string counted(Count n, std::string_view what) {
  if (n != 1 && what.ends_with("axis"))
    return fmt::format("{} {}es", n, what.substr(0, what.size() - 2));
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

}  // namespace ferrule
