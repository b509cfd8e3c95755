// A replacement made concrete for one match, in a scratch graph that stands beside the model's:
// nodes, types, and constants folded in f64 and rounded once, which stay the kinds of numbers that
// they are (D9). Nothing in the model's graph is touched; rewrite.cpp compares the results (D7) and
// then moves them over.
#pragma once
#include "engine/match/match_rule.h"

namespace ferrule {

/// The replacement as a graph of its own.
struct Instance {
  Graph scratch;
  std::vector<ValueId>
      origin;  ///< by scratch value index: the value of the model's graph it stands for, or none
  std::vector<ValueId>
      outputs;  ///< scratch values, one per Match::outputs; none: that result stays as it is
  std::vector<NodeId> like;  ///< by scratch node index: the matched node it takes after, or none
};

/// errors: rewrite_declined (D9: a constant would change its kind of number; an attribute is not
/// known), and what inference of a new node says.
Result<Instance> instantiate(const Graph& g, const Match& m, const Semantics& ops,
                             const Limits& limits);

/// What an error of it, or of moving it into the model's graph, is to the match: the guarantee that
/// stood in the way (D7, D9), or "replacement" where there is none of it.
Rejection declined_rewrite(const Match& m, const Error& e);

/// The same values as another numeric type, one rounding each.
Tensor converted(const Tensor& t, DType to);

}  // namespace ferrule
