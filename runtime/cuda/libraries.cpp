#include "runtime/cuda/libraries.h"

#include "engine/base/diagnostics.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/cudnn_graph.h"

namespace ferrule::cuda {

namespace {

/// Opening a library knows no layer; the one that wanted it is named.
template <class Handle>
Status keep(Handle& handle, Result<Handle> made, std::string_view layer) {
  if (!made && made.error().place.empty()) made.error().place = escape(std::string(layer));
  if (!made) return fail(made.error());
  handle = *made;
  return {};
}

}  // namespace

Libraries::~Libraries() {
  graphs.clear();  // they belong to the handle
  if (cudnn_) destroy_cudnn(cudnn_);
  if (cublaslt_) destroy_cublaslt(cublaslt_);
}

Result<cudnnContext*> Libraries::cudnn(std::string_view layer) {
  const std::lock_guard lock(mutex_);
  if (!cudnn_) FERRULE_TRY(keep(cudnn_, create_cudnn(layer), layer));
  return cudnn_;
}

Result<cublasLtContext*> Libraries::cublaslt(std::string_view layer) {
  const std::lock_guard lock(mutex_);
  if (!cublaslt_) FERRULE_TRY(keep(cublaslt_, create_cublaslt(layer), layer));
  return cublaslt_;
}

}  // namespace ferrule::cuda
