// What Resize computes along one axis: for every position of the result, the positions it reads and
// their weights. The one place for its coordinate modes, for the interpreter and for generated
// kernels. It knows no tensors.
#pragma once
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

/// The attributes of a Resize.
struct Resampling {
  std::string mode, coordinates, nearest;
  double cubic_a = -0.75, extrapolation = 0;
  bool exclude_outside = false, antialias = false;

  static Resampling of(const Attrs& attrs);
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

}  // namespace ferrule
