#include "engine/semantics/resampling.h"

#include <algorithm>
#include <cmath>

#include "engine/base/contains.h"

namespace ferrule {
namespace {

/// Where output coordinate `x` lies in the input.
double source_coordinate(const ResizeAxis& a, const Resampling& r, double x) {
  const auto in = static_cast<double>(a.in), to = static_cast<double>(a.out);
  const double resized = a.scale == to / in ? to : a.scale * in;
  if (r.coordinates == "align_corners") return resized == 1 ? 0 : x * (in - 1) / (resized - 1);
  // Where the scale is a quotient of sizes, what lies on a pixel is not moved beside it by
  // rounding.
  const auto unscaled = [&](double at) {
    if (a.scale == to / in) return at * in / to;
    // Scales are f32, and so is what ONNX's reference and its runtime divide by them.
    return r.mode == "nearest" ? static_cast<float>(at) / static_cast<float>(a.scale)
                               : at / a.scale;
  };
  if (r.coordinates == "asymmetric") return unscaled(x);
  if (r.coordinates == "tf_crop_and_resize") {
    const double span = (a.roi_end - a.roi_begin) * (in - 1);
    return a.roi_begin * (in - 1) + (resized == 1 ? span / 2 : x * span / (resized - 1));
  }
  if (r.coordinates == "tf_half_pixel_for_nn") return unscaled(x + 0.5);
  const double half = unscaled(x + 0.5) - 0.5;
  if (r.coordinates == "pytorch_half_pixel") return resized == 1 ? -0.5 : half;
  if (r.coordinates == "half_pixel_symmetric") return in / 2 * (1 - to / resized) + half;
  return half;
}

/// Reflects `x` into [low, high].
double reflect(double x, double low, double high) {
  const double range = high - low;
  if (range == 0 || !std::isfinite(x)) return low;
  const double r = std::fmod(std::fabs(x - low), 2 * range);
  return low + (r <= range ? r : 2 * range - r);
}

}  // namespace

float resized_size(int64_t in, double scale) {
  return std::floor(static_cast<float>(in) * static_cast<float>(scale));
}

Resampling Resampling::of(const Attrs& attrs) {
  return {attrs.s("mode", "nearest"),
          attrs.s("coordinate_transformation_mode", "half_pixel"),
          attrs.s("nearest_mode", "round_prefer_floor"),
          attrs.f("cubic_coeff_a", -0.75),
          attrs.f("extrapolation_value", 0),
          attrs.i("exclude_outside") != 0,
          attrs.i("antialias") != 0};
}

std::string_view Resampling::unknown() const {
  static constexpr std::string_view kModes[] = {"nearest", "linear", "cubic"};
  static constexpr std::string_view kNearest[] = {"round_prefer_floor", "round_prefer_ceil",
                                                  "floor", "ceil"};
  static constexpr std::string_view kCoordinates[] = {
      "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",  "align_corners",
      "asymmetric", "tf_crop_and_resize",   "tf_half_pixel_for_nn"};  // of opset 11
  if (!contains(kModes, mode)) return "mode";
  if (!contains(kNearest, nearest)) return "nearest_mode";
  return contains(kCoordinates, coordinates) ? "" : "coordinate_transformation_mode";
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
  // Which pixel is nearest is decided in f32, as runtimes do: 3 + 1e-16 is 3.
  if (r.mode == "nearest") x = static_cast<float>(x);
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

std::optional<GridSampling> GridSampling::of(const Attrs& attrs) {
  GridSampling s;
  const std::string mode = attrs.s("mode", "linear"), padding = attrs.s("padding_mode", "zeros");
  if (mode == "nearest")
    s.mode = Mode::nearest;
  else if (mode == "cubic" || mode == "bicubic")
    s.mode = Mode::cubic;
  else if (mode != "linear" && mode != "bilinear")
    return std::nullopt;
  if (padding == "border") s.padding = Padding::border;
  if (padding == "reflection") s.padding = Padding::reflection;
  s.corners = attrs.i("align_corners") != 0;
  return s;
}

void GridSampling::read(int64_t size, double g, std::span<ResizeTap> taps) const {
  const auto d = static_cast<double>(size);
  const double low = corners ? 0 : -0.5, high = corners ? d - 1 : d - 0.5;
  auto pixel = [&](int64_t i) -> int64_t {
    if (i >= 0 && i < size) return i;
    if (padding == Padding::zeros) return -1;
    if (padding == Padding::border) return std::clamp<int64_t>(i, 0, size - 1);
    return std::clamp<int64_t>(std::llround(reflect(static_cast<double>(i), low, high)), 0,
                               size - 1);
  };
  double v = corners ? (g + 1) / 2 * (d - 1) : ((g + 1) * d - 1) / 2;
  if (!std::isfinite(v)) v = -1e9;
  v = std::clamp(v, -1e9, 1e9);
  // The cubic filter reflects its pixels, the others the position.
  if (mode != Mode::cubic && padding == Padding::border) v = std::clamp(v, 0.0, d - 1);
  if (mode != Mode::cubic && padding == Padding::reflection)
    v = std::clamp(reflect(v, low, high), 0.0, d - 1);
  if (mode == Mode::nearest) {
    taps[0] = {pixel(static_cast<int64_t>(std::nearbyint(v))), 1};
    return;
  }
  auto i = static_cast<int64_t>(v);
  i -= static_cast<double>(i) > v ? 1 : 0;  // the floor
  i -= mode == Mode::cubic ? 1 : 0;
  for (size_t k = 0; k < taps.size(); ++k, ++i) {
    const double away = v - static_cast<double>(i);
    taps[k] = {pixel(i), mode == Mode::cubic ? cubic_weight(away, -0.75) : 1 - std::fabs(away)};
  }
}

}  // namespace ferrule
