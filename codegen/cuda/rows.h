// Row kernels (softmax, norms, reductions) as CUDA C++: the stages of a row region in one kernel, a
// team of threads a row. Sums of f32 are compensated, not made in f64, which most GPUs do slowly.
// Sizes and strides are arguments; a kernel serves every shape of the same form. Few long rows are
// spread over several blocks. Where nothing but reductions runs along them, the block that ends
// last combines what all of them left in scratch memory. Where elements follow their row's
// reduction (softmax, norms) all blocks would have to wait for each other, which no stream
// guarantees to end: the kernel is launched several times, up to a reduction each, and every block
// of a pass combines what those of the former ones left. A softmax's maximum and sum are one pass
// where the row is not in registers by the second. Its sum is then of exponentials below a value
// that follows the maximum in steps of at least 8: each step rounds the sum once more, and after
// some dozen of them what was there before the first no longer counts, so that no order of elements
// makes it worse.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "codegen/cuda/row_plan.h"

namespace ferrule {

/// CUDA C++ with one kernel `entry` (an identifier). `comment`: rule and nodes, from the model;
/// escaped here. errors: formula_invalid.
Result<std::string> cuda_row_source(const CudaRowKernel& kernel, std::string_view entry,
                                    std::string_view comment);

/// The kernel's one parameter, as the source declares it. `pointers`: of the operands, then the
/// scratch if it is sliced.
std::string cuda_row_arguments(const CudaRowKernel& kernel, const CudaRowGeometry& geometry,
                               std::span<void* const> pointers, int pass = 0);

}  // namespace ferrule
