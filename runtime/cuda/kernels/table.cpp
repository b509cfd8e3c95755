// Which library computes what. Norms and poolings are not here: their time is that of the memory, which a generated kernel
// reads once as a library's does, and it takes every form of theirs, and norms their neighbours.
#include <map>

#include "runtime/cuda/kernel.h"

namespace ferrule::cuda {

Factory library_factory(std::string_view op) {
  static const std::map<std::string_view, Factory> kFactories = {
      {"Conv", make_convolution}, {"ConvTranspose", make_deconvolution}, {"MatMul", make_matmul},
      {"Gemm", make_matmul},
  };
  auto it = kFactories.find(op);
  return it == kFactories.end() ? nullptr : it->second;
}

}  // namespace ferrule::cuda
