// Pointwise kernels as CUDA C++ from the same scalar programs as the CPU's. One thread computes
// `vector` neighbouring elements of the innermost axis with 128-bit accesses where the operands
// allow it, or several such packs, all read before the first is computed. Sizes and strides are
// arguments, so that a kernel serves every shape that has the same form. Source never holds text of
// a model but in one escaped comment.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/nvrtc.h"
#include "engine/base/applicable.h"
#include "engine/semantics/scalar.h"

namespace ferrule {

/// Where thread's element i of an operand lies.
enum class CudaAccess : uint8_t {
  linear,       ///< at i
  uniform,      ///< at 0
  rows,         ///< by strides on the outer axes, neighbours on the innermost
  row_uniform,  ///< by strides on the outer axes, the same along the innermost
  strided,      ///< by strides on every axis
};

struct CudaKernel {
  Program program;
  std::vector<CudaAccess> access;  ///< per input, then per output
  int rank = 1;                    ///< axes after collapsing, at most kMaxCudaRank
  int vector = 1;     ///< elements of a pack; above 1 pointers must be aligned to vector * size
  int threads = 256;  ///< of a block
  int packs = 1;      ///< of a thread
  bool wide_index = false;  ///< 64-bit index arithmetic
};
inline constexpr int kMaxCudaRank = 8;

/// Sizes and strides of one shape, in the order of the kernel's argument block.
struct CudaGeometry {
  int64_t elements = 0;
  std::vector<int64_t> sizes;                 ///< per axis, outermost first
  std::vector<std::vector<int64_t>> strides;  ///< per operand that is not linear or uniform
  int64_t packs(const CudaKernel& k) const { return (elements + k.vector - 1) / k.vector; }
  int64_t blocks(const CudaKernel& k) const {
    return (packs(k) + k.threads * k.packs - 1) / (k.threads * k.packs);
  }
};
struct CudaPlan {
  CudaKernel kernel;
  CudaGeometry geometry;
};

/// The kernel for these dims and element strides (inputs, then outputs; 0 = broadcast). `aligned`:
/// pointers are known to be multiples of 16 bytes. `offsets`: where operands begin behind them, in
/// elements; empty: there. They are no part of the geometry. Not applicable (more than kMaxCudaRank
/// axes after collapsing); errors: unsupported_type.
Applicable<CudaPlan> plan_cuda(const Program& program, std::span<const int64_t> dims,
                               std::span<const std::vector<int64_t>> strides, bool aligned,
                               std::span<const int64_t> offsets = {});

/// For kernels made of several: what one thread does from element `i` on, `i` being declared, and
/// from there at every threads * vector-th, as many times as it has packs. `program`: the kernel's,
/// transcendentals expanded, which `function` computes. `geometry`: a variable with n, size and
/// stride. `pointers`: an expression an operand.
std::string cuda_elements(const CudaKernel& kernel, const Program& program,
                          std::string_view function, std::string_view geometry,
                          std::span<const std::string> pointers);
/// Bytes that a thread reads and writes for a pack.
int64_t pack_bytes(const CudaKernel& kernel);
/// Operands that have strides of their own in the geometry.
size_t strided_operands(const CudaKernel& kernel);

/// CUDA C++ with one kernel `entry` (an identifier). `comment`: rule and nodes, from the model;
/// escaped here. errors: unsupported_type, formula_invalid.
Result<std::string> cuda_source(const CudaKernel& kernel, std::string_view entry,
                                std::string_view comment);

/// The kernel's one parameter: pointers, then sizes and strides, as the source declares them.
std::string cuda_arguments(const CudaKernel& kernel, const CudaGeometry& geometry,
                           std::span<void* const> pointers);

}  // namespace ferrule
