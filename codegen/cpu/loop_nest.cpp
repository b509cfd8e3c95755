#include "codegen/cpu/loop_nest.h"

#include <algorithm>
#include <array>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

// Fewer rows than this are cut into pieces, so that there is something to split over threads.
constexpr int64_t kFewRows = 64;
constexpr int64_t kPiece = 4096;  // elements; a multiple of 64 bytes for every element size

}  // namespace

Result<LoopNest> LoopNest::make(std::span<const int64_t> dims,
                                std::span<const std::vector<int64_t>> strides,
                                std::span<const int> element_bytes, size_t outputs) {
  if (strides.size() > kMaxOperands)
    return error(Code::codegen_failed, "",
                 fmt::format("a kernel with {} operands", strides.size()));
  FERRULE_ASSERT(
      outputs >= 1 && outputs <= strides.size() && element_bytes.size() == strides.size(),
      "operands of a loop nest");
  LoopNest nest;
  nest.operands_ = strides.size();
  bool empty = contains(dims, 0);
  std::vector<LoopAxis> axes = collapse_axes(dims, strides, strides.size() - outputs);
  if (axes.empty()) axes.push_back({1, std::vector<int64_t>(strides.size(), 1)});
  for (LoopAxis& a : axes)
    for (size_t k = 0; k < strides.size(); ++k) a.strides[k] *= element_bytes[k];
  LoopAxis inner = axes.back();
  axes.pop_back();
  nest.inner_size_ = inner.size;
  nest.inner_strides_ = inner.strides;
  for (size_t k = 0; k < strides.size(); ++k) {
    bool output = k >= strides.size() - outputs;
    if (output && inner.strides[k] == 0 && !empty)
      return error(Code::codegen_failed, "", "an output that is broadcast");
    nest.inner_.push_back(output && inner.strides[k] == 0
                              ? InnerStride::contiguous
                              : inner_stride(inner.strides[k], element_bytes[k]));
  }
  nest.rows_ = 1;
  for (const LoopAxis& a : axes) {
    nest.rows_ *= a.size;
    nest.outer_dims_.push_back(a.size);
    nest.outer_strides_.insert(nest.outer_strides_.end(), a.strides.begin(), a.strides.end());
  }
  if (nest.outer_dims_.empty()) {
    nest.outer_dims_.push_back(1);
    nest.outer_strides_.assign(strides.size(), 0);
  }
  if (empty) nest.rows_ = nest.inner_size_ = 0;
  if (nest.rows_ < kFewRows && nest.inner_size_ >= 2 * kPiece) {
    nest.piece_ = kPiece;
    nest.pieces_ = (nest.inner_size_ + kPiece - 1) / kPiece;
  }
  return nest;
}

void LoopNest::offset(int64_t row, void* const* ptrs, void** at) const {
  for (size_t k = 0; k < operands_; ++k) at[k] = ptrs[k];
  for (size_t d = outer_dims_.size(); d-- > 0 && row > 0;) {
    int64_t index = row % outer_dims_[d];
    row /= outer_dims_[d];
    for (size_t k = 0; k < operands_; ++k)
      at[k] = static_cast<char*>(at[k]) + index * outer_strides_[d * operands_ + k];
  }
}

void LoopNest::run_rows(KernelFn fn, void* const* ptrs, int64_t begin, int64_t end) const {
  std::array<void*, kMaxOperands> at;
  const int64_t* strides = outer_strides_.data() + (outer_dims_.size() - 1) * operands_;
  for (int64_t row = begin; row < end;) {
    int64_t left = outer_dims_.back() - row % outer_dims_.back();
    const int64_t n[2] = {std::min(left, end - row), inner_size_};
    offset(row, ptrs, at.data());
    fn(at.data(), n, strides, inner_strides_.data());
    row += n[0];
  }
}

void LoopNest::run_pieces(KernelFn fn, void* const* ptrs, int64_t row, int64_t begin,
                          int64_t end) const {
  std::array<void*, kMaxOperands> at;
  offset(row, ptrs, at.data());
  for (size_t k = 0; k < operands_; ++k)
    at[k] = static_cast<char*>(at[k]) + begin * piece_ * inner_strides_[k];
  const int64_t n[2] = {1, std::min(end * piece_, inner_size_) - begin * piece_};
  fn(at.data(), n, outer_strides_.data(), inner_strides_.data());
}

void LoopNest::run(KernelFn fn, void* const* ptrs, int64_t begin, int64_t end) const {
  if (begin >= end) return;
  if (pieces_ == 1) return run_rows(fn, ptrs, begin, end);
  for (int64_t at = begin; at < end;) {
    int64_t row = at / pieces_, stop = std::min(end, (row + 1) * pieces_);
    run_pieces(fn, ptrs, row, at - row * pieces_, stop - row * pieces_);
    at = stop;
  }
}

}  // namespace ferrule
