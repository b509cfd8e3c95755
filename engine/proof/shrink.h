// A counter-example as small as it gets: what stands around the match goes, sizes and numbers
// become 0, 1 and 2, as long as the rule still fires and still gives another result.
#pragma once
#include "engine/proof/agree.h"

namespace ferrule {

struct CounterExample {
  std::unique_ptr<Graph> graph;
  Mismatch mismatch;
};
/// `seconds`: of computing; the smallest found by then.
CounterExample shrunk(const Rule& rule, CounterExample found, const ProofContext& ctx,
                      uint64_t seed, double seconds);
/// ONNX text, a line an input, and what comes out.
std::string to_text(const CounterExample& c);

}  // namespace ferrule
