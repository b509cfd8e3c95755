// Moves elements between two strided views of the same dims: what Transpose, Slice, Split, Concat,
// Pad, Expand and Reorder all are. The dims are sorted and merged once; a run is memcpy of rows, a
// fill, or tiles that are transposed in registers' reach of the cache.
#pragma once
#include <cstdint>
#include <vector>

namespace ferrule::cpu {

class StridedCopy {
 public:
  StridedCopy() = default;
  /// Strides and offsets in elements; a source stride may be 0 (a value repeated) or negative
  /// (reversed).
  StridedCopy(std::vector<int64_t> dims, std::vector<int64_t> source, std::vector<int64_t> target,
              int element_bytes, int64_t source_offset = 0, int64_t target_offset = 0);
  /// All of it, on several threads where it is large.
  void run(const void* source, void* target) const;
  /// Units of work to split, and bytes written by all of them.
  int64_t units() const { return kind_ == Kind::nothing ? 0 : outer_ * row_units_; }
  int64_t bytes() const { return kind_ == Kind::nothing ? 0 : outer_ * rows_ * count_ * element_; }
  /// Units [begin, end) on the calling thread.
  void run(const void* source, void* target, int64_t begin, int64_t end) const;
  /// What it came down to: "rows", "fill", "tiles", "elements".
  const char* text() const;

 private:
  /// How the innermost axis is moved.
  enum class Kind : uint8_t { nothing, rows, fill, tiles, elements } kind_ = Kind::nothing;
  template <class T>
  void run_as(const T* source, T* target, int64_t begin, int64_t end) const;
  /// `rows` of the second innermost axis, each `count` elements.
  template <class T>
  void inner(const T* source, T* target, int64_t rows, int64_t count) const;
  template <class T>
  void tiles(const T* source, T* target, int64_t rows, int64_t count) const;
  template <class T>
  void tile(const T* source, T* target, int64_t rows, int64_t count) const;

  int element_ = 1;
  int64_t source_offset_ = 0, target_offset_ = 0;
  std::vector<int64_t> dims_, source_, target_;  ///< outer axes
  int64_t outer_ = 1;                            ///< product of dims_
  // The two innermost axes; of tiles the inner one is dense in the target, the other one in the
  // source.
  int64_t count_ = 1, source_step_ = 1, target_step_ = 1;
  int64_t rows_ = 1, source_row_ = 0, target_row_ = 0;
  int64_t unit_rows_ = 1, row_units_ = 1;  ///< a unit is this many rows; there are so many of them
  int64_t unit_count_ = 0;  ///< of a few long rows, a unit is so many elements of all rows
};

}  // namespace ferrule::cpu
