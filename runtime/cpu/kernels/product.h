// The arithmetic of convolutions whose window is one run of memory, on one thread, as product.cpp
// calls it: of 1x1 windows, and of windows along a line of channels-last pixels. Runs (rows) of
// input numbers times weights U give output channels, with bias and tail while they are in
// registers. One set of functions per instruction set, in the files that winograd_functions.h tells
// of.
//
// U[block of output channels][tap, input channel][lane]: blocks are block_width() vectors wide;
// zeros beyond the channels.
#pragma once
#include <stdint.h>

#include "runtime/cpu/kernels/vector_step.h"

namespace ferrule::cpu::product {

/// One convolution. Rows are the pixels of the result, numbered over all images. `c`: numbers of a
/// run, which is all channels of `taps` neighbouring pixels.
struct Shape {
  int64_t images = 0, h = 0, w = 0, c = 0;
  int64_t taps = 1, pad = 0;  ///< along the width; above one tap, pixels are dense
  int64_t oh = 0, ow = 0, k = 0;
  int64_t stride_h = 1, stride_w = 1;
  int64_t x_pixel = 0,
          y_pixel = 0;  ///< floats from a pixel to the next: c and k, or more in slices
  /// Results of a line whose window reaches beyond it: those before `left`, those from `right` on.
  int64_t left = 0, right = 0;
  int64_t rows() const { return images * oh * ow; }
  int64_t borders() const { return left + ow - right; }
};

/// What is read and written; set when the kernel is bound.
struct Tensors {
  const float* x = nullptr;
  const float* border = nullptr;  ///< borders() runs of each line, zeros beyond it
  const float* u = nullptr;
  const float* bias = nullptr;    ///< may be null
  const float* addend = nullptr;  ///< of the result's size, added first; may be null
  float low = 0, high = 0;        ///< then clipped to these
  const Step* steps = nullptr;    ///< and then, the rest of the tail
  int count = 0;
  float* y = nullptr;
};

struct Functions {
  int lanes = 0;  ///< floats of a vector
  int rows = 0;   ///< rows that are worked on together
  /// Rows [first, last), vectors of output channels [begin, end), which are whole blocks.
  void (*run)(const Shape& s, const Tensors& t, int64_t first, int64_t last, int64_t begin,
              int64_t end);
};

extern const Functions kAvx2, kAvx512;

}  // namespace ferrule::cpu::product
