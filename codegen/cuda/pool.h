// Pooling over windows as one CUDA kernel: a thread walks its window for some neighbouring
// channels, or for one element where channels do not lie side by side. Any size, stride, dilation
// and padding, in images of one to three axes however they lie in memory; the arithmetic is f32, or
// the elements' own type for maxima of integers. Sizes of the window are part of the source, all
// other numbers are arguments. A pooling of whole images is a row kernel (layers_to_launches.cpp).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/program/row_loops.h"
#include "engine/base/applicable.h"
#include "engine/graph/graph.h"

namespace ferrule {

struct CudaPoolKernel {
  DType type = DType::f32;
  bool maximum = true;
  bool counts_pads =
      false;  ///< averages: padding inside the image's pads counts (count_include_pad)
  std::vector<int64_t> window;  ///< sizes
  bool channels_inner = false;  ///< neighbouring threads are channels
  int vector = 1;               ///< channels of a thread; pointers must be aligned to them
  bool wide_index = false;      ///< 64-bit index arithmetic
  int threads = 256;            ///< of a block
};
struct CudaPoolGeometry {
  std::vector<int64_t> in, out;  ///< with batch and channels in front
  std::vector<int64_t> x, y;     ///< strides in elements
  std::vector<int64_t> strides, dilations, begin, end;
  int64_t packs(const CudaPoolKernel& kernel) const;  ///< threads that have work
};
struct CudaPoolPlan {
  CudaPoolKernel kernel;
  CudaPoolGeometry geometry;
};

/// `n`: a MaxPool without indices or an AveragePool. `aligned`: pointers are multiples of 16 bytes.
/// Not applicable; errors: unsupported_type.
Applicable<CudaPoolPlan> plan_cuda_pool(const Node& n, DType type, const RowLayout& x,
                                        const RowLayout& y, bool aligned);

/// CUDA C++ with one kernel `entry` (an identifier). `comment`: rule and nodes, from the model;
/// escaped here.
std::string cuda_pool_source(const CudaPoolKernel& kernel, std::string_view entry,
                             std::string_view comment);

/// The kernel's one parameter, as the source declares it.
std::string cuda_pool_arguments(const CudaPoolKernel& kernel, const CudaPoolGeometry& geometry,
                                const void* x, void* y);

}  // namespace ferrule
