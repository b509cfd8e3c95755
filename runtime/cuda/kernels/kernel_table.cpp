// Which factory makes which library's kernel.
#include "runtime/cuda/kernel.h"
#include "runtime/gpu_steps.h"

namespace ferrule::cuda {

Factory library_factory(std::string_view op) {
  switch (gpu_library(op)) {
    case GpuLibrary::convolution:
      return make_convolution;
    case GpuLibrary::deconvolution:
      return make_deconvolution;
    case GpuLibrary::product:
      return make_matmul;
    case GpuLibrary::none:
      break;
  }
  return nullptr;
}

}  // namespace ferrule::cuda
