#include "runtime/cuda/open_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/diagnostics.h"

namespace ferrule::cuda {

Result<void*> open_nvidia_library(std::string_view what, std::initializer_list<const char*> names,
                                  std::string_view remedy) {
  std::vector<std::string> places;
  for (const char* name : names) {
    places.emplace_back(name);
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
      if (const char* home = std::getenv(variable))
        for (const char* folder : {"/lib64/", "/lib/"})
          places.push_back(std::string(home) + folder + name);
    for (const char* folder : {"/lib64/", "/lib/", "/targets/x86_64-linux/lib/"})
      places.push_back(std::string("/usr/local/cuda") + folder + name);
  }
  std::string why;
  for (const std::string& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* text = dlerror();
    if (why.empty() && text) why = text;
  }
  return error(Code::library_missing, "", fmt::format("{} ({})", what, *names.begin()),
               fmt::format("{}; {}", why, remedy));
}

}  // namespace ferrule::cuda
