// Attention as one CUDA kernel: a block takes some queries, walks over the keys and values in tiles
// and keeps a running maximum and sum of each query's scores, so that the scores never leave the
// registers. Arithmetic is f32 on the ordinary units, whatever is stored: this is the kernel for
// f32, for devices for which cuDNN has no attention, and for the forms that it does not take
// (codegen/cuda/library_attention.h). Sizes and strides are arguments; a kernel serves all shapes
// with the same sizes of a head.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/shape.h"
#include "codegen/program/row_loops.h"
#include "engine/base/applicable.h"
#include "engine/contract/attention.h"
#include "engine/semantics/scalar.h"

namespace ferrule {

struct CudaAttentionKernel {
  static constexpr int kKeys = 32;  ///< of a tile
  DType type = DType::f32;
  int size = 0, width = 0;  ///< elements of a query and key, of a value
  int batch_rank = 0;
  bool masked = false, kept = false, fill_added = false, added_last = false, inverted = false;
  bool zero_if_nan = false, zero_if_masked = false, zero_if_hidden = false;
  std::optional<Program> cap;  ///< of one f32, expanded
  bool q_along_size = true, k_along_size = true,
       v_along_width = true;  ///< which neighbours lie side by side; else queries or keys
  int vector = 1;  ///< elements read at once along a head; pointers must be aligned to them
  bool wide_index = false;                     ///< 64-bit index arithmetic
  int queries = 64;                            ///< of a block
  int threads() const { return queries * 2; }  ///< a thread has 4 x 4 scores of a tile
};

struct CudaAttentionGeometry {
  int64_t queries = 0, keys = 0;
  float scale = 1, after = 1, fill = 0, v_scale = 1;
  std::vector<int64_t> batch;  ///< sizes
  /// Per batch axis, then along the last two axes as the products see them; 0 where broadcast.
  std::vector<int64_t> q, k, v, y, mask, keep;
  int64_t query_blocks(const CudaAttentionKernel& kernel) const {
    return (queries + kernel.queries - 1) / kernel.queries;
  }
  int64_t blocks(const CudaAttentionKernel& kernel) const;
};
struct CudaAttentionPlan {
  CudaAttentionKernel kernel;
  CudaAttentionGeometry geometry;
  CudaShapes shapes;
};

/// Operands as they lie in memory, under the axes of their own values; mask and keep null where
/// there is none.
struct AttentionLayouts {
  RowLayout q, k, v, y;
  const RowLayout *mask = nullptr, *keep = nullptr;
};
/// `aligned`: pointers are multiples of 16 bytes. `cap`: the attention's, as a program of one f32;
/// null: it has none. Not applicable (sizes that do not broadcast, heads too large).
Applicable<CudaAttentionPlan> plan_cuda_attention(const Attention& attention, DType type,
                                                  const AttentionLayouts& layouts, bool aligned,
                                                  const Program* cap = nullptr,
                                                  std::string_view wanted = {});

/// CUDA C++ with one kernel `entry` (an identifier). `comment`: rule and nodes, from the model;
/// escaped here.
std::string cuda_attention_source(const CudaAttentionKernel& kernel, std::string_view entry,
                                  std::string_view comment);

/// The kernel's one parameter, as the source declares it. `pointers`: q, k, v, the result, then
/// mask and keep if they are there.
std::string cuda_attention_arguments(const CudaAttentionKernel& kernel,
                                     const CudaAttentionGeometry& geometry,
                                     std::span<void* const> pointers);

}  // namespace ferrule
