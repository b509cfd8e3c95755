// What nested graphs (of If, Loop, Scan) read of the graph around them: a value of a nested graph that stands for one outside has `outer`.
// Here they are found, for all who walk a graph's edges. Recording them as uses is Graph's own work.
#pragma once
#include <algorithm>

#include "engine/graph/graph.h"

namespace ferrule {

/// f(id, value) for each value of the nested graph that is captured; value.outer is the one outside.
template <class F>
void each_capture(const Graph& nested, F&& f) {
  for (uint32_t i = 0; i < nested.value_slots(); ++i)
    if (const Value& v = nested.value(ValueId{i}); !v.dead && v.outer) f(ValueId{i}, v);
}

/// The values outside that the nested graphs of `n` capture, each once, in the order of their ids.
inline std::vector<ValueId> captures(const Node& n) {
  std::vector<ValueId> out;
  for (const auto& [_, sub] : n.subgraphs) each_capture(*sub, [&](ValueId, const Value& v) { out.push_back(v.outer); });
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace ferrule
