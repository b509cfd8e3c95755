// Windows of random convolutions and pools.
#pragma once
#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {

/// A window's sizes along one spatial axis.
struct Window {
  int64_t kernel, stride, dilation, begin, end, in;
  int64_t reach() const { return dilation * (kernel - 1) + 1; }
  /// Over no pixels there may be no window: the result has none either.
  bool fits() const { return in + begin + end + (in == 0 ? stride : 0) >= reach(); }
};

template <class F>
std::vector<int64_t> each(const std::vector<Window>& axes, F f) {
  std::vector<int64_t> out;
  for (const Window& w : axes) out.push_back(f(w));
  return out;
}

/// `free`: pads may be as wide as the window. Half of the windows have the same sizes along all
/// axes.
std::vector<Window> draw_windows(Builder& b, size_t rank, bool free);
std::string window_attributes(Draw& d, const std::vector<Window>& axes, bool dilations = true);

}  // namespace ferrule::fuzz
