// What a device must provide: prepare a lowered plan once, then run it many times. A backend
// decides nothing about fusion; it launches what codegen/lower wrote down, in that order. Device
// backends are shared libraries of their own with one C entry, ferrule_backend_open, which refuses
// a library of another build.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "codegen/program/layers_to_launches.h"
#include "engine/base/applicable.h"
#include "engine/base/limits.h"
#include "engine/plan/plan.h"
#include "runtime/profiler.h"
#include "runtime/tuning.h"

namespace ferrule {

class DiskCache;
struct Storage;

enum class LogLevel : uint8_t { error, warning, info, verbose };
using LogCallback = std::function<void(LogLevel, std::string_view)>;

/// All shapes static; everything here outlives the Executable, but `cache`.
struct PrepareContext {
  const Plan& plan;
  const Lowered& lowered;
  const Semantics& ops;
  const Target& target;
  const Limits& limits;
  int threads = 0;  ///< 0: all cores
  LogCallback log;
  DiskCache* cache = nullptr;  ///< where compiled kernels are kept between processes; null: nowhere
  const Tuning* tuning = nullptr;  ///< what was measured before, if anything
  bool all_candidates =
      false;                 ///< also keep the implementations that were not chosen, for measure()
  bool own_weights = false;  ///< nobody but this session reads the plan's constants: their memory
                             ///< may be given back
  bool runs_once = false;    ///< products read weights where they lie: packing them costs more than
                             ///< one run, and memory for a second copy
  const Cancel* cancel = nullptr;  ///< asked before every launch (of a graph of them, too), and
                                   ///< inside interpreted layers
};

/// Which of an executable's steps are those of one layer.
struct LayerSteps {
  size_t begin = 0, end = 0;
};
/// Layers with a step whose kernel interprets.
template <class Step>
std::vector<size_t> interpreted_layers(const std::vector<LayerSteps>& layers,
                                       const std::vector<Step>& steps) {
  std::vector<size_t> out;
  for (size_t layer = 0; layer < layers.size(); ++layer)
    for (size_t k = layers[layer].begin; k < layers[layer].end; ++k)
      if (steps[k].kernel->interprets() && (out.empty() || out.back() != layer))
        out.push_back(layer);
  return out;
}

/// A plan bound to memory. One run at a time; running needs no allocation unless a layer is
/// interpreted.
class Executable {
 public:
  explicit Executable(const Plan& plan) : plan_(plan) {}
  virtual ~Executable() = default;
  /// Pointers by graph input / output order, to dense row-major elements of the plan's types.
  /// errors: library_failed, unsupported_operator, naming the layer.
  virtual Status run(std::span<const void* const> inputs, std::span<void* const> outputs,
                     RunObserver* observer = nullptr) = 0;
  /// The same with tensors; results are new ones. The default allocates outputs of the plan's
  /// sizes. errors: size_unknown when an output's size is not known before the run.
  virtual Result<std::vector<Tensor>> run_tensors(std::span<const Tensor> inputs,
                                                  RunObserver* observer = nullptr);
  /// Times every implementation of the launches that have several, for about so many seconds:
  /// prepared with all_candidates. Results of the run are not to be used.  errors: as run.
  virtual Result<std::vector<Measured>> measure(std::span<const void* const>,
                                                std::span<void* const>, double) {
    return std::vector<Measured>{};
  }
  virtual int64_t launches() const = 0;  ///< kernels that the last run launched
  /// Milliseconds that the last run's kernels took on a device with memory of its own, without the
  /// copies of inputs and outputs; 0 where the host's memory is the device's.
  virtual double device_ms() { return 0; }
  virtual int64_t arena_bytes() const { return 0; }   ///< memory for intermediate results
  virtual int64_t packed_bytes() const { return 0; }  ///< constants kept in the library's layouts
  /// Layers of the plan that have no kernel, but for a backend that has none at all.
  virtual std::vector<size_t> interpreted() const { return {}; }
  /// Who lives where and when (memory_plan.h); null where no arena was planned.
  virtual const Storage* storage() const { return nullptr; }
  /// One line a step: what runs where (golden tests).
  virtual std::string text() const { return {}; }

 protected:
  const Plan& plan_;
};

/// Something a backend wants from the machine; for doctor.
struct Requirement {
  std::string what;
  bool there = false;
  std::string detail, remedy;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  /// Whether it can run here.  errors: library_missing, no_device, driver_old, library_failed.
  virtual Status available() const { return {}; }
  /// Of a device of its own that is there: the target to plan for ("sm_90"), and what it is
  /// ("NVIDIA H200"). Empty: it runs on the host.
  virtual std::string device_target() const { return {}; }
  virtual std::string device_name() const { return {}; }
  virtual std::vector<Requirement> requirements() const { return {}; }
  /// Not applicable: another backend may run the plan. errors: unsupported_type, out_of_memory,
  /// library_failed, those of the device.
  virtual Applicable<std::unique_ptr<Executable>> prepare(const PrepareContext& context) = 0;
};

}  // namespace ferrule

/// What a backend library exports. The hash is backend_abi_hash() of abi.h.
extern "C" {
struct ferrule_backend_entry {
  uint64_t abi_hash;
  ferrule::Backend* (*create)();
};
using ferrule_backend_open_fn = const ferrule_backend_entry* (*)(uint64_t abi_hash);
}
