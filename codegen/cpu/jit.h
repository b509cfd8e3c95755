// Machine code of kernels in this process: compiled by LLVM or read from the cache on disk, linked
// by ORC, and shared by all sessions. Identical keys are compiled once, however many threads ask.
// Code that nobody holds any more is kept for the next session, up to a bound: each kernel takes
// mappings of memory, of which a process may have some ten thousands.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cache.h"
#include "codegen/cpu/kernel.h"

namespace ferrule {

struct CompiledKernel {
  KernelFn fn = nullptr;
  std::string symbol;  ///< a name for reports, after the layer that asked first
};

class CpuJit {
 public:
  static CpuJit& instance();

  /// `name`: for the symbol, made an identifier; of the first caller where keys are equal. `cache`:
  /// where object code is looked for and left; may be null. errors: unknown_target,
  /// target_not_here, unsupported_type, codegen_failed, out_of_memory.
  Result<std::shared_ptr<const CompiledKernel>> compile(const KernelKey& key,
                                                        std::string_view name = "kernel",
                                                        DiskCache* cache = nullptr);

  struct Request {
    KernelKey key;
    std::string name;
  };
  using Compiled = std::vector<Result<std::shared_ptr<const CompiledKernel>>>;
  /// The same on up to `threads` threads; results in the order of the requests.
  Compiled compile_many(std::span<const Request> requests, int threads, DiskCache* cache = nullptr);
  /// Kernels compiled so far, those from the cache not counted; for tests and reports.
  int64_t compiled() const;
  /// Beyond so many kernels (1024 at first), those that nobody holds are unloaded, the one that was
  /// asked for the longest time ago first.
  void keep_at_most(size_t kernels);

 private:
  CpuJit();
  ~CpuJit() = delete;  // lives as long as the process
  struct Impl;
  Impl* impl_;
};

}  // namespace ferrule
