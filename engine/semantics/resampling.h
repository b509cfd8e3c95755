// What Resize and GridSample compute along one axis: for every position of the result, the
// positions they read and their weights. The one place for their coordinate modes, for the
// interpreter and for kernels. It knows no tensors.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace ferrule {

struct ResizeTap {
  int64_t at = 0;
  double weight = 0;
};

struct ResizeAxis {
  int64_t in = 0, out = 0;
  double scale = 1, roi_begin = 0, roi_end = 1;
};

/// floor(in * scale), in f32 as runtimes compute it: 25 * 0.32f is 8 there, and less in f64.
float resized_size(int64_t in, double scale);

/// The attributes of a Resize.
struct Resampling {
  std::string mode, coordinates, nearest;
  double cubic_a = -0.75, extrapolation = 0;
  bool exclude_outside = false, antialias = false;

  static Resampling of(const Attrs& attrs);
  /// The attribute that has a value which ONNX has not, "" if none.
  std::string_view unknown() const;
  /// Whether the axis is left as it is.
  bool keeps(const ResizeAxis& a) const {
    return a.in == a.out && a.scale == 1 && coordinates != "tf_crop_and_resize";
  }
};

/// Of position `out` of the result; empty: outside, it takes the extrapolation value. None has
/// weight 0: what is not part of the mean brings no NaN into it, wherever an implementation would
/// look for the second of two pixels.
std::vector<ResizeTap> resize_taps(const ResizeAxis& a, const Resampling& r, int64_t out);

/// The weight of a pixel so far away, by the cubic filter with coefficient `a`.
double cubic_weight(double distance, double a);

/// The attributes of a GridSample.
struct GridSampling {
  enum class Mode : uint8_t { nearest, linear, cubic };
  enum class Padding : uint8_t { zeros, border, reflection };
  Mode mode = Mode::linear;
  Padding padding = Padding::zeros;
  bool corners = false;  ///< -1 and 1 are the middles of the outer pixels, not their edges

  /// Nothing: an unknown mode.
  static std::optional<GridSampling> of(const Attrs& attrs);
  size_t taps() const { return mode == Mode::nearest ? 1 : mode == Mode::linear ? 2 : 4; }
  /// The taps() pixels of an axis of `size` that make the value at coordinate `g` of the grid, -1
  /// to 1, and their weights; `at` -1: outside, a zero.
  void read(int64_t size, double g, std::span<ResizeTap> taps) const;
};

}  // namespace ferrule
