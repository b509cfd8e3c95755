// std::ranges::contains, which C++20 does not have yet.
#pragma once

namespace ferrule {

template <class Range, class T>
bool contains(const Range& range, const T& value) {
  for (const auto& x : range)
    if (x == value) return true;
  return false;
}

}  // namespace ferrule
