// Options and result of a reduction.
#pragma once
#include <functional>
#include <string>

#include "engine/base/limits.h"
#include "engine/reduce/values.h"
#include "engine/semantics/semantics.h"

namespace ferrule::reduce {

struct Candidate {
  const Graph& graph;
  const std::string& bytes;  ///< the model file
  const Tensors& inputs;     ///< by name; empty where none were given
};
/// Whether the candidate still shows the failure. An error ends the reduction.
using Check = std::function<Result<bool>(const Candidate&)>;

struct Options {
  const Semantics* ops = nullptr;  ///< required
  const Limits* limits = nullptr;  ///< default limits when null
  const Cancel* cancel = nullptr;  ///< stops it: the smallest found so far is the result
  double seconds = 60;             ///< the same
  std::function<void(const std::string&)> log;  ///< a line whenever a smaller model is found
};

struct Reduced {
  Graph graph;
  std::string bytes;
  Tensors inputs;
  size_t nodes_before = 0, nodes = 0;  ///< nested graphs' included
  int checks = 0;                      ///< how often the function was asked
  int refused = 0;                     ///< candidates that were no models, or had been seen
  double seconds = 0;
  bool complete = false;  ///< nothing that is tried makes it smaller; else the time was over
};

}  // namespace ferrule::reduce
