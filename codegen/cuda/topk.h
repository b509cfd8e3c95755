// A softmax (or its logarithm) and the selection of its largest or smallest elements along the last
// axis as one CUDA kernel. A block has a row: its maximum, the sum of its exponentials, then every
// thread keeps the best of its own elements, and the block takes the best of those as often as
// elements are wanted, whereupon the thread that had it looks for its next. Order and values are
// those of the probabilities as they are stored; equals come by index, NaN counts as the largest.
// Meant for few selected elements: the time grows with their number.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/shape.h"
#include "codegen/program/row_loops.h"
#include "engine/base/applicable.h"
#include "engine/contract/softmax_topk.h"

namespace ferrule {

struct CudaTopKKernel {
  DType type = DType::f32;
  SoftmaxTopK::Form form = SoftmaxTopK::Form::softmax;
  bool largest = true;
  int rank = 1;             ///< axes of rows
  int threads = 256;        ///< of a block, whole warps
  bool wide_index = false;  ///< 64-bit index arithmetic
};
struct CudaTopKGeometry {
  int64_t length = 0, count = 0;           ///< of a row; selected
  int64_t x = 1, values = 1, indices = 1;  ///< strides along the row
  std::vector<LoopAxis>
      rows;  ///< outermost first, never empty; strides of the operand, values, indices
  int64_t blocks() const;
};
struct CudaTopKPlan {
  CudaTopKKernel kernel;
  CudaTopKGeometry geometry;
  CudaShapes shapes;
};

/// `values`, `indices`: null where nobody reads that result. Not applicable; errors:
/// unsupported_type.
Applicable<CudaTopKPlan> plan_cuda_topk(const SoftmaxTopK& s, DType type, const RowLayout& x,
                                        const RowLayout* values, const RowLayout* indices,
                                        std::string_view wanted = {});

/// CUDA C++ with one kernel `entry` (an identifier). `comment`: rule and nodes, from the model;
/// escaped here.
std::string cuda_topk_source(const CudaTopKKernel& kernel, std::string_view entry,
                             std::string_view comment);

/// The kernel's one parameter, as the source declares it. Results that nobody reads are null.
std::string cuda_topk_arguments(const CudaTopKKernel& kernel, const CudaTopKGeometry& geometry,
                                const void* x, void* values, void* indices);

}  // namespace ferrule
