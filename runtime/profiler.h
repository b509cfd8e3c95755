// What a run tells an observer: one event a layer (time, launches) and, when asked for, the layer's
// results. bench --layers adds the times up, verify --layers compares the results. Without an
// observer a run takes no clock and calls nothing.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/tensor.h"
#include "engine/plan/plan.h"

namespace ferrule {

class RunObserver {
 public:
  virtual ~RunObserver() = default;
  /// Whether layer_results is wanted; it costs a copy of every result.
  virtual bool wants_results() const { return false; }
  /// After layer `index` of the plan; `launches` kernels took `nanoseconds`.
  virtual void layer_done(size_t index, int launches, int64_t nanoseconds) = 0;
  /// The layer's outputs in row-major order, by the order of its node's outputs (absent ones left
  /// out).
  virtual void layer_results(size_t index, const std::vector<ValueId>& values,
                             const std::vector<Tensor>& tensors) {
    (void)index, (void)values, (void)tensors;
  }
};

/// Adds times up over many runs; nothing else.
class Profiler final : public RunObserver {
 public:
  explicit Profiler(size_t layers) : layers_(layers) {}
  struct Row {
    int64_t nanoseconds = 0;      ///< over all runs
    int64_t fastest = INT64_MAX;  ///< the fastest of the runs
    int64_t launches = 0, runs = 0;
  };
  void layer_done(size_t index, int launches, int64_t nanoseconds) override {
    Row& r = layers_[index];
    r.nanoseconds += nanoseconds;
    if (nanoseconds < r.fastest) r.fastest = nanoseconds;
    r.launches += launches;
    ++r.runs;
  }
  const std::vector<Row>& layers() const { return layers_; }

 private:
  std::vector<Row> layers_;
};

/// Keeps the results of every layer of the last run (verify --layers).
class ResultRecorder final : public RunObserver {
 public:
  explicit ResultRecorder(size_t layers) : values(layers), tensors(layers) {}
  bool wants_results() const override { return true; }
  void layer_done(size_t, int, int64_t) override {}
  void layer_results(size_t index, const std::vector<ValueId>& v,
                     const std::vector<Tensor>& t) override {
    values[index] = v;
    tensors[index] = t;
  }
  std::vector<std::vector<ValueId>> values;
  std::vector<std::vector<Tensor>> tensors;
};

}  // namespace ferrule
