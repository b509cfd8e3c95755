// Values that are parts of another one's memory, as groups of place rules say it: place.h makes
// these groups, a plan reads them.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/layout.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Attributes of the groups: slots that need not be moved; set where nothing is left to move.
inline constexpr std::string_view kSlicesWritten = "slices_written", kSlicesRead = "slices_read",
                                  kNothingToMove = "nothing_to_move";

/// A value that is a part of another one's memory: its element 0 is element `start` of `whole`
/// along `axis`, the next one `step` further.
struct SliceOf {
  ValueId whole;
  int axis = 0;
  int64_t start = 0, step = 1;
};

/// Where a movement's parts lie in the whole, by slot: found out from the movement, whatever it is
/// called. `writes`: its inputs in its result; else its results in its operand.
std::vector<std::optional<SliceOf>> slices_of(const Graph& g, NodeId node, bool writes);
/// The slices of the groups of place rules, where the layouts (by ValueId::index) are equal.
std::map<ValueId, SliceOf> read_slices(const Graph& g, std::span<const Layout> layouts,
                                       const Semantics& ops);
/// Nodes that are layers: those whose work others do are none.
size_t layers_of(const Graph& g);

}  // namespace ferrule
