// A generated launch as one CUDA kernel: which kind of kernel (pointwise, rows, pool, attention,
// …), its source, its grid, and its argument block for given addresses. The one way from a Launch
// to CUDA text, for `ferrule compile` and the CUDA backend. What moves elements by numbers that are
// known only when the model runs has no kernel here.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/program/layers_to_launches.h"
#include "engine/base/applicable.h"

namespace ferrule {

/// An operand as it lies in memory. dtype undefined: absent.
struct CudaOperand {
  DType dtype = DType::undefined;
  std::vector<int64_t> dims, strides;  ///< elements, in ONNX's order of axes
};

struct CudaLaunch {
  std::string source;
  std::string entry;  ///< its only kernel
  std::string kind;  ///< "pointwise", "pieces", "rows", "copy", "transpose", "gather", "attention",
                     ///< "pool", "resize", "selection", "direct"; for texts
  int64_t blocks = 1;                  ///< in x; 0: nothing to do, and nothing may be launched
  int threads_x = 256, threads_y = 1;  ///< of a block
  std::string shape;                   ///< how it is spread over threads and blocks (shape.h)
  std::vector<std::string>
      shapes;           ///< what is worth a measurement, the built-in choice first; never empty
  std::string problem;  ///< what its speed depends on, but the shape; without a name of the model
  int64_t scratch_bytes = 0;  ///< device memory, 256-byte aligned; zero before the first launch,
                              ///< left usable for the next
  int passes = 1;             ///< launches of the kernel in stream order
  /// The kernel's one parameter. Addresses: the launch's inputs, its outputs (0: absent), the
  /// scratch (0: there is none), and which of the passes it is.
  std::function<std::string(std::span<const uint64_t> addresses)> arguments;
  /// Where a run can go wrong (an index out of range): what did, from the scratch after the run, or
  /// "". Null: nothing can. A caller that gets a text zeroes the scratch again.
  std::function<std::string(std::span<const char> scratch)> complaint;
};

/// Whether `launch` is a generated kernel on GPUs (else a library call, a view or interpreted):
/// poolings, resizing, batch norms, attention (whatever choose_attention says: any can be) and
/// selections are, too.
bool cuda_generated(const Launch& launch);

/// The shape for a problem; "": the built-in choice.
using CudaShapeChoice = std::function<std::string(const std::string& problem)>;

/// `operands`: of the launch's inputs, then its outputs. `comment`: rule and nodes, from the model;
/// escaped here. `aligned`: all addresses are multiples of 16 bytes. `cores`: multiprocessors
/// (Target::cores), over which few long rows are spread; 0: not known. `choice`: what it names is
/// taken where it is one of the launch's shapes. Not applicable (no kernel for these operands);
/// errors: unsupported_type, codegen_failed, formula_invalid.
Applicable<CudaLaunch> plan_cuda_launch(const Launch& launch, std::span<const CudaOperand> operands,
                                        std::string_view entry, std::string_view comment,
                                        bool aligned, int cores = 0,
                                        const CudaShapeChoice& choice = {});

}  // namespace ferrule
