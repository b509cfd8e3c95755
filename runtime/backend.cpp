#include "runtime/backend.h"

#include "engine/base/diagnostics.h"

namespace ferrule {

Result<std::vector<Tensor>> Executable::run_tensors(std::span<const Tensor> inputs,
                                                    RunObserver* observer) {
  std::vector<const void*> sources;
  for (const Tensor& t : inputs) sources.push_back(t.data());
  std::vector<Tensor> results;
  std::vector<void*> targets;
  for (ValueId v : plan_.graph.outputs()) {
    const Value& value = plan_.graph.value(v);
    if (value.type.dtype == DType::string || !is_tensor(value.type.dtype))  // kernels move bytes
      return error(Code::unsupported_type, "run",
                   fmt::format("output {} of type {}", escape(value.name), str(value.type)));
    auto dims = value.type.shape ? constant_shape(*value.type.shape) : std::nullopt;
    if (!dims) {
      return error(Code::size_unknown, "run",
                   fmt::format("the size of output {} is {}", escape(value.name), str(value.type)));
    }
    // Kernels write all of a result: it may as well lie in a caller's memory.
    auto [t, p] = Tensor::unwritten(value.type.dtype, *dims);
    results.push_back(t);
    targets.push_back(p);
  }
  FERRULE_TRY(run(sources, targets, observer));
  return results;
}

}  // namespace ferrule
