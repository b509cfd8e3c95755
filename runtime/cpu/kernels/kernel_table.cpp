// Which kernel runs which operator's library launches.
#include <map>

#include "runtime/cpu/kernel.h"

namespace ferrule::cpu {

Factory library_factory(std::string_view op) {
  static const std::map<std::string_view, Factory> kFactories = {
      {"Conv", make_convolution},
      {"ConvTranspose", make_deconvolution},
      {"MatMul", make_matmul},
      {"Gemm", make_gemm},
      {"MaxPool", make_pool},
      {"AveragePool", make_pool},
      {"GlobalAveragePool", make_global_pool},
      {"GlobalMaxPool", make_global_pool},
      {"channel_gate", make_channel_gate},
      {"conv_pool", make_window_chain},
      {"depthwise_pointwise", make_window_chain},
      {"softmax_topk", make_softmax_topk},
      {"Resize", make_resize},
      {"BatchNormalization", make_norm},
  };
  auto it = kFactories.find(op);
  return it == kFactories.end() ? nullptr : it->second;
}

bool takes_slices(std::string_view op) {
  return op == "Conv" || op == "MatMul" || op == "Gemm" || op == "BatchNormalization";
}

}  // namespace ferrule::cpu
