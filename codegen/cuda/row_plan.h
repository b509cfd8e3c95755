// The form of a row kernel (rows.h) for operands of given sizes: who works on a row, how many
// blocks and launches it takes, and what stays in registers.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cuda/shape.h"
#include "codegen/program/row_loops.h"
#include "engine/base/applicable.h"

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
  size_t inputs = 0;  ///< of the operands; the rest are results
  std::vector<CudaRowOperand> operands;
  CudaTeam team = CudaTeam::warp;
  int threads = 32;                     ///< of a team
  int rows = 1;                         ///< of a block
  int kept_rank = 1, reduced_rank = 1;  ///< axes after collapsing
  int vector = 1;  ///< neighbouring elements read at once; pointers must be aligned to them
  int items = 0;   ///< vectors of a row that a thread keeps in registers; 0: it walks the row
  std::optional<size_t>
      online;  ///< this stage's maximum and the next stage's sum (row_online.h) are one pass
  bool sliced =
      false;       ///< a row is spread over several blocks; a scratch pointer follows the operands'
  int passes = 1;  ///< launches in stream order; above 1 it is sliced
  bool wide_index = false;  ///< 64-bit index arithmetic
  int block_threads() const { return threads * rows; }
};

/// Sizes and strides of one shape, in the order of the kernel's argument block.
struct CudaRowGeometry {
  int64_t rows = 1, length = 1;
  std::vector<LoopAxis> kept, reduced;  ///< outermost first, never empty; strides in elements
  int64_t slices = 1, chunk = 0;        ///< blocks of a row, and elements of each
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

/// `operands`: of the region's inputs, then its outputs. `aligned`: pointers are multiples of 16
/// bytes. `cores`: multiprocessors; 0: not known, and no row is spread over several blocks.
/// `wanted`: a shape. Not applicable (sizes that do not broadcast); errors: unsupported_type.
Applicable<CudaRowPlan> plan_cuda_rows(const RowRegion& region, std::span<const RowLayout> operands,
                                       bool aligned, int cores = 0, std::string_view wanted = {});

// What the form and the source (rows.cpp) must agree upon.

inline constexpr int kRowWarp = 32;
inline constexpr int64_t kRowSlotBytes = 8;  ///< of what one block leaves of one fold

/// Whether the row's elements of an operand are read once and kept, more than one stage wanting
/// them, or those of a result, which a stage behind the one that writes it wants.
bool kept_in_registers(const CudaRowKernel& k, size_t operand);

/// Of each stage, the launch that it belongs to where a row is spread over several blocks: behind a
/// reduction along the row begins the next. The online pair is one.
std::vector<int> row_passes(const StagedRows& rows, std::optional<size_t> online);

}  // namespace ferrule
