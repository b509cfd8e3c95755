// What our convolution kernels of both instruction sets are given: one output row segment of one
// image, all in elements of f32. Which rows, columns and channels belong together is decided by
// depthwise.cpp and first_layer.cpp, the arithmetic is depthwise_rows.h's and first_layer_rows.h's.
#pragma once
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/contract/epilogue.h"

namespace ferrule::cpu {

/// A step behind the sum that is done in registers.
struct RegisterOp {
  enum class Kind : uint8_t {
    relu,
    leaky_relu,
    clip,
    linear,
    hardswish,
    hardsigmoid,
    abs,
    add,
    sub,
    mul,
    div,
    max,
    min
  };
  enum class Broadcast : uint8_t {
    scalar,
    channel,
    full
  };  ///< of the operand: one value, one a channel, one an element
  Kind kind = Kind::relu;
  Broadcast spread = Broadcast::scalar;
  float alpha = 0, beta = 0;
  const float* operand = nullptr;
};

/// Columns [begin, end) of one output row, channels [c, c + channels).
struct RowJob {
  const float* x =
      nullptr;  ///< pixel (first row of the window inside the image, column 0), channel c
  const float* weights = nullptr;  ///< tap (that row, 0), channel c
  const float* bias = nullptr;     ///< channel c
  float* y = nullptr;              ///< pixel (row, column 0), channel c
  int64_t y_offset = 0;            ///< of `y` in the result, for operands of the result's size
  int64_t c = 0, channels = 0;
  int64_t rows = 0;            ///< of the window inside the image
  int64_t begin = 0, end = 0;  ///< output columns
};

/// What stays the same for all rows.
struct RowShape {
  int64_t width = 0, out_width = 0;  ///< columns of image and result
  int64_t pixel = 0,
          out_pixel = 0;      ///< elements from a pixel to the next: channels, or more in slices
  int64_t operand_pixel = 0;  ///< the same of operands of the result's size
  int64_t row_step = 0;       ///< elements from a window's row to the next (dilated)
  int64_t kernel = 0, stride = 0, dilation = 1;  ///< along the row
  int64_t pad = 0;
  int64_t weight_pixel = 0;  ///< elements from a tap to the next
  int64_t group = 1;  ///< channels that a filter reads; grouped ones follow each other in a tap
  /// Of each channel of a group: the lane in which each filter of a vector finds it.
  std::vector<std::array<int32_t, 16>> picks;
  int64_t planes = 0, plane_step = 0,
          window_rows = 0;  ///< first layers: input channels, elements of one, kernel height
  bool clipped = false;     ///< to [low, high], before the steps
  float low = 0, high = 0;
  std::vector<RegisterOp> ops;
};

/// Columns of a depthwise row that are summed side by side, by the lanes of a vector: as many as
/// there are registers for, twice (sums and pixels), and of images 7, 14, 28 … wide a part.
constexpr int depthwise_columns(int64_t lanes) { return lanes == 16 ? 14 : 7; }

using RowFn = void (*)(const RowShape&, const RowJob&);
/// The row functions of each instruction set. Data: a function that gave them would itself be
/// compiled for the instruction set.
extern const RowFn depthwise_row_avx512, depthwise_row_avx2, first_row_avx512, first_row_avx2;

}  // namespace ferrule::cpu
