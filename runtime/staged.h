// Runs graphs in which sizes depend on what is computed, and graphs with values that no kernel
// holds (texts), in stages. A stage is what is known once the sizes of its inputs are: a plan like
// any other; then come the nodes that only the interpreter runs, since their results say how large
// they are, and Loops: the turns of one run by stages of its body. The rest of the graph is the
// next stage. It is planned for the sizes that came out, and for the elements of small tensors that
// decide others (the shape of a Reshape, the condition of an If); of such plans as many are kept as
// the limit `plans` says.
#pragma once
#include <functional>
#include <set>

#include "engine/pipeline.h"
#include "runtime/backend.h"

namespace ferrule {

class Stage;

/// What a run did.
struct StageRun {
  int64_t launches = 0;
  std::set<std::string> interpreted;  ///< ONNX names of Loops with turns that await their plan
};

/// The plan of one stage. By any thread.
class StagePlan {
 public:
  virtual ~StagePlan() = default;
  /// `launches`: those of the run are added.
  virtual Result<std::vector<Tensor>> run(std::span<const Tensor> inputs, int64_t& launches) = 0;
  virtual std::vector<std::string> interpreted() = 0;  ///< ONNX names of nodes
};

struct StageOptions {
  std::shared_ptr<const Knowledge> knowledge;
  EngineOptions engine;
  std::shared_ptr<const Cancel> cancel;
  bool no_interpreter = false;
  /// Plans a graph in which all sizes are known.
  std::function<Result<std::unique_ptr<StagePlan>>(Graph)> plan;
};

class StagedExecutable final : public Executable {
 public:
  /// `graph`: canonical, with inputs of known sizes; `plan`: of the same graph as a whole.
  /// errors: those of planning the first stage.
  static Result<std::unique_ptr<Executable>> make(const Plan& plan, Graph graph,
                                                  StageOptions options);
  /// One more, for another thread: the stages are shared.
  std::unique_ptr<Executable> another() const;

  Status run(std::span<const void* const> inputs, std::span<void* const> outputs,
             RunObserver* observer) override;
  /// An observer hears nothing: what runs are layers of plans that come and go.
  Result<std::vector<Tensor>> run_tensors(std::span<const Tensor> inputs,
                                          RunObserver* observer) override;
  int64_t launches() const override { return last_.launches; }
  /// As far as stages have been planned: after a run all that it interpreted.
  std::vector<size_t> interpreted() const override;

 private:
  StagedExecutable(const Plan& plan, std::shared_ptr<Stage> first)
      : Executable(plan), first_(std::move(first)) {}

  std::shared_ptr<Stage> first_;
  StageRun last_;
};

}  // namespace ferrule
