// Kernels that only move elements, as CUDA C++: strided copies (through shared memory where source
// and result are contiguous along different axes) and gathers. Elements are 1, 2, 4 or 8 bytes of
// whatever type. Sizes and strides are arguments; a kernel serves every shape of the same form.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/shape.h"
#include "codegen/program/loop.h"

namespace ferrule {

/// A copy whose source is contiguous along another axis than its result: square tiles are turned in
/// shared memory, so that both are read and written in whole lines.
struct CudaTransposeKernel {
  static constexpr int kWarp = 32;  ///< threads of a block in x
  int element_bytes = 4;
  int rank = 0;             ///< axes beside the two
  bool wide_index = false;  ///< 64-bit index arithmetic
  int tile = 32, rows = 8;  ///< elements of a tile's edge; threads of a block in y
};
struct CudaTransposeGeometry {
  LoopAxis source, result;       ///< contiguous there; strides: of the source, of the result
  std::vector<LoopAxis> others;  ///< outermost first
  int64_t tiles(const CudaTransposeKernel& k, const LoopAxis& a) const {
    return (a.size + k.tile - 1) / k.tile;
  }
  int64_t blocks(const CudaTransposeKernel& k) const;
};
struct CudaTransposePlan {
  CudaTransposeKernel kernel;
  CudaTransposeGeometry geometry;
  CudaShapes shapes;
};

/// The plan, or nothing where the copy is contiguous along the same axis on both sides, or nowhere:
/// an ordinary pointwise kernel does it as well (pointwise.h). Strides in elements.
std::optional<CudaTransposePlan> plan_cuda_transpose(std::span<const int64_t> dims,
                                                     const std::vector<int64_t>& source,
                                                     const std::vector<int64_t>& result,
                                                     int element_bytes,
                                                     std::string_view wanted = {});
std::string cuda_transpose_source(const CudaTransposeKernel& kernel, std::string_view entry,
                                  std::string_view comment);
/// The kernel's one parameter, as the source declares it.
std::string cuda_transpose_arguments(const CudaTransposeKernel& kernel,
                                     const CudaTransposeGeometry& geometry, const void* source,
                                     void* result);

/// result[outer…][index…][inner…] = data[outer…][index[…]][inner…], however the three lie in
/// memory; an index below 0 counts from the end.
struct CudaGatherKernel {
  int element_bytes = 4;
  int index_bytes = 8;
  int rank = 1;    ///< axes of the result after collapsing
  int vector = 1;  ///< neighbouring elements moved at once; pointers must be aligned to them
  bool wide_index = false;  ///< 64-bit index arithmetic
  int threads = 256;        ///< of a block
};
struct CudaGatherGeometry {
  int64_t size = 0, step = 0;  ///< of the gathered axis in the data
  std::vector<LoopAxis>
      axes;  ///< of the result, outermost first, never empty; strides of data, index, result
  int64_t elements() const;
  int64_t packs(const CudaGatherKernel& k) const { return elements() / k.vector; }
};
struct CudaGatherPlan {
  CudaGatherKernel kernel;
  CudaGatherGeometry geometry;
};
/// What a gather leaves behind where an index lies outside: `set` is 1 then and `index` one such
/// index.
struct CudaGatherFault {
  int32_t set = 0, unused = 0;
  int64_t index = 0;
};
/// An operand that does not move along an axis of the result has stride 0 there. `size`, `step`: of
/// the gathered axis.
CudaGatherPlan plan_cuda_gather(std::span<const int64_t> dims, const std::vector<int64_t>& data,
                                const std::vector<int64_t>& index,
                                const std::vector<int64_t>& result, int64_t size, int64_t step,
                                int element_bytes, int index_bytes, bool aligned);
/// Where an index is outside the axis the kernel fills in the fault, which was zero, and takes
/// element 0.
std::string cuda_gather_source(const CudaGatherKernel& kernel, std::string_view entry,
                               std::string_view comment);
/// The kernel's one parameter, as the source declares it.
std::string cuda_gather_arguments(const CudaGatherKernel& kernel,
                                  const CudaGatherGeometry& geometry, const void* data,
                                  const void* index, void* result, void* fault);

}  // namespace ferrule
