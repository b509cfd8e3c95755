// The GPU that the backend runs on: its context, its memory, the modules loaded into it, and what
// became of it. One object a process, for good: the driver cleans up behind us. Everything may be
// called from any thread that has entered. A code that ends the context (a kernel's bad address,
// hardware) is kept: every later call fails with the same error without asking the driver, and what
// is freed then is only forgotten.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "codegen/cuda/nvrtc.h"
#include "runtime/cuda/driver.h"

namespace ferrule {
class DiskCache;
}

namespace ferrule::cuda {

class KernelCode;

class Device {
 public:
  struct Info {
    std::string name;          ///< "NVIDIA H200"
    int major = 0, minor = 0;  ///< compute capability
    int multiprocessors = 0;
    int64_t memory = 0;
    int driver = 0;  ///< CUDA's version: 12040 is 12.4
    int capability() const { return major * 10 + minor; }
    std::string target() const;  ///< "sm_90"
  };

  /// The first of the devices that CUDA_VISIBLE_DEVICES leaves.  errors: those of Driver::get;
  /// no_device, library_failed.
  static const Result<Device*>& get();

  const Info& info() const { return info_; }
  const Driver& api() const { return api_; }

  /// Makes the context the calling thread's, for good (Entered: for a while); before anything else.
  /// errors: device_lost, library_failed.
  Status enter();
  /// What a driver's code means. `place`: the layer, or what was being done.
  /// errors: device_memory, device_lost, library_failed.
  Status check(int code, std::string_view call, std::string_view place);
  /// As check(), for calls that may fail while no context is current, whose free memory could be
  /// asked for.
  Status check_context(int code, std::string_view call);
  bool lost() const { return lost_.load(std::memory_order_acquire); }

  /// To the device and back, when the call returns.  errors: those of check.
  Status upload(Address to, const void* from, int64_t bytes, Stream stream, std::string_view place);
  Status download(void* to, Address from, int64_t bytes, Stream stream, std::string_view place);
  Status wait(Stream stream, std::string_view place);

  /// Generated source compiled, once for all who have it; by several threads at once.  errors:
  /// those of compile_cuda.
  Result<std::shared_ptr<KernelCode>> code(const std::string& source, const std::string& entry,
                                           const std::string& target, DiskCache* cache);
  /// One block of arguments, as all generated kernels take it.  errors: those of check.
  Status launch(Function function, int64_t blocks, int threads_x, int threads_y,
                std::string& arguments, Stream stream, std::string_view place);

 private:
  friend class Entered;
  explicit Device(const Driver& api) : api_(api) {}
  static Result<Device*> open();

  const Driver& api_;
  Info info_;
  CUctx_st* context_ = nullptr;
  std::atomic<bool> lost_ = false;
  std::mutex mutex_;  ///< of what follows
  Error why_lost_;
  std::map<std::string, std::weak_ptr<KernelCode>> codes_;  ///< by target, entry and source
};

/// The device's context is the calling thread's for as long as this lives. Then it is the caller's
/// own again, which may be another device's.
class Entered {
 public:
  explicit Entered(Device& device);
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  ~Entered();
  Status status;  ///< errors: those of Device::enter

 private:
  Device& device_;
  CUctx_st* before_ = nullptr;  ///< what the caller had, if that is another one
};

/// A compiled kernel, loaded when it is first asked for and unloaded behind its last user: many
/// shapes make many.
class KernelCode {
 public:
  KernelCode(Device& device, Cubin cubin, std::string entry)
      : device_(device), cubin_(std::move(cubin)), entry_(std::move(entry)) {}
  KernelCode(const KernelCode&) = delete;
  KernelCode& operator=(const KernelCode&) = delete;
  ~KernelCode();
  const Cubin& cubin() const { return cubin_; }
  /// errors: those of Device::check.
  Result<Function> function(std::string_view place);

 private:
  Device& device_;
  const Cubin cubin_;
  const std::string entry_;
  std::mutex mutex_;  ///< of what follows
  Module module_ = nullptr;
  Function function_ = nullptr;
};

/// Memory of the device, at multiples of 256; empty ones have an address, too.
class Buffer {
 public:
  Buffer() = default;
  /// `what` needs it, for the message; `zero`: cleared when the call returns.  errors:
  /// device_memory, device_lost, library_failed.
  static Result<Buffer> make(Device& device, int64_t bytes, std::string_view what,
                             bool zero = false);
  Buffer(Buffer&& b) noexcept { *this = std::move(b); }
  Buffer& operator=(Buffer&& b) noexcept;
  ~Buffer() { free(); }
  Address address() const { return address_; }
  int64_t bytes() const { return bytes_; }

 private:
  void free();
  Device* device_ = nullptr;
  Address address_ = 0;
  int64_t bytes_ = 0;
};

/// Memory of the host that the device reads and writes, directly and by copies that do not wait.
/// Cleared.
class Pinned {
 public:
  Pinned() = default;
  /// errors: as Buffer::make.
  static Result<Pinned> make(Device& device, int64_t bytes, std::string_view what);
  Pinned(Pinned&& p) noexcept { *this = std::move(p); }
  Pinned& operator=(Pinned&& p) noexcept;
  ~Pinned() { free(); }
  char* data() const { return static_cast<char*>(data_); }
  /// The same memory, as kernels see it.
  Address address() const { return reinterpret_cast<Address>(data_); }

 private:
  void free();
  Device* device_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace ferrule::cuda
