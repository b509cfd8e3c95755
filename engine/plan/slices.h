// Values that are parts of another one's memory, as groups of place rules say it: place.h makes
// these groups, a plan reads them.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/choose_layouts.h"
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
/// The slices of the groups of place rules, where the layouts are equal.
std::map<ValueId, SliceOf> read_slices(const Graph& g, const Layouts& layouts,
                                       const Semantics& ops);

/// Where a value's elements lie in the memory it is a part of, in elements; its own where it is no
/// slice.
struct StridedView {
  ValueId root;  ///< no slice of another
  int64_t offset = 0;
  std::vector<int64_t> strides;
  bool dense = true;  ///< lies as it would on its own, from the offset on
};
/// nullopt: a size on the way is not known. `layouts`: by ValueId::index.
std::optional<StridedView> strided_view(const Graph& g, std::span<const Layout> layouts,
                                        const std::map<ValueId, SliceOf>& slices, ValueId v);
/// Nodes that are layers: those whose work others do are none.
size_t layers_of(const Graph& g);

}  // namespace ferrule
