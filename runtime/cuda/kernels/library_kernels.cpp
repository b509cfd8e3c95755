// Which factory makes which library's kernel.
#include "runtime/cuda/kernel.h"
#include "runtime/gpu_steps.h"

namespace ferrule::cuda {

Factory library_factory(Work work) {
  if (!gpu_library(work)) return nullptr;
  if (is_product(work)) return make_matmul;
  return work == Work::convolution ? make_convolution : make_deconvolution;
}

}  // namespace ferrule::cuda
