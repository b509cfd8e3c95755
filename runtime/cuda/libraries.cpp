#include "runtime/cuda/libraries.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/cudnn_graph.h"

namespace ferrule::cuda {

Result<void*> open_nvidia_library(std::string_view what, std::initializer_list<const char*> names, std::string_view remedy) {
  std::vector<std::string> places;
  for (const char* name : names) {
    places.emplace_back(name);
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
      if (const char* home = std::getenv(variable))
        for (const char* folder : {"/lib64/", "/lib/"}) places.push_back(std::string(home) + folder + name);
    for (const char* folder : {"/lib64/", "/lib/", "/targets/x86_64-linux/lib/"})
      places.push_back(std::string("/usr/local/cuda") + folder + name);
  }
  std::string why;
  for (const std::string& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* text = dlerror();
    if (why.empty() && text) why = text;
  }
  return error(Code::library_missing, "", fmt::format("{} ({})", what, *names.begin()), fmt::format("{}; {}", why, remedy));
}

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
