// Convolutions, transposed ones and products of matrices as one plain CUDA kernel each, for where
// no library has them: a thread sums one element of the result, in f32 (f64 in its own type), in
// the order of the channels and of the window. It takes every size, stride, pad, group and order of
// axes, and is slow. Sums are not shared between threads, so nothing depends on the grid.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "codegen/cuda/plan_launch.h"
#include "codegen/program/row_loops.h"
#include "engine/base/applicable.h"

namespace ferrule {

struct CudaDirect {
  enum class Kind : uint8_t { convolution, deconvolution, product } kind = Kind::convolution;
  DType type = DType::f32;
  /// Images, filters as the model has them, the result; of products matrices under the same leading
  /// axes as the result's, with strides of 0 where one is used again.
  RowLayout a, b, y;
  /// Added: one value a channel; of products along all of y's axes. No dims: nothing is.
  RowLayout c;
  size_t at_c = 2, at_y = 2;  ///< which of the launch's addresses they are; a and b are 0 and 1
  std::vector<int64_t> strides, dilations, begin;  ///< of a window's axes; dilations: 1 is dense
  int64_t groups = 1;
  float alpha = 1, beta = 1;  ///< products: alpha a b + beta c
};

/// Not applicable; errors: unsupported_type.
Applicable<CudaLaunch> plan_cuda_direct(const CudaDirect& d, std::string_view entry);

}  // namespace ferrule
