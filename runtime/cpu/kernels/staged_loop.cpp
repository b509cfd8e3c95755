#include "runtime/cpu/kernels/staged_loop.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace ferrule::cpu {
namespace {

constexpr int64_t kLine = 64;     // bytes
constexpr int64_t kTile = 64;     // elements each way
constexpr size_t kMaxStages = 4;  // of at most 8 bytes an element: scratch below
constexpr int64_t kFewElements = 1024;

struct alignas(64) Scratch {
  char bytes[kMaxStages][kTile * kTile * 8];
};
thread_local Scratch scratch;

}  // namespace

std::optional<StagedLoop> StagedLoop::make(std::span<const int64_t> dims,
                                           std::span<const std::vector<int64_t>> strides,
                                           std::span<const int> element_bytes, size_t outputs) {
  if (strides.size() > LoopNest::kMaxOperands || std::ranges::find(dims, 0) != dims.end())
    return std::nullopt;
  const size_t count = strides.size(), inputs = count - outputs;
  std::vector<LoopAxis> axes = collapse_axes(dims, strides, inputs);
  if (axes.size() < 2) return std::nullopt;
  for (LoopAxis& a : axes)
    for (size_t k = 0; k < count; ++k) a.strides[k] *= element_bytes[k];
  LoopAxis inner = axes.back();
  axes.pop_back();
  auto staged = [&](size_t k, const LoopAxis& rows) {
    return std::abs(inner.strides[k]) >= kLine && std::abs(rows.strides[k]) == element_bytes[k];
  };
  // The row axis: along which an input that steps over whole lines is dense.
  auto rows = std::ranges::find_if(axes, [&](const LoopAxis& a) {
    for (size_t k = 0; k < inputs; ++k)
      if (a.strides[k] == element_bytes[k] && staged(k, a)) return true;
    return false;
  });
  if (rows == axes.end() || rows->size < 4 || inner.size < 4 ||
      rows->size * inner.size < kFewElements)
    return std::nullopt;

  StagedLoop loop;
  loop.operands_ = count;
  loop.rows_ = rows->size, loop.columns_ = inner.size;
  loop.row_tiles_ = (loop.rows_ + kTile - 1) / kTile,
  loop.column_tiles_ = (loop.columns_ + kTile - 1) / kTile;
  loop.row_strides_ = loop.kernel_rows_ = rows->strides;
  loop.inner_strides_ = loop.kernel_inner_ = inner.strides;
  for (size_t k = 0; k < inputs && loop.stages_.size() < kMaxStages; ++k) {
    if (rows->strides[k] != element_bytes[k] || !staged(k, *rows)) continue;
    Stage s;
    s.operand = k;
    const int64_t last_rows = loop.rows_ - (loop.row_tiles_ - 1) * kTile,
                  last = loop.columns_ - (loop.column_tiles_ - 1) * kTile;
    for (int r = 0; r < 2; ++r)
      for (int c = 0; c < 2; ++c)
        s.copies[r][c] =
            StridedCopy({r ? last_rows : kTile, c ? last : kTile},
                        {1, inner.strides[k] / element_bytes[k]}, {kTile, 1}, element_bytes[k]);
    loop.kernel_rows_[k] = kTile * element_bytes[k];
    loop.kernel_inner_[k] = element_bytes[k];
    loop.stages_.push_back(std::move(s));
  }
  axes.erase(rows);
  loop.units_ = loop.row_tiles_ * loop.column_tiles_;
  loop.elements_ = loop.rows_ * loop.columns_;
  for (const LoopAxis& a : axes) {
    loop.units_ *= a.size, loop.elements_ *= a.size;
    loop.outer_dims_.push_back(a.size);
    loop.outer_strides_.insert(loop.outer_strides_.end(), a.strides.begin(), a.strides.end());
  }
  for (size_t k = 0; k < count; ++k) {
    const int64_t step = loop.kernel_inner_[k];
    loop.inner_.push_back(step == 0                  ? InnerStride::broadcast
                          : step == element_bytes[k] ? InnerStride::contiguous
                                                     : InnerStride::strided);
  }
  return loop;
}

void StagedLoop::run(KernelFn fn, void* const* ptrs, int64_t begin, int64_t end) const {
  for (int64_t tile = begin; tile < end; ++tile) run_tile(fn, ptrs, tile);
}

void StagedLoop::run_tile(KernelFn fn, void* const* ptrs, int64_t tile) const {
  std::array<void*, LoopNest::kMaxOperands> at;
  std::copy_n(ptrs, operands_, at.begin());
  auto advance = [&](const int64_t* strides, int64_t by) {
    for (size_t k = 0; k < operands_; ++k) at[k] = static_cast<char*>(at[k]) + by * strides[k];
  };
  const int64_t column = tile % column_tiles_, row = tile / column_tiles_ % row_tiles_;
  int64_t rest = tile / column_tiles_ / row_tiles_;
  for (size_t d = outer_dims_.size(); d-- > 0; rest /= outer_dims_[d])
    advance(outer_strides_.data() + d * operands_, rest % outer_dims_[d]);
  advance(row_strides_.data(), row * kTile);
  advance(inner_strides_.data(), column * kTile);
  for (size_t k = 0; k < stages_.size(); ++k) {
    const Stage& s = stages_[k];
    const StridedCopy& copy = s.copies[row == row_tiles_ - 1][column == column_tiles_ - 1];
    copy.run(at[s.operand], scratch.bytes[k], 0, copy.units());
    at[s.operand] = scratch.bytes[k];
  }
  const int64_t n[2] = {std::min(kTile, rows_ - row * kTile),
                        std::min(kTile, columns_ - column * kTile)};
  fn(at.data(), n, kernel_rows_.data(), kernel_inner_.data());
}

}  // namespace ferrule::cpu
