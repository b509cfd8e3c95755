#include "runtime/backend.h"

#include "engine/base/diagnostics.h"

namespace ferrule {

Result<std::vector<Tensor>> Executable::run_tensors(std::span<const Tensor> inputs, RunObserver* observer) {
  std::vector<const void*> sources;
  for (const Tensor& t : inputs) sources.push_back(t.data());
  std::vector<Tensor> results;
  std::vector<void*> targets;
  for (ValueId v : plan_.graph.outputs()) {
    const Value& value = plan_.graph.value(v);
    auto dims = value.type.shape ? constant_shape(*value.type.shape) : std::nullopt;
    if (!dims) {
      const std::string text = fmt::format("output {} is {}, its size must be known before a run", escape(value.name), str(value.type));
      return error(Code::bad_shape, "run", text);
    }
    auto [t, p] = Tensor::allocate(value.type.dtype, *dims);
    results.push_back(t);
    targets.push_back(p);
  }
  FERRULE_TRY(run(sources, targets, observer));
  return results;
}

}  // namespace ferrule
