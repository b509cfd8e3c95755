// A graph built anew with parts left out or changed. The original stays; nodes and values keep
// their names. Nothing here asks whether the result makes sense: the importer does.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"

namespace ferrule::reduce {

/// What becomes of one graph. Only the outermost graph loses nodes, inputs and outputs: of nested
/// ones they are an interface.
struct GraphEdit {
  std::set<NodeId> cut;  ///< left out; what others read of them becomes an input
  std::optional<std::vector<ValueId>> outputs;  ///< in place of the graph's own
  std::map<ValueId, Tensor> constants;          ///< values that become constants
  std::map<ValueId, ValueId> aliases;           ///< read the second instead of the first
  std::map<ValueId, Type> types;                ///< of inputs
  std::map<NodeId, size_t> inlined;  ///< replaced by the nodes of this nested graph, run once
  std::set<std::pair<NodeId, size_t>> no_input;  ///< operands left out
  std::set<std::pair<NodeId, size_t>>
      fewer_inputs;                               ///< operands left out, those behind them move up
  std::set<std::pair<NodeId, size_t>> no_output;  ///< results not wanted
  std::map<std::pair<NodeId, std::string>, std::optional<Attr>>
      attrs;  ///< new values; none: the attribute is left out

  /// Whether the types of values may be others than before.
  bool retypes() const {
    return !aliases.empty() || !types.empty() || !inlined.empty() || !no_input.empty() ||
           !fewer_inputs.empty() || !attrs.empty();
  }
};
/// By graph, nested ones too; graphs without an entry stay as they are.
using Edit = std::map<const Graph*, GraphEdit>;

/// Only what the outputs need. nullopt: nothing is left, or what is left cannot be put together.
std::optional<Graph> rebuilt(const Graph& g, const Edit& edit);
/// The leading part of a tensor. nullopt: it has no bytes to copy (strings, elements of less than a
/// byte).
std::optional<Tensor> leading(const Tensor& t, const std::vector<int64_t>& dims);

}  // namespace ferrule::reduce
