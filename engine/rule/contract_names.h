// The kinds of kernels that rules name (`contract:`, `@group.NAME`, has_kernel('NAME', …)) and targets have facts of. What each
// takes is contracts.h's business; that both know the same ones, a test's.
#pragma once
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace ferrule {

inline constexpr std::string_view kContracts[] = {
    "attention", "channel_gate", "conv",      "conv_pool", "copy",   "deconv",     "depthwise_pointwise", "gemm",
    "norm",      "pointwise",    "pool",      "quantized", "resize", "row_reduce", "softmax_topk",        "view"};

bool is_contract(std::string_view name);
std::vector<std::string> contract_names();

}  // namespace ferrule
