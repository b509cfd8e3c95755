// The public C++ interface: load a model, run it, and see what was fused and why.
//
//   auto session = ferrule::Session::load("model.onnx");
//   auto results = session->run({{"x", tensor}});
//
// A plan is made for each concrete set of input shapes and kept; compiled kernels are shared
// between plans. A Session is used by one thread at a time.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/pipeline.h"
#include "runtime/backend.h"

namespace ferrule {

using Shapes = std::map<std::string, std::vector<int64_t>>;  ///< input name -> dims

struct SessionOptions {
  EngineOptions engine;
  std::string backend = "auto";  ///< cpu, cuda, reference, null, auto
  bool require_device = false;   ///< fail rather than run on anything but a GPU
  bool strict = false;           ///< no library epilogue that deviates from its formula
  bool fast_math =
      false;        ///< library epilogues may make numbers of NaN; not together with `strict`
  int threads = 0;  ///< 0: all cores
  bool no_interpreter = false;  ///< fail rather than interpret a layer that has no kernel
  std::string tuning;           ///< a file of `ferrule tune`; empty: the built-in rules
  bool all_candidates = false;  ///< for Executable::measure
  LogCallback log;
  std::shared_ptr<const Cancel>
      cancel;  ///< stops planning and runs between layers (and Loop iterations)
};

/// Milliseconds spent before the first run.
struct Timings {
  double load_ms = 0;     ///< rules, model file
  double plan_ms = 0;     ///< fusing, planning, lowering
  double compile_ms = 0;  ///< kernels generated and compiled, primitives created, weights packed
  int64_t cache_hits = 0, cache_misses = 0;  ///< kernels found, and not found, in the cache on disk
};

/// Whether one tensor of these dims may be allocated: at most `limit` bytes, 0 = the machine's
/// memory. errors: out_of_memory naming `what`; bad_shape for a negative size.
Status check_bytes(DType dtype, const std::vector<int64_t>& dims, const std::string& what,
                   int64_t limit);

struct Port {
  std::string name;
  Type type;  ///< as the model declares it
};

/// One plan, bound to a backend.
class Compiled {
 public:
  const Plan& plan() const { return plan_; }
  const Lowered& lowered() const { return lowered_; }
  const Journal& journal() const { return fused_.journal; }
  const std::vector<Rejection>& near_misses() const { return fused_.near_misses; }
  const std::vector<std::string>& notes() const { return fused_.notes; }
  std::string_view backend() const { return backend_; }
  /// What it runs on: the GPU's name and target, else the processor's target.
  std::string_view device() const { return device_; }
  const Timings& timings() const { return timings_; }
  Executable& executable() { return *executable_; }

  /// Tensors by the order of the graph's inputs and outputs.
  Result<std::vector<Tensor>> run(std::span<const Tensor> inputs, RunObserver* observer = nullptr) {
    return executable_->run_tensors(inputs, observer);
  }

 private:
  friend class Session;
  Fused fused_;  ///< its graph has moved into plan_
  Plan plan_;
  Lowered lowered_;
  std::string backend_, device_;
  Timings timings_;
  std::unique_ptr<Executable> executable_;
};

class Session {
 public:
  /// An empty target is that of the device that will run the plan.
  /// errors: those of import, rules and pipeline; those of choose_backend.
  static Result<Session> load(const std::string& path, SessionOptions options = {});
  /// `knowledge`: as load_knowledge(options.engine) gives it; many sessions may share it.
  static Result<Session> from_graph(Graph graph, std::shared_ptr<const Knowledge> knowledge,
                                    SessionOptions options = {});
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  const std::vector<Port>& inputs() const;
  const std::vector<Port>& outputs() const;
  const std::vector<std::string>& notes() const;  ///< of the import
  const Knowledge& knowledge() const;
  /// What a tuning file of this session is measured on: the GPU's name, else the processor's.
  std::string machine() const;

  /// The plan for these shapes; inputs of a declared constant shape may be left out.
  /// errors: unknown_input, missing_input (a symbolic size without a value), input_mismatch, and
  /// all of planning and preparing.
  Result<Compiled*> compile(const Shapes& shapes = {});
  /// errors: unknown_input, missing_input, input_mismatch, those of compile and of the backend.
  Result<std::map<std::string, Tensor>> run(const std::map<std::string, Tensor>& inputs,
                                            RunObserver* observer = nullptr);
  /// `inputs` checked against the model, in its order; left-out overridable initializers get their
  /// value.
  Result<std::vector<Tensor>> arrange(const std::map<std::string, Tensor>& inputs) const;

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ferrule
