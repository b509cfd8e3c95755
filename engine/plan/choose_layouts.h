// In which memory layout each value of a graph lies when it runs, and which nodes read it in
// another one. A query: the graph stays as it is. A plan writes the reorders as layers (plan.h);
// place rules ask how a part would lie in its whole (place.h).
#pragma once
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/layout.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"

namespace ferrule {

struct Layouts {
  /// A copy of a value in the other layout, for those of its readers that want it so.
  struct Reorder {
    ValueId value;
    Layout to = Layout::plain;
    NodeId before;             ///< the first of them; none: only the graph's output
    std::vector<Use> readers;  ///< nodes
    bool output = false;       ///< the graph's output is the copy
    Layout from() const { return to == Layout::plain ? Layout::channels_last : Layout::plain; }
  };
  std::vector<Layout> of;         ///< by ValueId::index, as the value is written
  std::vector<Reorder> reorders;  ///< one a value at most, in the order of `before`
  static constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> copy;           ///< by ValueId::index: its reorder, or kNone
  std::vector<std::string> contract;  ///< by NodeId::index: whose kernel runs the node

  Layout operator[](ValueId v) const { return of[v.index]; }
  /// The value's copy in the other layout, if `reader` reads that; null: it reads the value.
  const Reorder* copy_for(ValueId v, const Use& reader) const;
  /// Whether the value itself is a graph output, and no copy of it.
  bool escapes(const Graph& g, ValueId v) const;
};

/// `g` sorted. Chosen forward: each kernel writes what its contract says or its readers want.
Layouts layouts_of(const Graph& g, const Target& target, const Semantics& ops);
/// The node that copies a value into its other layout; without a name and operands.
Node reorder_node();

}  // namespace ferrule
