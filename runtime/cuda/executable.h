// A lowered plan bound to the device's memory: one arena, graph inputs and outputs in buffers of
// their own with pinned memory of the host beside them, kernels in launch order with every address
// in place. The first run launches them one by one; from the second on, what lies between two
// layers that the host computes is one CUDA graph. A run is copies in, graphs, copies out, and one
// wait.
#pragma once
#include <map>
#include <mutex>
#include <vector>

#include "engine/base/applicable.h"
#include "runtime/backend.h"
#include "runtime/cuda/constants.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/kernel.h"
#include "runtime/cuda/kernels/generated.h"
#include "runtime/cuda/libraries.h"
#include "runtime/gpu_steps.h"
#include "runtime/memory_plan.h"

namespace ferrule::cuda {

constexpr int64_t kScratchAlignment = 256;

class CudaExecutable final : public Executable {
 public:
  /// errors: as Backend::prepare.
  static Applicable<std::unique_ptr<Executable>> make(const PrepareContext& context, Device& device,
                                                      ConstantPool& pool);
  ~CudaExecutable() override;

  Status run(std::span<const void* const> inputs, std::span<void* const> outputs,
             RunObserver* observer) override;
  /// The plans of library kernels and the shapes of generated ones (measure.cpp).
  Result<std::vector<Measured>> measure(std::span<const void* const> inputs,
                                        std::span<void* const> outputs, double seconds) override;
  int64_t launches() const override { return launches_; }
  double device_ms() override;
  int64_t arena_bytes() const override { return storage_.arena_bytes; }
  int64_t packed_bytes() const override { return constants_.bytes(); }
  const Storage* storage() const override { return &storage_; }
  std::vector<size_t> interpreted() const override { return interpreted_layers(layers_, steps_); }
  std::string text() const override;

 private:
  using Step = GpuStep<KernelPtr>;
  struct Segment : GpuSegment {
    GraphExec graph = nullptr;
    int64_t kernels = 0;  ///< that `graph` holds
  };
  /// A graph input or output: the same place in the device's and in the pinned memory.
  struct Port {
    int64_t offset = 0, bytes = 0;
    Address source = 0;  ///< outputs: where the result is
  };
  /// Gives one kernel its addresses.
  class SlotBinder final : public Binder {
   public:
    SlotBinder(CudaExecutable& e, int step) : e_(e), step_(step) {}
    Address slot(int slot) override;
    Address scratch() override;
    Status problem;

   private:
    CudaExecutable& e_;
    int step_;
  };

  CudaExecutable(const PrepareContext& context, Device& device, ConstantPool& pool)
      : Executable(context.plan),
        lowered_(context.lowered),
        cancel_(context.cancel),
        prepared_(context),
        device_(device),
        libraries_(device),
        constants_(device, pool) {}
  Applicable<> build(const PrepareContext& context);
  Applicable<> make_steps(Context& context, std::vector<int64_t>& scratch);
  Applicable<> make_layer(Context& context, size_t layer, int first_step);
  Applicable<KernelPtr> make_kernel(Context& context, size_t layer, const Launch& launch,
                                    const KernelCall& call);
  Applicable<KernelPtr> make_library(Context& context, size_t layer, const Launch& launch,
                                     const KernelCall& call);
  Applicable<KernelPtr> with_tail(Context& context, size_t layer, const Launch& launch,
                                  KernelPtr kernel);
  Applicable<KernelPtr> without_library(Context& context, size_t layer, const Launch& launch,
                                        const KernelCall& call);
  Status replace(Step& step, const Error& why);
  void forget();
  std::vector<CodePtr> compile(Context& context);
  Context context(DiskCache* cache);
  Status allocate(const Limits& limits, std::vector<int64_t> scratch);
  Status place_ports();
  Status bind();
  void cut();
  Result<Address> address(int slot);

  Status measure(Step& step, Tunable& tunable, double seconds, Measured& out);
  Result<double> fastest(Step& step, double seconds);
  Status rebind(Step& step, Address scratch);

  Status copy_in(std::span<const void* const> inputs);
  Status copy_out(std::span<void* const> outputs);
  Status go_on() const;
  Status enqueue(size_t begin, size_t end, bool captured = false);
  Status run_segments();
  Status capture();
  Status capture(Segment& segment);
  Status run_layers(RunObserver& observer);
  Status report_times(RunObserver& observer);
  Status report_results(size_t layer, RunObserver& observer);
  Status finish();

  const Lowered& lowered_;
  const Cancel* cancel_ = nullptr;
  const PrepareContext prepared_;
  Device& device_;
  Stream stream_ = nullptr;
  Libraries libraries_;
  ConstantHolder constants_;
  Storage storage_;
  Buffer arena_, ports_;
  Pinned staging_;
  std::vector<Port> inputs_, outputs_;
  std::vector<Step> steps_;
  std::map<const Launch*, PlannedLaunch> planned_;  ///< until their kernels are made
  std::vector<LayerSteps> layers_;
  std::vector<Segment> segments_;
  Event started_ = nullptr, stopped_ = nullptr;  ///< around the kernels of a run
  std::vector<Event>
      events_;  ///< before each layer and behind the last; made by the first observed run
  std::string not_captured_;  ///< why there are no graphs; empty: there are, or will be
  bool ran_ = false, captured_ = false;
  bool complete_ = true;  ///< the last run came to its end
  int64_t launches_ = 0;
};

}  // namespace ferrule::cuda
