// A loop nest for operands that the kernel would read across memory (one layout in, the other out):
// it walks tiles, moves such inputs tile by tile into dense memory that stays in the first cache,
// and runs the kernel on that. Like LoopNest it is made once per shape, and running a range of it
// is serial.
#pragma once
#include <optional>

#include "codegen/cpu/loop_nest.h"
#include "runtime/cpu/kernels/strided_copy.h"

namespace ferrule::cpu {

class StagedLoop {
 public:
  /// As LoopNest::make. Nothing where no input is read across memory, or there is too little of it.
  static std::optional<StagedLoop> make(std::span<const int64_t> dims,
                                        std::span<const std::vector<int64_t>> strides,
                                        std::span<const int> element_bytes, size_t outputs);

  const std::vector<InnerStride>& inner() const { return inner_; }
  int64_t size() const { return units_; }  ///< tiles
  int64_t elements() const { return elements_; }
  void run(KernelFn fn, void* const* ptrs, int64_t begin, int64_t end) const;

 private:
  /// An input that is staged: copies for whole tiles and for those at the ends of the two axes.
  struct Stage {
    size_t operand = 0;
    StridedCopy copies[2][2];  ///< [last row tile][last inner tile]
  };
  void run_tile(KernelFn fn, void* const* ptrs, int64_t tile) const;

  size_t operands_ = 0;
  int64_t units_ = 0, elements_ = 0;
  int64_t rows_ = 1, columns_ = 1;  ///< sizes of the two tiled axes
  int64_t row_tiles_ = 1, column_tiles_ = 1;
  std::vector<int64_t> outer_dims_, outer_strides_;   ///< bytes, [axis][operand]
  std::vector<int64_t> row_strides_, inner_strides_;  ///< bytes, of the operands themselves
  std::vector<int64_t> kernel_rows_,
      kernel_inner_;  ///< as the kernel sees them: staged ones are dense
  std::vector<Stage> stages_;
  std::vector<InnerStride> inner_;
};

}  // namespace ferrule::cpu
