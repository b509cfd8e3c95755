#include "engine/semantics/resampling.h"

#include <algorithm>
#include <cmath>

namespace ferrule {
namespace {

/// Where output coordinate `x` lies in the input.
double source_coordinate(const ResizeAxis& a, const Resampling& r, double x) {
  const auto in = static_cast<double>(a.in);
  const double resized = a.scale * in;
  if (r.coordinates == "align_corners") return resized == 1 ? 0 : x * (in - 1) / (resized - 1);
  if (r.coordinates == "asymmetric") return x / a.scale;
  if (r.coordinates == "tf_crop_and_resize") {
    const double span = (a.roi_end - a.roi_begin) * (in - 1);
    return a.roi_begin * (in - 1) + (resized == 1 ? span / 2 : x * span / (resized - 1));
  }
  const double half = (x + 0.5) / a.scale - 0.5;
  if (r.coordinates == "pytorch_half_pixel") return resized == 1 ? -0.5 : half;
  if (r.coordinates == "half_pixel_symmetric")
    return in / 2 * (1 - static_cast<double>(a.out) / resized) + half;
  return half;
}

}  // namespace

Resampling Resampling::of(const Attrs& attrs) {
  return {attrs.s("mode", "nearest"),
          attrs.s("coordinate_transformation_mode", "half_pixel"),
          attrs.s("nearest_mode", "round_prefer_floor"),
          attrs.f("cubic_coeff_a", -0.75),
          attrs.f("extrapolation_value", 0),
          attrs.i("exclude_outside") != 0,
          attrs.i("antialias") != 0};
}

double cubic_weight(double x, double a) {
  x = std::fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

std::vector<ResizeTap> resize_taps(const ResizeAxis& a, const Resampling& r, int64_t out) {
  double x = source_coordinate(a, r, static_cast<double>(out));
  // A position that is no number (a region that is none) lies outside, too.
  if (r.coordinates == "tf_crop_and_resize" && !(x >= 0 && x <= static_cast<double>(a.in - 1)))
    return {};
  // The position lies in (base, base + 1]: of two equally near pixels the left one is first.
  x = std::clamp(x, -1e9, 1e9);
  const auto base = static_cast<int64_t>(std::ceil(x)) - 1;
  const double ratio = x - static_cast<double>(base);
  std::vector<ResizeTap> taps;
  if (r.mode == "nearest") {
    const bool right = ratio == 1 || r.nearest == "ceil" ||
                       (r.nearest == "round_prefer_floor" && ratio > 0.5) ||
                       (r.nearest == "round_prefer_ceil" && ratio >= 0.5);
    taps = {{base + (right ? 1 : 0), 1.0}};
  } else {
    const double shrink = r.antialias ? std::min(a.scale, 1.0) : 1.0,
                 reach = r.mode == "cubic" ? 2 : 1;
    const auto start = static_cast<int64_t>(std::floor(-reach / shrink)) + 1;
    double sum = 0;
    for (int64_t k = start; k < 2 - start; ++k) {
      const double d = (static_cast<double>(k) - ratio) * shrink;
      double w = r.mode == "cubic" ? cubic_weight(d, r.cubic_a) : std::max(0.0, 1 - std::fabs(d));
      if (r.exclude_outside && (base + k < 0 || base + k >= a.in)) w = 0;
      taps.push_back({base + k, w});
      sum += w;
    }
    for (ResizeTap& t : taps) t.weight /= sum;
    std::erase_if(taps, [](const ResizeTap& t) { return t.weight == 0; });
  }
  for (ResizeTap& t : taps) t.at = std::clamp<int64_t>(t.at, 0, a.in - 1);
  return taps;
}

}  // namespace ferrule
