// Load a model, run it, and see what was fused and why. (The interface for users' programs is
// ferrule.h, in C, and ferrule.hpp.)
//
//   auto session = ferrule::Session::load("model.onnx");
//   auto results = session->run({{"x", tensor}});
//
// A plan is made for each concrete set of input shapes and kept, with its memory; of more than the
// limit `plans`, or where a device has too little memory for another, those go that were used
// longest ago. Compiled kernels are shared between plans. Any number of threads may run one
// Session.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/onnx/import.h"
#include "engine/pipeline.h"
#include "runtime/backend.h"

namespace ferrule {

using Shapes = std::map<std::string, std::vector<int64_t>>;  ///< input name -> dims

struct SessionOptions {
  EngineOptions engine;
  std::string backend = "auto";  ///< cpu, cuda, reference, null, auto
  bool require_device = false;   ///< fail rather than run on anything but a GPU
  bool strict =
      false;  ///< no Winograd convolution, no library epilogue that deviates from its formula
  bool fast_math =
      false;        ///< library epilogues may make numbers of NaN; not together with `strict`
  int threads = 0;  ///< 0: all cores
  bool no_interpreter = false;  ///< fail rather than interpret a layer that has no kernel
  bool in_stages = true;        ///< graphs whose sizes depend on data: see staged.h
  int concurrent_runs = 0;  ///< of one plan; more wait. 0: as many as there are threads that run
  std::string tuning;       ///< a file of `ferrule tune`; empty: the built-in rules
  bool runs_once = false;   ///< spare memory for packed weights, at the cost of slower runs
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
  Type type;              ///< as the model declares it
  bool optional = false;  ///< has a value where it is left out
  /// Of an input that is read as indices: the size that its elements must stay below.
  std::optional<Dim> below = std::nullopt;
};

/// errors: no_tensor, where the input or output is a sequence or map, and with it what to do: those
/// that a program has (files, C, Python) are tensors. An optional is one, or is not there.
Status tensor_input(const Port& p);
Status tensor_output(const std::string& name, DType type);

/// One plan, bound to a backend.
class Compiled {
 public:
  const Plan& plan() const { return plan_; }
  const Lowered& lowered() const { return lowered_; }
  const Journal& journal() const { return fused_.journal; }
  const std::vector<std::string>& notes() const { return fused_.notes; }
  std::string_view backend() const { return backend_; }
  /// What it runs on: the GPU's name and target, else the processor's target.
  std::string_view device() const { return device_; }
  const Timings& timings() const { return timings_; }
  /// The first of those that run the plan; for who runs nothing beside it.
  Executable& executable() { return *executable_; }

  /// An executable that nobody else runs while the lease lives.
  class Lease {
   public:
    Lease(Compiled& of, Executable& what) : of_(&of), what_(&what) {}
    Lease(Lease&& other) noexcept : of_(std::exchange(other.of_, nullptr)), what_(other.what_) {}
    ~Lease() {
      if (of_) of_->give_back(*what_);
    }
    Executable* operator->() const { return what_; }

   private:
    Compiled* of_;
    Executable* what_;
  };
  /// By any thread; waits where SessionOptions::concurrent_runs are leased. They share packed
  /// weights and code; each has its own memory for intermediate results.  errors: of preparing.
  Result<Lease> lease();

  /// Tensors by the order of the graph's inputs and outputs. By any thread.
  Result<std::vector<Tensor>> run(std::span<const Tensor> inputs, RunObserver* observer = nullptr) {
    FERRULE_ASSIGN(const Lease on, lease());
    return on->run_tensors(inputs, observer);
  }

 private:
  friend class Session;
  void give_back(Executable& e);

  Fused fused_;  ///< its graph has moved into plan_
  Plan plan_;
  Lowered lowered_;
  std::string backend_, device_;
  Timings timings_;
  std::unique_ptr<Executable> executable_;

  std::mutex mutex_;  ///< of what follows
  std::condition_variable returned_;
  std::vector<Executable*> idle_;
  std::vector<std::unique_ptr<Executable>> others_;
  size_t making_ = 0;  ///< others that are being prepared
  size_t most_ = 0;    ///< 0: no bound
  std::function<Result<std::unique_ptr<Executable>>()> make_;
};

class Session {
 public:
  /// An empty target is that of the device that will run the plan.
  /// errors: those of import, rules and pipeline; those of choose_backend.
  static Result<Session> load(const std::string& path, SessionOptions options = {});
  /// `model`: a model file's bytes; not kept.
  static Result<Session> load_bytes(std::string_view model, SessionOptions options = {});
  /// `knowledge`: as load_knowledge(options.engine) gives it; many sessions may share it.
  static Result<Session> from_graph(Graph graph, std::shared_ptr<const Knowledge> knowledge,
                                    SessionOptions options = {});
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  const std::vector<Port>& inputs() const;
  const std::vector<Port>& outputs() const;
  const ModelInfo& info() const;                  ///< empty of from_graph
  const std::vector<std::string>& notes() const;  ///< of the import
  const Knowledge& knowledge() const;
  /// What a tuning file of this session is measured on: the GPU's name, else the processor's.
  std::string machine() const;

  /// The plan for these shapes; inputs of a declared constant shape may be left out. By any thread.
  /// errors: unknown_input, missing_input (a symbolic size without a value), input_mismatch, and
  /// all of planning and preparing.
  Result<std::shared_ptr<Compiled>> plan(const Shapes& shapes = {});
  /// The same for who compiles few shapes: it is there until `plans` others were compiled.
  Result<Compiled*> compile(const Shapes& shapes = {}) {
    FERRULE_ASSIGN(const auto made, plan(shapes));
    return made.get();
  }
  /// By any thread.
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
