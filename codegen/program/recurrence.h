// What the recurrent contracts (lstm, gru, rnn) compute in a step: the node's attributes, and the
// pointwise part of a cell as scalar programs over f32. The two products of a step are the
// backend's.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "codegen/program/work.h"
#include "engine/base/applicable.h"
#include "engine/graph/graph.h"
#include "engine/semantics/rnn_activations.h"
#include "engine/semantics/scalar.h"

namespace ferrule {

struct Recurrence {
  Work work = Work::lstm;
  int64_t gates = 4;  ///< in ONNX's order: i o f c, z r h, or one
  int64_t directions = 1;
  bool reverse = false;  ///< the first direction starts at the end; a second one always does
  bool batch_first = false;
  /// gru: the reset gate multiplies the product with the state, else the state.
  bool linear_before_reset = false;
  bool coupled = false;                    ///< lstm: what is not forgotten is taken in
  double clip = 0;                         ///< 0: none
  std::vector<RnnActivation> activations;  ///< direction by direction

  bool walks_back(int64_t direction) const { return reverse || direction == 1; }
  /// gru: the state is multiplied before the last gate's product is made.
  bool resets_state() const { return work == Work::gru && !linear_before_reset; }
};

/// Not applicable: an unknown direction or activation.
Applicable<Recurrence> recurrence_of(Work work, const Node& n, const std::string& layer);

/// Inputs of `step`: for each gate its product with the input, bias included, and its product with
/// the state; then the state before (lstm: the memory; rnn: none) and, with peepholes, those of i,
/// o, f. Outputs: the state; lstm: the memory, then the state.
struct CellPrograms {
  Program step;
  std::optional<Program> reset;  ///< resets_state(): of r's two products and the state
};
CellPrograms cell_programs(const Recurrence& r, int64_t direction, bool peepholes);

}  // namespace ferrule
