#include "engine/target/contract_names.h"

#include <iterator>

#include "engine/base/contains.h"

namespace ferrule {
namespace {

constexpr std::string_view kContracts[] = {
    "attention", "channel_gate",        "conv",         "conv_pool", "copy",
    "deconv",    "depthwise_pointwise", "gemm",         "gru",       "lstm",
    "norm",      "pointwise",           "pool",         "quantized", "resize",
    "rnn",       "row_reduce",          "softmax_topk", "view"};

}  // namespace

bool is_contract(std::string_view name) { return contains(kContracts, name); }

std::vector<std::string> contract_names() { return {std::begin(kContracts), std::end(kContracts)}; }

}  // namespace ferrule
