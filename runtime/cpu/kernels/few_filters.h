// The arithmetic of a convolution with few filters on one thread, as few_filters.cpp calls it. A
// vector holds neighbouring pixels of a row, so that no lane is empty; every weight is spread over
// a vector. One set of functions per instruction set, in the files that winograd_functions.h tells
// of.
#pragma once
#include <stdint.h>

#include "runtime/cpu/kernels/vector_step.h"

namespace ferrule::cpu::few_filters {

inline constexpr int kMostFilters = 8;

struct Shape {
  int64_t channels = 0, window_rows = 0, kernel = 0;  ///< kernel: taps along a row
  const int64_t* taps = nullptr;  ///< of each, where the pixel of column 0 lies in its plane
  int64_t plane = 0;              ///< floats from a channel to the next
  int64_t y_pixel = 0;  ///< floats from a pixel to the next: the filters, or more in slices
};

/// Neighbouring pixels of one row of the result.
struct Job {
  const float* const* rows = nullptr;  ///< the window's, padded; null: outside of the image
  const float* weights = nullptr;      ///< [window row][channel][tap][filter]
  const float* bias = nullptr;         ///< may be null
  const Step* steps = nullptr;         ///< the tail
  int count = 0;
  int64_t pixels = 0;
  int64_t y_offset = 0;  ///< of `y` in operands of the result's size
  float* y = nullptr;
};

struct Functions {
  int lanes = 0;                                          ///< floats of a vector
  void (*run[kMostFilters])(const Shape& s, const Job&);  ///< by filters - 1
};

extern const Functions kAvx2, kAvx512;

}  // namespace ferrule::cpu::few_filters
