#include "runtime/cuda/libraries.h"

#include <utility>
#include <vector>

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

void Libraries::close() {
  graphs.clear();  // they belong to the handle
  if (cudnn_) destroy_cudnn(std::exchange(cudnn_, nullptr));
  if (cublaslt_) destroy_cublaslt(std::exchange(cublaslt_, nullptr));
}

void Libraries::forget() {
  static auto* kept = new std::vector<decltype(graphs)>();
  static auto* mutex = new std::mutex();
  const std::lock_guard lock(*mutex);
  kept->push_back(std::move(graphs));
  graphs.clear();
  cudnn_ = nullptr;
  cublaslt_ = nullptr;
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
