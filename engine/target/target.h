// A device as plain facts, read from rules/targets/*.yaml: what conditions may ask (cc, isa,
// caches) and what each kernel contract accepts there. Planning for a device needs no library of
// that device.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/key_doc.h"
#include "engine/base/result.h"

namespace ferrule {

/// Whose call runs a contract's anchor with its tail.
enum class Library : uint8_t { other, onednn, cudnn, cublaslt };

/// What one contract can do on a target.
struct ContractFacts {
  std::vector<DType> types;  ///< element types of the anchor's data operands
  Library library = Library::other;
  /// Contracts that kernels are generated for: the types in which a library has kernels for some of
  /// their forms.
  std::vector<DType> library_types;
  /// oneDNN: tails of the windows in `strided` but 1x1: "relu", "clip", "add", …; cuDNN, cuBLASLt:
  /// steps that the call takes behind f16, bf16 and tf32, and behind f32 whose factors are not
  /// rounded to tf32.
  std::vector<std::string> epilogues, exact_epilogues;
  int max_epilogue_ops = 0;  ///< tail operators a kernel takes; 0 = none
  int max_operands = 0;      ///< extra tensor operands of a tail
  /// Slices of larger tensors that kernels read and write without a copy: "any"; "rows" (matrices
  /// whose rows lie apart); windows whose images may have pixels that lie apart: "1x1", "3x3",
  /// "depthwise".
  std::vector<std::string> strided;
  bool generated_tail = false;  ///< any scalar program may follow (as a second kernel unless tiled)
  /// Forms of the operator that not every target's kernels take: see kForms in target.cpp.
  std::vector<std::string> forms;
  bool takes(std::string_view form) const;
  /// f32 images of up to so many channels are read as they lie: reordering them costs more.
  int most_plain_channels = 0;
  /// Generated kernels write channels-last from so many channels on: shorter rows are too short to
  /// compute in, and a reorder behind the kernel is faster.
  int least_channels_last = 0;
  /// Poolings of whole images are generated as rows, whose kernels share a long one out.
  bool images_as_rows = false;
};

struct Target {
  std::string name;                 ///< "cpu-avx512", "sm_90"
  std::string device;               ///< "cpu" or "gpu"
  std::string profile = "ferrule";  ///< whose limits hold: one of kProfiles
  double cc = 0;                    ///< compute capability, 0 on CPUs
  std::vector<std::string> isa;     ///< "avx2", "avx512f", "avx512_vnni", …
  int vector_bytes = 0;             ///< width of a SIMD register
  int alignment = 1;                ///< of the operands of its libraries, in bytes
  int64_t l2_bytes = 0;
  int cores = 0;                                                             ///< cores / SMs
  int threads_per_core = 0, blocks_per_core = 0, shared_bytes_per_core = 0;  ///< that an SM holds
  /// Runs in which a library's call may have hidden a NaN are noticed and done again: results do
  /// not differ.
  bool notices_nan = false;
  std::map<std::string, ContractFacts> contracts;
  bool has_isa(std::string_view name) const;
  const ContractFacts& facts_of(std::string_view contract) const;  ///< empty: it has none
};

/// errors: unknown_target (lists those there are), yaml_*.
Result<Target> load_target(std::span<const std::string> rule_dirs, std::string_view name);
std::vector<std::string> target_names(std::span<const std::string> rule_dirs);
/// The contracts that have a file.
std::vector<std::string> contract_names(std::span<const std::string> rule_dirs);
/// Of a target's file, and of one of its contracts.
std::span<const KeyDoc> target_keys();
std::span<const KeyDoc> contract_fact_keys();
/// "ferrule": every fusion that there is a kernel for; "tensorrt": the limits of TensorRT's
/// catalogue, literally.
inline constexpr std::string_view kProfiles[] = {"ferrule", "tensorrt"};
/// errors: usage (no such profile; lists those there are).
Status use_profile(Target& target, std::string_view profile);
/// What the processor that we run on has of what targets need.
struct CpuFeatures {
  bool avx2 = false;    ///< with FMA and F16C
  bool avx512 = false;  ///< F, BW, DQ and VL
};
CpuFeatures cpu_features();
/// The target of the machine we run on: "cpu-avx512" or "cpu-avx2".  errors: machine_unsupported.
Result<std::string> host_target(CpuFeatures features = cpu_features());

}  // namespace ferrule
