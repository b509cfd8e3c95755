// Delta debugging of models: from one that shows a failure to a small one that still does: fewest
// nodes, then smallest sizes. What shows the failure is a function that is asked about each
// candidate; the candidates are models as they would stand in a file, accepted by the importer
// before it is asked. Inputs, where given, are kept in step: what is cut out is replaced by the
// values that it had. The same model, inputs and answers give the same result.
#pragma once
#include "engine/reduce/options.h"

namespace ferrule::reduce {

/// errors: usage, where the model itself does not show the failure; those of the check and of
/// export.
Result<Reduced> reduce(const Graph& model, const Tensors& inputs, const Check& check,
                       const Options& options);

}  // namespace ferrule::reduce
