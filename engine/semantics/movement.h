// Operators that only move elements (Transpose, Slice, Concat, Pad, Reshape, Resize nearest, …) as
// index arithmetic: which element of which operand is found at an index of a result. One row a
// operator in movement.cpp; nothing here knows kernels, memory or layouts. region_pieces.h makes
// kernels of it.
#pragma once
#include <optional>
#include <vector>

#include "engine/base/applicable.h"
#include "engine/graph/graph.h"

namespace ferrule {

/// Along one axis: indices [begin, end) of the result are found at start, start + step, … of an
/// operand.
struct Segment {
  int64_t begin = 0, end = 0;
  int operand = 0;  ///< input slot; kFill: no operand, the movement's fill value
  int64_t start = 0, step = 1;
  static constexpr int kFill = -1;
};

/// One step of the way from an index of the result to an index of an operand.
struct IndexStep {
  enum class Kind : uint8_t {
    axes,     ///< axis k behind the step is axis axes[k] in front of it; -1: index 0
    reshape,  ///< the same row-major position in `to` instead of `from`
    walk,     ///< along `axis` the index goes through `segments`, which cover it
  } kind = Kind::axes;
  std::vector<int64_t> axes;
  std::vector<int64_t> from, to;
  size_t axis = 0;
  std::vector<Segment> segments;
};

struct Movement {
  std::vector<IndexStep> steps;
  int operand = 0;             ///< the slot read where no walk names another
  std::optional<Tensor> fill;  ///< one element; absent: zero
};

/// Whether the operator only moves elements, whatever its parameters are.
bool is_movement(const Node& n);
/// Those that keep the row-major order of all elements: free between layers, where the layout is
/// plain.
bool is_view(const Node& n);
/// Those that may read an element several times (Expand, Tile, Resize, Gather, GatherND).
bool repeats_elements(const Node& n);
/// Those that put all axes in another order (attribute perm).
bool is_transpose(const Node& n);
/// Those that take a part along an axis, or put something around it (Slice, Pad).
bool crops(const Node& n);
/// Those for which kernels read the places along an axis from a tensor, where a model computes it.
bool looks_up(const Node& n);
/// Whether the input at `slot` is moved; the others are parameters.
bool moves_input(const Node& n, size_t slot);

/// The movement that takes a value apart along `axis` into parts of these sizes: its operator,
/// attributes and inputs; names and outputs are the caller's. Adds the constant of the sizes to
/// `g`.
Node take_apart(Graph& g, ValueId whole, int64_t axis, const std::vector<int64_t>& sizes);

/// Movements that only renumber axes: axis k of the input is axis result[k] of the result; -1: only
/// its index 0 is read. nullopt: another movement, or a size that decides is not known.
std::optional<std::vector<int64_t>> axes_of(const Graph& g, const Node& n);
/// Not applicable, saying which parameter or size is not known or not of this kind.
Applicable<Movement> movement_of(const Graph& g, const Node& n, size_t output);
/// Of every output: in time linear in their number.
std::vector<Applicable<Movement>> movements_of(const Graph& g, const Node& n);

}  // namespace ferrule
