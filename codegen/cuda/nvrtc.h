// NVRTC, opened at run time: CUDA C++ source -> cubin for a named architecture, without a GPU or a
// driver, and what ptxas says about it. Everything else plans and explains when the library is
// missing. What was compiled once may be kept on disk; an entry belongs to one version of NVRTC,
// and to its source with everything that is said to NVRTC.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/target/target.h"

namespace ferrule {

class DiskCache;

struct Cubin {
  std::string bytes;
  int registers = 0;     ///< per thread
  int spill_bytes = 0;   ///< stores and loads per thread
  int stack_bytes = 0;   ///< per thread, spilled or indexed
  int shared_bytes = 0;  ///< static, per block
  std::string log;
};

struct NvrtcInfo {
  std::string path;  ///< the library that was opened
  int major = 0, minor = 0;
  std::vector<int> architectures;  ///< 75, 80, …
};
/// errors: library_missing (names what was tried).
Result<NvrtcInfo> nvrtc_info();
/// A driver loads what an NVRTC of its own CUDA or of an older one compiled: before it is asked to,
/// says which that is (12 of 12.4). A newer NVRTC is then taken only where there is no
/// other.
void nvrtc_for_driver(int cuda_major);

/// What to compile for, so that a device of capability `device` (103 is 10.3) loads it: `target`
/// itself ("sm_100") where the device is of its generation and NVRTC knows it, else the newest
/// of the device's generation that NVRTC knows, else PTX ("compute_90"), which the driver compiles.
/// Where there is none: `target`, whose compilation says what is known.
std::string loadable_architecture(std::string_view target, int device,
                                  const std::vector<int>& known);

/// For logs and reports, to stand behind the layer's name; "" where all of the kernel's values have
/// registers.
std::string spill_warning(const Cubin& cubin);

/// Estimated percent of a multiprocessor's threads, in blocks of so many.
int occupancy(const Cubin& cubin, const Target& target, int block_threads);

/// Compiles `source` for `target` ("sm_90"; "compute_90": to PTX, without registers and spills);
/// `entry` is its only kernel. errors: unknown_target (neither), library_missing, arch_unsupported,
/// library_failed with NVRTC's log.
Result<Cubin> compile_cuda(const std::string& source, const std::string& entry,
                           std::string_view target);
/// The same, from `cache` if it is there (null: nowhere is looked); what had to be compiled is kept
/// there.
Result<Cubin> cached_cubin(const std::string& source, const std::string& entry,
                           std::string_view target, DiskCache* cache);

}  // namespace ferrule
