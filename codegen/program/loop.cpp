#include "codegen/program/loop.h"

#include <algorithm>
#include <cstdlib>

namespace ferrule {

int64_t reach(std::span<const LoopAxis> axes, size_t operand) {
  int64_t most = 0;
  for (const LoopAxis& a : axes) most += std::abs(a.strides[operand]) * (a.size - 1);
  return most;
}

std::vector<LoopAxis> collapse_axes(std::span<const int64_t> dims,
                                    std::span<const std::vector<int64_t>> strides,
                                    size_t first_output) {
  std::vector<LoopAxis> axes, out;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    LoopAxis a{dims[d], {}};
    for (const auto& s : strides) a.strides.push_back(s[d]);
    axes.push_back(std::move(a));
  }
  std::stable_sort(axes.begin(), axes.end(), [&](const LoopAxis& a, const LoopAxis& b) {
    return std::abs(a.strides[first_output]) > std::abs(b.strides[first_output]);
  });
  for (LoopAxis& a : axes) {
    bool one = !out.empty();
    for (size_t k = 0; one && k < a.strides.size(); ++k)
      one = out.back().strides[k] == a.strides[k] * a.size;
    if (one)
      a.size *= out.back().size, out.back() = std::move(a);
    else
      out.push_back(std::move(a));
  }
  return out;
}

}  // namespace ferrule
