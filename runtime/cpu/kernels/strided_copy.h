// Moves elements between two strided views of the same dims: what Transpose, Slice, Split, Concat, Pad, Expand
// and Reorder all are. The dims are sorted and merged once; a run is memcpy of rows, a fill, or tiles that are
// transposed in registers' reach of the cache.
#pragma once
#include <cstdint>
#include <vector>

namespace ferrule::cpu {

class StridedCopy {
 public:
  StridedCopy() = default;
  /// Strides and offsets in elements; a source stride may be 0 (a value repeated) or negative (reversed).
  StridedCopy(std::vector<int64_t> dims, std::vector<int64_t> source, std::vector<int64_t> target, int element_bytes,
              int64_t source_offset = 0, int64_t target_offset = 0);
  void run(const void* source, void* target) const;
  /// What it came down to: "rows", "fill", "tiles", "elements".
  const char* text() const;

 private:
  enum class Kind : uint8_t { nothing, rows, fill, tiles, elements } kind_ = Kind::nothing;
  template <class T>
  void run_as(const T* source, T* target) const;
  template <class T>
  void inner(const T* source, T* target) const;

  int element_ = 1;
  int64_t source_offset_ = 0, target_offset_ = 0;
  std::vector<int64_t> dims_, source_, target_;  ///< outer axes
  int64_t outer_ = 1;                            ///< product of dims_
  // The innermost one (rows, fill, elements) or two (tiles) axes.
  int64_t count_ = 1, source_step_ = 0, target_step_ = 0;
  int64_t count2_ = 1, source_step2_ = 0, target_step2_ = 0;
};

}  // namespace ferrule::cpu
