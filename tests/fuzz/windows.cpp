#include "tests/fuzz/windows.h"

namespace ferrule::fuzz {

std::vector<Window> draw_windows(Builder& b, size_t rank, bool free) {
  Draw& d = b.draw;
  std::vector<Window> axes;
  for (size_t a = 0; a < rank; ++a) {
    Window w{d.of({1, 1, 2, 3, 3, 3, 5}),
             d.of({1, 1, 1, 2, 2, 3}),
             d.of({1, 1, 1, 1, 2}),
             0,
             0,
             b.size()};
    const int64_t widest = free ? w.kernel : w.kernel - 1;
    const int style = static_cast<int>(d.below(3));
    if (style == 1) w.begin = w.end = (w.kernel - 1) / 2;
    if (style == 2)
      w.begin = d.between(0, std::min<int64_t>(widest, 2)),
      w.end = d.between(0, std::min<int64_t>(widest, 2));
    if (a && d.chance(60)) {
      const int64_t in = w.in;
      w = axes[0];
      w.in = in;
    }
    if (!w.fits()) w.in = std::max(int64_t{1}, w.reach() - w.begin - w.end);
    axes.push_back(w);
  }
  return axes;
}

std::string window_attributes(Draw& d, const std::vector<Window>& axes, bool dilations) {
  std::string out = "kernel_shape = " + ints(each(axes, [](auto& w) { return w.kernel; }));
  out += ", strides = " + ints(each(axes, [](auto& w) { return w.stride; }));
  if (dilations) out += ", dilations = " + ints(each(axes, [](auto& w) { return w.dilation; }));
  if (d.chance(15))
    return out + ", auto_pad = \"" +
           d.of(std::vector<std::string>{"SAME_UPPER", "SAME_LOWER", "VALID"}) + "\"";
  std::vector<int64_t> pads = each(axes, [](auto& w) { return w.begin; });
  for (const Window& w : axes) pads.push_back(w.end);
  return out + ", pads = " + ints(pads);
}

}  // namespace ferrule::fuzz
