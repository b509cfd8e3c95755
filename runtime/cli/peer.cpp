#include "runtime/cli/peer.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/diagnostics.h"
#include "engine/base/environment.h"
#include "engine/graph/npz.h"
#include "runtime/candidate_check.h"

namespace ferrule::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMissing = 9;  // the script's exit status where it finds no ONNX Runtime

// The model, its inputs, a folder for the results and the number of threads. Results are o0, o1, …
// by the model's order, since any name may be an output's.
constexpr const char* kScript = R"(
import sys
sys.path = [p for p in sys.path if p]
try:
    import numpy, onnxruntime
except ImportError as reason:
    sys.exit(sys.stderr.write(f"{reason}\n") and 9)
model, inputs, folder, threads = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 4
options.intra_op_num_threads = int(threads)
try:
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with numpy.load(inputs) as given:
        feed = {i.name: given.get(i.name) for i in session.get_inputs()}
    results = session.run(None, feed)
except Exception as reason:
    sys.exit(sys.stderr.write(f"{reason}\n") and 8)
numpy.savez(folder + "/out.npz", **{f"o{k}": r for k, r in enumerate(results) if isinstance(r, numpy.ndarray)})
open(folder + "/version", "w").write(onnxruntime.__version__)
)";

/// A folder that goes away with this object.
struct PeerFolder {
  std::string path;
  ~PeerFolder() {
    std::error_code ec;
    if (!path.empty()) fs::remove_all(path, ec);
  }
};

}  // namespace

Result<PeerResults> onnx_runtime(const std::string& model, const std::vector<Port>& outputs,
                                 const Tensors& inputs, int threads, double seconds) {
  const std::string named = environment(Variable::python);
  const std::string python = named.empty() ? "python3" : named;
  std::error_code ec;
  std::string folder = (fs::temp_directory_path(ec) / "ferrule-peer-XXXXXX").string();
  if (ec || !::mkdtemp(folder.data()))
    return error(Code::file_not_written, "verify", escape(folder), std::strerror(errno));
  const PeerFolder scratch{folder};
  FERRULE_TRY(write_npz(folder + "/in.npz", only_tensors(inputs), true));
  const auto done = run_process(
      {python, "-c", kScript, model, folder + "/in.npz", folder, std::to_string(threads)}, seconds);
  std::string said = done ? done->text : done.error().message;
  said.resize(said.find_last_not_of('\n') + 1);
  if (done && done->stopped)
    return error(Code::cancelled, "--against ort",
                 fmt::format("ONNX Runtime took longer than {:g} s", seconds));
  if (!done || done->status == kMissing) {
    Error e = error(Code::library_missing, "--against ort", "ONNX Runtime", escape(said)).value();
    e.hint = fmt::format(
        "pip install onnxruntime for {}, or name a Python that has it: "
        "FERRULE_PYTHON=/path/to/python",
        escape(python));
    return fail(std::move(e));
  }
  if (done->status != 0)
    return error(Code::library_failed, "--against ort", "ONNX Runtime", escape(said, 600));
  PeerResults out;
  std::ifstream(folder + "/version") >> out.name;
  out.name = "ONNX Runtime " + escape(out.name);
  FERRULE_ASSIGN(Tensors results, read_npz(folder + "/out.npz"));
  for (size_t k = 0; k < outputs.size(); ++k)
    if (auto it = results.find(fmt::format("o{}", k)); it != results.end())
      out.outputs[outputs[k].name] = std::move(it->second);
  return out;
}

}  // namespace ferrule::cli
