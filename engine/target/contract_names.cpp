#include "engine/target/contract_names.h"

#include <algorithm>
#include <iterator>

namespace ferrule {
namespace {

constexpr std::string_view kContracts[] = {
    "attention", "channel_gate",        "conv",   "conv_pool",  "copy",
    "deconv",    "depthwise_pointwise", "gemm",   "norm",       "pointwise",
    "pool",      "quantized",           "resize", "row_reduce", "softmax_topk",
    "view"};

}  // namespace

bool is_contract(std::string_view name) {
  return std::ranges::find(kContracts, name) != std::end(kContracts);
}

std::vector<std::string> contract_names() { return {std::begin(kContracts), std::end(kContracts)}; }

}  // namespace ferrule
