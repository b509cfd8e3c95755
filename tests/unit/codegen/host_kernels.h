// Generated CUDA source on the host: many kernels are compiled by the system's C++ compiler, the
// same text behind host_device.h, and run on host memory thread by thread. For tests: this is where
// the arithmetic, indexing, barriers, fences and atomic operations of generated text are checked
// without a GPU. A kernel has one parameter, its argument block.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/codegen/host_threads.h"

namespace ferrule::test {

/// How often blocks race in a test: enough to see that it passes, or with FERRULE_TEST_FULL often
/// enough to meet what is seldom.
int races();

class HostKernels {
 public:
  /// `raced`: blocks run several at a time, in another order in every launch.
  explicit HostKernels(bool raced = false) : raced_(raced) {}
  ~HostKernels();
  HostKernels(const HostKernels&) = delete;

  /// The command of a C++ compiler: $CXX, else the first of c++, g++, clang++ that is there, else
  /// "".
  static std::string compiler();
  /// Whether there is none; a test that returns then has been skipped, and this has said so.
  static bool missing();

  /// `entry` is the only kernel of `source`; texts may share that name. Returns the number to
  /// launch it by.
  size_t add(std::string source, std::string entry);
  /// Everything added so far, once. Returns what the compiler said, or "".
  std::string compile();
  /// run_grid or race_grid (host_threads.h). Returns what went wrong, or "".
  std::string launch(size_t id, std::string_view arguments, Dim3 grid, Dim3 block) const;

 private:
  struct Kernel {
    std::string source, entry;
  };
  struct Compiled {
    size_t argument_bytes = 0;
    std::vector<HostKernel> copies = {};
  };
  struct Folder;
  struct File {
    size_t begin = 0, end = 0;  // kernels
    std::filesystem::path source, library, log;
  };
  std::vector<File> write_files(const Folder& folder) const;
  void write(const File& file) const;
  std::string compile_command(const File& file) const;
  std::string open(const File& file, size_t racer);

  bool raced_;
  mutable uint64_t launches_ = 0;
  std::vector<Kernel> kernels_;
  std::vector<Compiled> compiled_;
  std::vector<void*> libraries_;
};

}  // namespace ferrule::test
