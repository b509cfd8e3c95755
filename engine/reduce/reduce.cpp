#include "engine/reduce/reduce.h"

#include "engine/reduce/state.h"

namespace ferrule::reduce {

Result<Reduced> reduce(const Graph& model, const Tensors& inputs, const Check& check,
                       const Options& options) {
  State s(inputs, check, options);
  FERRULE_TRY(s.start(model));
  for (int before = -1; before != s.accepted() && !s.over();) {
    before = s.accepted();
    for (auto pass :
         {cut_nodes, inline_graphs, bypass_nodes, drop_outputs, drop_details, shrink, join_inputs})
      pass(s);
  }
  return s.result(!s.over());
}

}  // namespace ferrule::reduce
