// Loops of row kernels over operands of any rank: which axes are rows and which lie along them,
// collapsed where every operand allows it, and which of the two the vectors run along. Vectors run
// along the row where that is contiguous and long, else across neighbouring rows. A nest is made
// once per shape; its stages are compiled kernels (kernel.h), run block by block of rows with
// interior values in the caller's scratch.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "codegen/cpu/kernel.h"
#include "codegen/cpu/loop_nest.h"
#include "codegen/program/row_loops.h"
#include "engine/base/applicable.h"

namespace ferrule {

/// The stages of regions, split once for all that are equal: the layers of a network repeat.
class RowSplits {
 public:
  const StagedRows& of(const RowRegion& region, bool tiles);

 private:
  std::map<std::string, StagedRows> known_;  ///< by everything that split_rows reads
};

class RowNest {
 public:
  /// `operands`: of the region's inputs, then its outputs. `l2_bytes`: a tile may take half of it.
  /// `threads`: as many blocks of rows are wanted at least, where there are so many rows. Not
  /// applicable (sizes that do not broadcast); errors: codegen_failed, unknown_target.
  static Applicable<RowNest> make(const RowRegion& region, std::span<const RowLayout> operands,
                                  const std::string& target, int64_t l2_bytes, int threads,
                                  RowSplits& splits);

  /// One kernel a stage, to be compiled and given to run in this order.
  const std::vector<KernelKey>& kernels() const { return keys_; }
  int64_t blocks() const { return units_ * blocks_a_unit_; }
  int64_t elements() const { return units_ * block_axis_.size * length_; }
  int cost() const { return cost_; }
  /// Pieces that each row could be cut into; see run_sliced.
  int64_t slices() const { return std::max(row_axis_.size, steps_); }
  int64_t scratch_bytes() const { return scratch_bytes_; }  ///< a thread

  /// Blocks [begin, end). `ptrs`: per operand, the element at index 0 of every axis; `scratch`:
  /// aligned to 64.
  void run(std::span<const KernelFn> fns, void* const* ptrs, int64_t begin, int64_t end,
           char* scratch) const;
  /// All blocks by a team whose members each take a slice of every row. `scratch`: the first
  /// member's, the others' follow; `barrier` waits for all members.
  void run_sliced(std::span<const KernelFn> fns, void* const* ptrs, int me, int team, char* scratch,
                  void (*barrier)()) const;

 private:
  struct Operand {
    RowSource::Kind kind{};
    uint32_t index = 0;  ///< operands and results: into the pointers given
    bool folded = false;
    int64_t block_stride = 0, row_stride = 0;  ///< bytes
    int64_t tile_step = 0;                     ///< tiles: bytes from one step to the next
  };
  struct Stage {
    bool elements = false, folds = false, results = false;
    std::vector<Operand> operands;      ///< inputs, then outputs
    std::vector<int64_t> outer, inner;  ///< strides for the kernel
    std::vector<uint32_t> folded;       ///< folds that are complete after it
  };
  struct Slice {
    int64_t row_begin = 0, row_end = 0, step_begin = 0, step_end = 0;
  };
  struct Memory {
    char *partial = nullptr, *folds = nullptr, *rest = nullptr;
  };
  class Maker;

  void block_pointers(void* const* ptrs, int64_t block, void** at, int64_t& rows) const;
  void start_folds(char* folds, int64_t rows) const;
  void run_stage(const Stage& s, KernelFn fn, void* const* ptrs, int64_t rows, const Slice& slice,
                 const Memory& memory) const;
  void combine(const Stage& s, char* scratch, int me, int team, int64_t rows) const;
  Memory memory_of(char* scratch, bool sliced) const;

  bool across_ = false;             ///< vectors run across rows
  LoopAxis block_axis_, row_axis_;  ///< strides in bytes
  std::vector<LoopAxis> unit_axes_, step_axes_;
  int64_t units_ = 1, steps_ = 1, length_ = 1;  ///< length: elements of a row
  int64_t block_ = 1, blocks_a_unit_ = 1;
  double count_f64_ = 0;
  int64_t count_i64_ = 0;
  int cost_ = 0;
  std::vector<Fold> folds_;
  std::vector<DType> fold_types_;
  std::vector<int64_t> fold_at_, row_at_, tile_at_;  ///< byte offsets in the scratch
  int64_t fold_bytes_ = 0, scratch_bytes_ = 0;
  std::vector<Stage> stages_;
  std::vector<KernelKey> keys_;
};

}  // namespace ferrule
