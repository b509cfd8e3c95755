// Which kernel runs which work's library launches.
#include "runtime/cpu/kernel.h"

namespace ferrule::cpu {

#define FERRULE_OWN_KERNEL(contract, make) Applicable<KernelPtr> make(Context&, const KernelCall&);
#include "runtime/cpu_kernels.def"
#undef FERRULE_OWN_KERNEL

Factory own_factory(std::string_view wanted) {
#define FERRULE_OWN_KERNEL(contract, make) \
  if (wanted == contract) return make;
#include "runtime/cpu_kernels.def"
#undef FERRULE_OWN_KERNEL
  return nullptr;
}

Factory library_factory(Work work) {
  switch (work) {
    case Work::convolution:
      return make_convolution;
    case Work::deconvolution:
      return make_deconvolution;
    case Work::product:
      return make_matmul;
    case Work::affine_product:
      return make_gemm;
    case Work::max_pool:
    case Work::average_pool:
      return make_pool;
    case Work::global_max_pool:
    case Work::global_average_pool:
      return make_global_pool;
    case Work::resize:
      return make_resize;
    case Work::norm:
      return make_norm;
    case Work::softmax_topk:
      return make_softmax_topk;
    case Work::lstm:
    case Work::gru:
    case Work::rnn:
      return make_recurrent;
    case Work::window_chain:
      return make_window_chain;
    case Work::attention:
    case Work::transpose:
    case Work::gather:
    case Work::reorder:
    case Work::own:
    case Work::other:
      break;
  }
  return nullptr;
}

bool takes_slices(Work work) {
  return work == Work::convolution || is_product(work) || work == Work::norm;
}

}  // namespace ferrule::cpu
