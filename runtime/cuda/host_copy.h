// Elements between strided host memory of the same dims: for interpreted layers, observers, and
// constants on their way to the device. Plain loops.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace ferrule::cuda {

/// Elements from the first to behind the last that `strides` reach.
inline int64_t extent(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t a = 0; a < dims.size(); ++a) {
    if (dims[a] == 0) return 0;
    last += (dims[a] - 1) * strides[a];
  }
  return last + 1;
}

/// Strides in elements of `element` bytes.
inline void copy_strided(const std::vector<int64_t>& dims, const std::vector<int64_t>& from_strides,
                         const void* from, const std::vector<int64_t>& to_strides, void* to,
                         int64_t element) {
  for (int64_t d : dims)
    if (d == 0) return;
  std::vector<int64_t> at(dims.size(), 0);
  const auto* source = static_cast<const char*>(from);
  auto* target = static_cast<char*>(to);
  for (;;) {
    std::memcpy(target, source, static_cast<size_t>(element));
    size_t a = dims.size();
    for (; a > 0; --a) {
      source += from_strides[a - 1] * element;
      target += to_strides[a - 1] * element;
      if (++at[a - 1] < dims[a - 1]) break;
      at[a - 1] = 0;
      source -= from_strides[a - 1] * element * dims[a - 1];
      target -= to_strides[a - 1] * element * dims[a - 1];
    }
    if (a == 0) return;
  }
}

}  // namespace ferrule::cuda
