// A library kernel whose work is one cuDNN graph: operands by slot or constant, workspace as its
// scratch.
#pragma once
#include "engine/base/applicable.h"
#include "runtime/cuda/cudnn_graph.h"
#include "runtime/cuda/kernel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cuda {

/// `o` as cuDNN sees it: at least two spatial dims (one of 1 in front), `rank` dims (leading ones).
CudnnTensor cudnn_tensor(const Operand& o, int rank);
/// One value a channel.
CudnnTensor cudnn_channel(const Operand& o, int rank);
/// Strides, pads and dilations of a window, with the spatial dim that cudnn_tensor put in front.
void set_window(CudnnProblem& problem, const Window& w);

struct CudnnOperand {
  int64_t uid = 0;
  int slot = -1;
  Address constant = 0;
};

/// The graph built with the plan that the tuning file names for the work, else with cuDNN's first.
/// Not applicable; errors: library_missing, library_failed.
Applicable<KernelPtr> make_cudnn_kernel(Context& context, const KernelCall& call,
                                        const CudnnWork& work, std::vector<CudnnOperand> operands);
/// Slot or uploaded constant.  errors: those of Constants.
Result<CudnnOperand> cudnn_operand(Context& context, int64_t uid, const Operand& o);
/// The call's tail and its operands.  errors: those of Constants.
Applicable<> add_tail(Context& context, const KernelCall& call, CudnnProblem& problem,
                      std::vector<CudnnOperand>& operands);

}  // namespace ferrule::cuda
