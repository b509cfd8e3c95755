// What the form of a row kernel (cuda_row_plan.cpp) and its source (cuda_rows.cpp) must agree upon; for these two alone.
#pragma once
#include <optional>
#include <vector>

#include "codegen/cuda/rows.h"

namespace ferrule {

inline constexpr int kRowWarp = 32;
inline constexpr int64_t kRowSlotBytes = 8;  ///< of what one block leaves of one fold

/// Whether the row's elements of an operand are read once and kept: more than one stage wants them.
bool kept_in_registers(const CudaRowKernel& k, size_t operand);

/// Of each stage, the launch that it belongs to where a row is spread over several blocks: behind a reduction along the row
/// begins the next. The online pair is one.
std::vector<int> row_passes(const StagedRows& rows, std::optional<size_t> online);

}  // namespace ferrule
