// Which nodes of the model each kernel of a layer computes: two that are in one layer need not be
// in one kernel (a tail that the library's call does not take, a convolution and its pooling on
// GPUs, integers executed in float).
#pragma once
#include "codegen/program/layers_to_launches.h"

namespace ferrule {

/// ONNX node names by kernel, in order; nothing where the layer is one kernel, or all of its
/// kernels belong to one node.
std::vector<std::vector<std::string>> kernel_nodes(const LoweredLayer& layer);

}  // namespace ferrule
