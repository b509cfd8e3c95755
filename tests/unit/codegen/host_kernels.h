// Generated CUDA source on the host: many kernels are compiled by the system's C++ compiler, the
// same text behind host_device.h, and run on host memory thread by thread. For tests: this is where
// the arithmetic, indexing and barriers of generated text are checked without a GPU. A kernel has
// one parameter, its argument block.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/codegen/host_threads.h"

namespace ferrule::test {

class HostKernels {
 public:
  HostKernels() = default;
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
  /// Runs the blocks one after another, every other one backward. Returns what went wrong, or "".
  std::string launch(size_t id, std::string_view arguments, Dim3 grid, Dim3 block) const;

 private:
  struct Kernel {
    std::string source, entry;
  };
  struct Compiled {
    HostEntry run = nullptr;
    size_t argument_bytes = 0;
    void (*clear_shared)() = nullptr;
  };
  struct Folder;
  struct File {
    size_t begin = 0, end = 0;  // kernels
    std::filesystem::path source, library, log;
  };
  std::vector<File> write_files(const Folder& folder) const;
  void write(const File& file) const;
  std::string open(const File& file);

  std::vector<Kernel> kernels_;
  std::vector<Compiled> compiled_;
  std::vector<void*> libraries_;
};

}  // namespace ferrule::test
