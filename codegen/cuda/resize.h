// Resize in every mode as one CUDA kernel: the positions and weights that
// engine/semantics/resampling.h gives for each axis are tables in the source, so all modes and
// coordinates cost the same; a thread sums the weighted elements, in f32, for some neighbours along
// an axis that keeps its size, or for one element. Sizes are part of the source where an axis
// changes, else arguments, as are strides.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/program/row_loops.h"
#include "engine/base/applicable.h"
#include "engine/semantics/resampling.h"

namespace ferrule {

struct CudaResizeKernel {
  struct Axis {
    int taps = 0;                ///< elements read for one; 0: the axis is kept as it is
    std::vector<int64_t> at;     ///< per position of the result, tap by tap
    std::vector<float> weights;  ///< empty: all are 1
  };
  DType type = DType::f32;
  std::vector<Axis> axes;  ///< in the order of the result's memory, outermost first, never empty
  int vector = 1;  ///< elements of a thread along the last axis; pointers must be aligned to them
  bool wide_index = false;  ///< 64-bit index arithmetic
  int threads = 256;        ///< of a block
  bool copies() const;      ///< no sums: elements are taken as they are
};
struct CudaResizeGeometry {
  std::vector<int64_t> sizes, x, y;  ///< per axis: of the result; strides in elements
  int64_t packs(const CudaResizeKernel& kernel) const;  ///< threads that have work
};
struct CudaResizePlan {
  CudaResizeKernel kernel;
  CudaResizeGeometry geometry;
};

/// `axes`: per axis of the image. `aligned`: pointers are multiples of 16 bytes. Not applicable
/// (crops); errors: unsupported_type.
Applicable<CudaResizePlan> plan_cuda_resize(const Resampling& r, std::span<const ResizeAxis> axes,
                                            DType type, const RowLayout& x, const RowLayout& y,
                                            bool aligned);

/// CUDA C++ with one kernel `entry` (an identifier). `comment`: rule and nodes, from the model;
/// escaped here.
std::string cuda_resize_source(const CudaResizeKernel& kernel, std::string_view entry,
                               std::string_view comment);

/// The kernel's one parameter, as the source declares it.
std::string cuda_resize_arguments(const CudaResizeKernel& kernel,
                                  const CudaResizeGeometry& geometry, const void* x, void* y);

}  // namespace ferrule
