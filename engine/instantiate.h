// A replacement made concrete for one match, in a scratch graph that stands beside the model's: nodes,
// types, and constants folded in f64 and rounded once. Nothing in the model's graph is touched; rewrite.cpp
// compares the results (D7) and then moves them over.
#pragma once
#include "engine/match/match.h"

namespace ferrule {

/// The replacement as a graph of its own.
struct Instance {
  Graph scratch;
  std::vector<ValueId> origin;   ///< by scratch value index: the value of the model's graph it stands for, or none
  std::vector<ValueId> outputs;  ///< scratch values, one per Match::outputs; none: that result stays as it is
  std::vector<NodeId> like;      ///< by scratch node index: the matched node it takes after, or none
};

/// errors: rewrite_declined (a weight would not be finite, an attribute is not known), and what inference
/// of a new node says.
Result<Instance> instantiate(const Graph& g, const Match& m, const OpTable& ops, const Limits& limits);

/// The same values as another numeric type, one rounding each.
Tensor converted(const Tensor& t, DType to);

}  // namespace ferrule
