// Graphs with one long axis and one element along the others: sums and counts that a shorter
// element type does not hold are met there alone.
#pragma once
#include <memory>

#include "engine/graph/graph.h"

namespace ferrule {

/// So many elements that neither f32 holds their number nor an integer of 32 bits, of either sign,
/// the sum of 8-bit ones.
inline constexpr int64_t kCounted = 16850001;

/// The graph with each of its inputs' sizes as the long one, wherever it stands in inputs,
/// constants and short lists; the others are 1, or as they were where they need not be. Not
/// inferred; what would have more than `most` elements is left out.
std::vector<std::unique_ptr<Graph>> lengthened(const Graph& g, int64_t to, int64_t most);

/// Whether an input has an axis of so many elements that a graph has room for nothing else.
bool has_long_axis(const Graph& g);
/// Whether an input has kCounted elements.
bool is_counted(const Graph& g);
/// Whether only the sizes of the value are read.
bool only_measured(const Graph& g, const Value& v);

}  // namespace ferrule
