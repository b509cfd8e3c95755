// One launch of the CUDA backend, in three steps: make (descriptors built, weights uploaded, cubins
// compiled), bind (device addresses, which stay for good), enqueue (work put on a stream: no
// decisions, no allocation, no waiting, so that a CUDA graph can be captured from it). Kernels know
// operands by dims, layout and slot; they know neither the plan nor the memory planner.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "engine/base/applicable.h"
#include "engine/base/limits.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"
#include "runtime/backend.h"
#include "runtime/kernel_call.h"
#include "runtime/tuning.h"

struct CUstream_st;

namespace ferrule {
struct LibraryAttention;  // codegen/cuda/library_attention.h
}

namespace ferrule::cuda {

using Address = uint64_t;  ///< in the device's memory
using Stream = CUstream_st*;

/// Tells kernels where slots are.
class Binder {
 public:
  virtual ~Binder() = default;
  virtual Address slot(int slot) = 0;
  virtual Address
  scratch() = 0;  ///< of the launch being bound, scratch_bytes() long, 256-byte aligned
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t scratch_bytes() const { return 0; }
  /// errors: library_failed.
  virtual Status bind(Binder& binder) = 0;
  /// errors: library_failed, naming the layer and what the device said.
  virtual Status enqueue(Stream stream) = 0;
  /// After a run, when the device is idle: whether the run's data made it impossible (an index out
  /// of range). errors: bad_shape, naming the layer.
  virtual Status finish() { return {}; }
  /// Whether it only puts work on the stream; interpreted layers wait for the device and are in no
  /// CUDA graph.
  virtual bool capturable() const { return true; }
  /// Kernels that enqueue() has put on streams so far, as it called the driver and the libraries.
  int64_t launched() const { return launched_; }
  /// Which implementation it is; for text() and profiles.
  virtual std::string text() const { return {}; }
  /// Whether the interpreter does it, on the host.
  virtual bool interprets() const { return false; }
  /// Whether NVIDIA's libraries do, so that something else can where they fail.
  virtual bool of_library() const { return false; }

 protected:
  /// For every such call: counts those that went well.
  Status counted(Status status) {
    if (status) ++launched_;
    return status;
  }

 private:
  int64_t launched_ = 0;
};
using KernelPtr = std::unique_ptr<Kernel>;

/// A kernel that has several plans (of a library, or launch shapes of its own), for `ferrule tune`.
class Tunable {
 public:
  virtual ~Tunable() = default;
  virtual std::string problem()
      const = 0;  ///< what the speed depends on, as the tuning file has it
  virtual std::vector<std::string> candidates()
      const = 0;  ///< the one that is taken without a tuning file first
  virtual std::string chosen() const = 0;
  /// Changes scratch_bytes() and what enqueue() runs; bind() again. Not applicable; errors:
  /// library_failed.
  virtual Applicable<> choose(std::string_view candidate) = 0;
  /// Does in advance what takes choose() long and needs no device; of several kernels at once, on
  /// several threads.
  virtual void prepare_choices() {}
};

class Device;     // device.h: driver, stream, memory, modules
class Libraries;  // libraries.h: cuDNN and cuBLASLt, opened at their first use

/// Constants in the device's memory, in the layouts that kernels ask for; uploaded once, shared by
/// all executables.
class Constants {
 public:
  virtual ~Constants() = default;
  /// The tensor's own bytes.  errors: out_of_memory, library_failed.
  virtual Result<Address> plain(const Tensor& tensor) = 0;
  /// `bytes` bytes that `fill` writes from the tensor into host memory, shared under `recipe`.
  /// errors: as plain.
  virtual Result<Address> derive(const Tensor& tensor, std::string_view recipe, int64_t bytes,
                                 const std::function<void(void*)>& fill) = 0;
};

struct Context {
  Device& device;
  Libraries& libraries;
  Constants& constants;
  const Semantics* ops = nullptr;
  const Target* target = nullptr;
  const Limits* limits = nullptr;
  DiskCache* cache = nullptr;
  const Tuning* tuning = nullptr;
  const LogCallback* log = nullptr;
  const Cancel* cancel = nullptr;
  bool strict = false;
};

/// Not applicable when there is no such kernel (it is interpreted then); errors: library_failed;
/// library_missing.
using Factory = Applicable<KernelPtr> (*)(Context&, const KernelCall&);
/// The factory of a library's work; null if there is none (kernels/library_kernels.cpp).
Factory library_factory(Work work);

Applicable<KernelPtr> make_convolution(Context&, const KernelCall&);
Applicable<KernelPtr> make_deconvolution(Context&, const KernelCall&);
Applicable<KernelPtr> make_matmul(Context&, const KernelCall&);
/// Attention through cuDNN; where cuDNN has no engine for it or is not there, make_generated's, and
/// a warning.
Applicable<KernelPtr> make_attention(Context&, const Launch&, const KernelCall&,
                                     const LibraryAttention&);
/// A generated launch: pointwise, pieces, rows, copies, gathers, windows and whatever else
/// codegen/cuda/plan_launch.h knows.
Applicable<KernelPtr> make_generated(Context&, const Launch&, const KernelCall&);
/// A library's convolution or product, without its tail, as a plain generated kernel.
Applicable<KernelPtr> make_direct(Context&, const Launch&, KernelCall);
/// The layer on the host, between two transfers.
Applicable<KernelPtr> make_interpreted(Context&, const KernelCall&);

}  // namespace ferrule::cuda
