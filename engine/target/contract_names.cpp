#include "engine/target/contract_names.h"

#include <iterator>

#include "engine/base/contains.h"

namespace ferrule {
namespace {

constexpr std::string_view kContracts[] = {"argmax",
                                           "argmin",
                                           "attention",
                                           "branch",
                                           "channel_gate",
                                           "conv",
                                           "conv_pool",
                                           "copy",
                                           "deconv",
                                           "depthwise_pointwise",
                                           "gather_elements",
                                           "gemm",
                                           "gru",
                                           "loop",
                                           "lstm",
                                           "norm",
                                           "one_hot",
                                           "pointwise",
                                           "pool",
                                           "quantized",
                                           "resize",
                                           "rnn",
                                           "row_reduce",
                                           "scan",
                                           "scatter_elements",
                                           "scatter_nd",
                                           "softmax_topk",
                                           "topk",
                                           "view"};

}  // namespace

bool is_contract(std::string_view name) { return contains(kContracts, name); }

std::vector<std::string> contract_names() { return {std::begin(kContracts), std::end(kContracts)}; }

}  // namespace ferrule
