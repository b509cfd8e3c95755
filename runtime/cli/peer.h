// ONNX Runtime as a yardstick: where a Python has it, its results of the same model on the same
// inputs. It is asked through that Python, which finds whatever way it was installed.
#pragma once
#include "runtime/cli/tensors.h"

namespace ferrule::cli {

struct PeerResults {
  std::string name;  ///< "ONNX Runtime 1.31.1"
  Tensors outputs;
};
/// Its optimizations off. Asked is the Python that $FERRULE_PYTHON names, else python3 of the PATH.
/// errors: library_missing, where there is no Python with onnxruntime and numpy; library_failed,
/// with what it says of the model; cancelled after `seconds`.
Result<PeerResults> onnx_runtime(const std::string& model, const std::vector<Port>& outputs,
                                 const Tensors& inputs, int threads, double seconds);

}  // namespace ferrule::cli
