// Row kernels (softmax, norms, reductions) as CUDA C++: the stages of a row region in one kernel, a team of threads a
// row. Sums of f32 are compensated, not made in f64, which most GPUs do slowly. Sizes and strides are arguments; a
// kernel serves every shape of the same form. Few long rows are spread over several blocks. Where nothing but reductions
// runs along them, the block that ends last combines what all of them left in scratch memory. Where elements follow their
// row's reduction (softmax, norms) all blocks would have to wait for each other, which no stream guarantees to end: the
// kernel is launched several times, up to a reduction each, and every block of a pass combines what those of the former
// ones left. A softmax's maximum and sum are one pass where the row is not in registers by the second. Its sum is then of
// exponentials below a value that follows the maximum in steps of at least 8: each step rounds the sum once more, and after
// some dozen of them what was there before the first no longer counts, so that no order of elements makes it worse.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/shape.h"
#include "codegen/program/row_loops.h"

namespace ferrule {

/// Who works on a row.
enum class CudaTeam : uint8_t {
  columns,  ///< a column of threads; a block has 32 rows, which lie side by side in memory
  warp,     ///< a warp; a block has several rows
  block,    ///< a block
};

struct CudaRowOperand {
  enum class Along : uint8_t { none, unit, strided };  ///< how it moves along the row
  DType type{};
  Along along = Along::none;
  friend bool operator==(const CudaRowOperand&, const CudaRowOperand&) = default;
};

struct CudaRowKernel {
  StagedRows staged;
  size_t inputs = 0;                      ///< of the operands; the rest are results
  std::vector<CudaRowOperand> operands;
  CudaTeam team = CudaTeam::warp;
  int threads = 32;                       ///< of a team
  int rows = 1;                           ///< of a block
  int kept_rank = 1, reduced_rank = 1;    ///< axes after collapsing
  int vector = 1;                         ///< neighbouring elements read at once; pointers must be aligned to them
  int items = 0;                          ///< vectors of a row that a thread keeps in registers; 0: it walks the row
  std::optional<size_t> online;           ///< this stage's maximum and the next stage's sum (row_online.h) are one pass
  bool sliced = false;                    ///< a row is spread over several blocks; a scratch pointer follows the operands'
  int passes = 1;                         ///< launches in stream order; above 1 it is sliced
  bool wide_index = false;                ///< 64-bit index arithmetic
  int block_threads() const { return threads * rows; }
};

/// Sizes and strides of one shape, in the order of the kernel's argument block.
struct CudaRowGeometry {
  int64_t rows = 1, length = 1;
  std::vector<LoopAxis> kept, reduced;    ///< outermost first, never empty; strides in elements
  int64_t slices = 1, chunk = 0;          ///< blocks of a row, and elements of each
  int64_t row_blocks(const CudaRowKernel& k) const { return (rows + k.rows - 1) / k.rows; }
  int64_t blocks(const CudaRowKernel& k) const { return row_blocks(k) * slices; }
  /// Zero before the first launch; every launch leaves it fit for the next.
  int64_t scratch_bytes(const CudaRowKernel& k) const;
  /// x and y of a block's threads.
  static std::pair<int, int> block(const CudaRowKernel& k);
};
struct CudaRowPlan {
  CudaRowKernel kernel;
  CudaRowGeometry geometry;
  CudaShapes shapes;
};

/// `operands`: of the region's inputs, then its outputs. `aligned`: pointers are multiples of 16 bytes. `cores`:
/// multiprocessors; 0: not known, and no row is spread over several blocks. `wanted`: a shape.
/// errors: unsupported_type, unsupported_operator (sizes that do not broadcast).
Result<CudaRowPlan> plan_cuda_rows(const RowRegion& region, std::span<const RowLayout> operands, bool aligned, int cores = 0,
                                   std::string_view wanted = {});

/// CUDA C++ with one kernel `entry` (an identifier). `comment`: rule and nodes, from the model; escaped here.
/// errors: formula_invalid.
Result<std::string> cuda_row_source(const CudaRowKernel& kernel, std::string_view entry, std::string_view comment);

/// The kernel's one parameter, as the source declares it. `pointers`: of the operands, then the scratch if it is sliced.
std::string cuda_row_arguments(const CudaRowKernel& kernel, const CudaRowGeometry& geometry, std::span<void* const> pointers, int pass = 0);

}  // namespace ferrule
