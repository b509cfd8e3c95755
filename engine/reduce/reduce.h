// Delta debugging of models: from one that shows a failure to a small one that still does: fewest nodes, then smallest
// sizes. What shows the failure is a function that is asked about each candidate; the candidates are models as they would
// stand in a file, accepted by the importer before it is asked. Inputs, where given, are kept in step: what is cut out is
// replaced by the values that it had. The same model, inputs and answers give the same result.
#pragma once
#include <functional>
#include <string>

#include "engine/base/limits.h"
#include "engine/semantics/ops.h"
#include "engine/reduce/values.h"

namespace ferrule::reduce {

struct Candidate {
  const Graph& graph;
  const std::string& bytes;  ///< the model file
  const Tensors& inputs;     ///< by name; empty where none were given
};
/// Whether the candidate still shows the failure. An error ends the reduction.
using Check = std::function<Result<bool>(const Candidate&)>;

struct Options {
  const OpTable* ops = nullptr;           ///< required
  const Limits* limits = nullptr;         ///< default limits when null
  const Cancel* cancel = nullptr;         ///< stops it: the smallest found so far is the result
  double seconds = 60;                    ///< the same
  std::function<void(const std::string&)> log;  ///< a line whenever a smaller model is found
};

struct Reduced {
  Graph graph;
  std::string bytes;
  Tensors inputs;
  size_t nodes_before = 0, nodes = 0;     ///< nested graphs' included
  int checks = 0;                         ///< how often the function was asked
  int refused = 0;                        ///< candidates that were no models, or had been seen
  double seconds = 0;
  bool complete = false;                  ///< nothing that is tried makes it smaller; else the time was over
};

/// errors: usage, where the model itself does not show the failure; those of the check and of export.
Result<Reduced> reduce(const Graph& model, const Tensors& inputs, const Check& check, const Options& options);

/// Nodes, nested graphs' included.
size_t count_nodes(const Graph& g);

}  // namespace ferrule::reduce
