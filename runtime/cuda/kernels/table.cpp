// Which library computes what. Norms are not here: they are rows to the code generator, whose kernels also take their
// neighbours and read each element once, which cuDNN's norm engines do not do better.
#include <map>

#include "runtime/cuda/kernel.h"

namespace ferrule::cuda {

Factory library_factory(std::string_view op) {
  static const std::map<std::string_view, Factory> kFactories = {
      {"Conv", make_convolution}, {"ConvTranspose", make_deconvolution}, {"MatMul", make_matmul},
      {"Gemm", make_matmul},      {"MaxPool", make_pool},                {"AveragePool", make_pool},
      {"GlobalMaxPool", make_pool}, {"GlobalAveragePool", make_pool},
  };
  auto it = kFactories.find(op);
  return it == kFactories.end() ? nullptr : it->second;
}

}  // namespace ferrule::cuda
