// Whether two results differ as two orders of the same arithmetic may. The graph is evaluated in
// f64, where nothing overflows that did not before; conversions round as they say, since that is
// what they mean. Beside it runs an error bound: the same evaluation with every operand and every
// result off by up to half a unit in the last place of its own type, several times. What moves then
// is what rounding can move; nothing else is excused but an overflow.
#pragma once
#include "engine/base/limits.h"
#include "engine/graph/graph.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

struct ArbiterCase {
  const Graph *before = nullptr, *after = nullptr;
  const std::vector<Tensor>* inputs = nullptr;
  const std::vector<Tensor>*want = nullptr,
        *got = nullptr;   ///< what the two gave, in their own types
  bool ordinary = false;  ///< only numbers of which nothing underflows are asked about
};

/// "" where every difference is explained: both results are within the error bound of each other,
/// or what came out is within it of the f64 value, which the graph before lost to the limits of its
/// type, or a value inside of one of the graphs overflowed (of ordinary numbers: or underflowed),
/// or NaN became an integer. Else which element is not. Where nothing is rounded, nothing is
/// explained: a tie that one of the two breaks in another way is another result.
std::string unexplained(const ArbiterCase& c, const Semantics& ops, const Limits& limits);

}  // namespace ferrule
