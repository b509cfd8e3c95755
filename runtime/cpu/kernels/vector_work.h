// How the work of kernels over vectors of output channels (winograd.cpp, product.cpp) is cut, and
// for which instructions.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/cpu/kernel.h"
#include "runtime/cpu/kernels/vector_step.h"

namespace ferrule::cpu {

/// Pieces of `unit` that n is cut into; n rounded up to whole ones.
inline int64_t parts(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
inline int64_t up(int64_t n, int64_t unit) { return parts(n, unit) * unit; }

/// How much longer the busiest thread works than it would if n pieces were split evenly.
inline double imbalance(int64_t n, int threads) {
  return static_cast<double>(up(n, threads)) / static_cast<double>(n);
}

/// First vector of each block of output channels, and the end.
inline std::vector<int64_t> channel_blocks(int64_t vectors) {
  std::vector<int64_t> out;
  for (int64_t v = 0; v < vectors; v += block_width(vectors - v)) out.push_back(v);
  out.push_back(vectors);
  return out;
}

/// Instructions that the target allows and the processor has.
enum class VectorIsa : uint8_t { none, avx2, avx512 };
inline VectorIsa vector_isa(const Context& context) {
  const bool allowed = !context.target || context.target->has_isa("avx512f");
  if (allowed && __builtin_cpu_supports("avx512f")) return VectorIsa::avx512;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? VectorIsa::avx2
                                                                         : VectorIsa::none;
}

namespace product {
struct Functions;
}
/// product.h's for these instructions; null: there are none.
const product::Functions* product_functions(const Context& context);

}  // namespace ferrule::cpu
