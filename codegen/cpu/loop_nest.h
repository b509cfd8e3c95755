// Loops of a generated CPU kernel over operands of any rank: which two axes the kernel walks
// itself, and how the others are walked. A nest is made once per shape; running a range of it is
// serial and allocates nothing, so that the runtime can split it over threads.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "codegen/cpu/kernel.h"
#include "codegen/program/loop.h"

namespace ferrule {

class LoopNest {
 public:
  static constexpr size_t kMaxOperands = 128;

  /// `dims`: of the outputs. `strides`: per operand (inputs, then outputs) one number of elements
  /// per axis, 0 where it is broadcast. `element_bytes`: per operand. `outputs`: how many of the
  /// operands, at the end. errors: codegen_failed for more than kMaxOperands, or a broadcast
  /// output.
  static Result<LoopNest> make(std::span<const int64_t> dims,
                               std::span<const std::vector<int64_t>> strides,
                               std::span<const int> element_bytes, size_t outputs);

  /// For KernelKey::inner.
  const std::vector<InnerStride>& inner() const { return inner_; }
  /// Units of work to split: rows of the inner loop, or pieces of rows where there are few. 0 when
  /// empty.
  int64_t size() const { return rows_ * pieces_; }
  /// Elements of a unit (the last piece of a row may have fewer): for the grain of a split.
  int64_t unit() const { return pieces_ > 1 ? piece_ : inner_size_; }
  int64_t elements() const { return rows_ * inner_size_; }

  /// Runs units [begin, end). `ptrs`: per operand, the element at index 0 of every axis.
  void run(KernelFn fn, void* const* ptrs, int64_t begin, int64_t end) const;

 private:
  void run_rows(KernelFn fn, void* const* ptrs, int64_t begin, int64_t end) const;
  void run_pieces(KernelFn fn, void* const* ptrs, int64_t row, int64_t begin, int64_t end) const;
  /// Byte offset of each operand at a row, the outer axis included.
  void offset(int64_t row, void* const* ptrs, void** at) const;

  size_t operands_ = 0;
  int64_t inner_size_ = 0, rows_ = 0;
  int64_t piece_ = 0, pieces_ = 1;      ///< elements of a piece, pieces of a row
  std::vector<int64_t> outer_dims_;     ///< outermost first; the last is the kernel's outer loop
  std::vector<int64_t> outer_strides_;  ///< bytes, [axis][operand]
  std::vector<int64_t> inner_strides_;  ///< bytes, [operand]
  std::vector<InnerStride> inner_;
};

}  // namespace ferrule
