// What operators that no formula describes are to those who ask: contracts, conditions, rewriting
// and code generation know operators by these answers, not by name. Movements have their own
// (movement.h).
#pragma once
#include <optional>

#include "engine/graph/graph.h"

namespace ferrule {

/// Operators that take the maximum or the mean of a window.
struct Pooling {
  bool maximum = false;
  bool global = false;  ///< of the whole image, whatever its size
};
std::optional<Pooling> pooling_of(const Node& n);
/// The pooling of whole images as a reduction of `x` over their spatial axes; without results. Adds
/// the constant of the axes to `g`.
Node image_reduction(Graph& g, Pooling pooling, ValueId x);

/// Operators with weights: which axis of these holds the output channels (a negative one counts
/// from the end), whether `group` multiplies it, whether the axes from 2 on are the window, and
/// which input they are.
struct Weighted {
  int output_axis = 0;
  bool times_group = false, window = false;
  size_t slot = 1;
  bool affine = false;  ///< may have transposed factors, a factor in front, and something to add
};
const Weighted* weighted(const Node& n);

bool quantizes(const Node& n);
bool dequantizes(const Node& n);
bool is_branch(const Node& n);
bool is_loop(const Node& n);

}  // namespace ferrule
