#include "engine/plan/layout.h"

#include <algorithm>

namespace ferrule {

std::string_view name(Layout l) { return l == Layout::plain ? "plain" : "channels_last"; }

std::vector<int64_t> strides_of(const std::vector<int64_t>& dims, Layout layout) {
  const size_t rank = dims.size();
  std::vector<int64_t> strides(rank, 1);
  std::vector<size_t> order;  // innermost first
  if (layout == Layout::channels_last && rank >= 3) order.push_back(1);
  for (size_t k = rank; k-- > 0;)
    if (!(layout == Layout::channels_last && rank >= 3 && k == 1)) order.push_back(k);
  int64_t step = 1;
  for (size_t k : order) {
    strides[k] = step;
    step *= std::max<int64_t>(dims[k], 1);
  }
  return strides;
}

bool same_memory(const std::vector<int64_t>& dims) {
  auto one = [](int64_t d) { return d == 1; };
  return dims.size() < 3 || dims[1] == 1 || std::all_of(dims.begin() + 2, dims.end(), one);
}

}  // namespace ferrule
