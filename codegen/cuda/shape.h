// How the work of a generated CUDA kernel is spread over threads and blocks, where that changes its
// speed and not its results. Each kind of kernel names the shapes that are worth a measurement, the
// built-in choice first, and only such as every target can launch; `ferrule tune` measures them,
// and the tuning file keeps the fastest by its text.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostics.h"

namespace ferrule {

struct CudaShape {
  std::string_view form = "threads";  ///< a literal; what the numbers are of
  int threads = 256;   ///< of a block; "warp", "block", "columns": of a row's team; "tile": in y;
                       ///< "queries": queries
  int each = 1;        ///< packs of a thread; "warp", "columns": rows of a block; "tile": its edge
  int64_t slices = 1;  ///< blocks of a row
  friend bool operator==(const CudaShape&, const CudaShape&) = default;
  /// "threads256x2", "warp32x4", "block512/8".
  std::string text() const {
    std::string out = fmt::format("{}{}", form, threads);
    if (each > 1) out += fmt::format("x{}", each);
    if (slices > 1) out += fmt::format("/{}", slices);
    return out;
  }
};

/// The shapes of one launch, and the one that is taken.
struct CudaShapes {
  std::vector<CudaShape> all;  ///< the built-in one first, each once
  CudaShape taken;
  CudaShapes() : all(1) {}
  /// `wanted`: a shape's text; another one's, or "": the first is taken.
  CudaShapes(const std::vector<CudaShape>& shapes, std::string_view wanted) {
    for (const CudaShape& s : shapes)
      if (!contains(all, s)) all.push_back(s);
    const auto at =
        std::ranges::find_if(all, [&](const CudaShape& s) { return s.text() == wanted; });
    taken = at == all.end() ? all.front() : *at;
  }
};

/// For kernels whose threads have a pack of elements each, or several: `packs` of them, of so many
/// `bytes` in all operands together; 0 bytes: a thread has one. `cores`: multiprocessors; 0: not
/// known.
inline CudaShapes element_shapes(int64_t packs, int64_t bytes, int cores, std::string_view wanted) {
  constexpr int64_t kRegisterBytes = 256;  // of a thread, for what it has read
  constexpr int kLeast = 128;
  std::vector<CudaShape> out{{}};
  if (packs > kLeast)
    for (const CudaShape& s : {CudaShape{"threads", 128},
                               {"threads", 512},
                               {"threads", 128, 2},
                               {"threads", 256, 2},
                               {"threads", 128, 4},
                               {"threads", 256, 4}})
      // Several packs a thread are for accesses in flight at once, where there are blocks for all
      // multiprocessors still.
      if (s.each == 1 || (bytes && bytes * s.each <= kRegisterBytes &&
                          packs >= int64_t{s.threads} * s.each * std::max(cores, 1)))
        out.push_back(s);
  return {out, wanted};
}

}  // namespace ferrule
