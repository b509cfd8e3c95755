// The blocks of a CUDA launch on the host: one after the other, or in random order, several at a
// time on threads of the host, where accesses that nothing orders are seen (host_races.h). The
// threads of a block take turns: one runs until it ends or waits for others, and only one that
// waits costs a stack of its own. Compiled kernels (host_device.h) see the struct HostRuntime.
// Waiting is strict: where some threads of a block never arrive, or a warp meets at different
// places, the run ends with an error, whatever a GPU might make of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ferrule::test {

inline constexpr unsigned kWarp = 32;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// What the lanes of a warp brought to one meeting.
struct WarpValues {
  uint64_t value[kWarp];
  unsigned there;  ///< bit by lane
};

/// Of a thread of the host, for the block that it runs; a compiled file gets a pointer to one.
struct HostRuntime {
  Dim3 thread, block, block_dim, grid_dim;  ///< of the thread that is running
  unsigned lane = 0;
  void (*block_barrier)(int line) = nullptr;
  const WarpValues* (*warp_meeting)(int line, unsigned mask, uint64_t value) = nullptr;
  void (*fence)() = nullptr;
  void (*begin_atomic)(const volatile void* at, size_t bytes) = nullptr;
  void (*end_atomic)() = nullptr;
  /// Of kernels compiled to be raced, all accesses but those of atomic operations.
  void (*access)(const void* at, size_t bytes, bool writes) = nullptr;
  float (*f16_to_float)(uint16_t) = nullptr;
  uint16_t (*float_to_f16)(float) = nullptr;
};
/// Blocks that run at a time where they race.
inline constexpr size_t kRacers = 4;
/// The `racer`th of as many; where blocks do not race there is only the first.
HostRuntime& host_runtime(size_t racer = 0);

/// A kernel on one argument block.
using HostEntry = void (*)(const void* arguments);
/// A kernel, and the memory that its blocks share, which is static in its compiled file.
struct HostKernel {
  HostEntry run = nullptr;
  std::span<char> shared = {};
};

/// Runs all blocks of a launch, every other one backward: threads start, and go on after a barrier,
/// last first. Both orders find races that the other hides. Shared memory is NaN before each.
/// Returns what went wrong, or "".
std::string run_grid(const HostKernel& kernel, std::string_view arguments, Dim3 grid, Dim3 block);

/// Runs them in an order of `seed`, each forward or backward, kRacers at a time. `copies`: the
/// kernel from as many copies of its file, the k-th with host_runtime(k). Returns what went wrong,
/// an access that nothing orders too, or "".
std::string race_grid(std::span<const HostKernel> copies, std::string_view arguments, Dim3 grid,
                      Dim3 block, uint64_t seed);

}  // namespace ferrule::test
