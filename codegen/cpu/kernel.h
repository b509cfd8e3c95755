// What a generated CPU kernel is: the program, how each operand moves along the inner loop, and the
// target. A kernel is a serial function of two nested loops, the inner one vectorised; sizes and
// strides are given at run time, so one kernel serves every shape with the same inner strides.
// loop_nest.h splits larger nests.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/semantics/fold.h"
#include "engine/semantics/scalar.h"

namespace ferrule {

/// How an operand moves along the inner loop.
enum class InnerStride : uint8_t {
  contiguous,  ///< by one element
  broadcast,   ///< not at all; inputs only
  strided,     ///< by inner_strides[k] bytes
  second,      ///< by two elements, of 4 or 8 bytes: interleaved pairs
};
/// That of an operand whose elements lie `step` bytes apart.
InnerStride inner_stride(int64_t step, int element_bytes);

struct KernelKey {
  Program program;
  std::vector<InnerStride> inner;  ///< per input, then per output
  std::string target;              ///< "cpu-avx2", "cpu-avx512"
  /// Contiguous outputs are written past the caches, in rows that start at a multiple of 64 bytes:
  /// for outputs much larger than the last-level cache.
  bool non_temporal = false;
  /// Per output, none or empty: stored. Else the elements are folded into one accumulator (of
  /// fold_type) that lies in memory and holds what was folded before: one an outer iteration, or,
  /// with `fold_outer`, one an inner iteration, contiguous.
  std::vector<Fold> folds{};
  bool fold_outer = false;
};
/// Equal strings if and only if the programs compute the same in the same way (names of inputs do
/// not matter).
std::string identity(const Program& program);
/// Equal strings if and only if the machine code is the same.
std::string identity(const KernelKey& key);

/// `ptrs`: per input, then per output. `n`: iterations of the outer and of the inner loop, both may
/// be 0. Strides in bytes per operand; inner ones are read for strided operands only. An output may
/// be the memory of an input that moves in the same way.
using KernelFn = void (*)(void* const* ptrs, const int64_t* n, const int64_t* outer_strides,
                          const int64_t* inner_strides);

/// Instruction set of a CPU target. It comes from the target's name alone, never from the host.
struct CpuIsa {
  std::string_view target, cpu;
  int vector_bytes = 0;
};
/// errors: unknown_target.
Result<CpuIsa> cpu_isa(std::string_view target);

}  // namespace ferrule
