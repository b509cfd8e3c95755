// The threads of one CUDA block on the host, one at a time: a thread runs until it ends or waits
// for others, and only one that waits costs a stack of its own. Compiled kernels (host_device.h)
// see the struct HostRuntime; host_kernels.cpp runs the blocks. Waiting is strict: where some
// threads of a block never arrive, or a warp meets at different places, the run ends with an error,
// whatever a GPU might make of it.
#pragma once
#include <cstddef>
#include <cstdint>
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

/// A compiled file gets a pointer to the only one.
struct HostRuntime {
  Dim3 thread, block, block_dim, grid_dim;  ///< of the thread that is running
  unsigned lane = 0;
  void (*block_barrier)(int line) = nullptr;
  const WarpValues* (*warp_meeting)(int line, unsigned mask, uint64_t value) = nullptr;
  float (*f16_to_float)(uint16_t) = nullptr;
  uint16_t (*float_to_f16)(float) = nullptr;
};
HostRuntime& host_runtime();

/// A kernel on one argument block.
using HostEntry = void (*)(const void* arguments);

/// Runs the threads of one block; block indices and dims are those of host_runtime(). `backward`:
/// threads start, and go on after a barrier, last first. Both orders find races that the other
/// hides. Returns what went wrong, or "".
std::string run_block(HostEntry entry, const void* arguments, bool backward);

/// Runs all blocks of a launch, every other one backward; `clear` spoils shared memory before each.
std::string run_grid(HostEntry entry, void (*clear)(), std::string_view arguments, Dim3 grid,
                     Dim3 block);

}  // namespace ferrule::test
