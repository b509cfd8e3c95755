#include "runtime/cuda/open_library.h"

#include <dlfcn.h>

#include <string>

#include "codegen/cuda/library_places.h"
#include "engine/base/diagnostics.h"

namespace ferrule::cuda {

Result<void*> open_nvidia_library(std::string_view what, std::initializer_list<const char*> names,
                                  std::string_view remedy) {
  std::string why;
  // What the process has loaded already, say torch's, is the one that others use, too.
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return library;
  for (const char* name : names)
    for (const std::string& place : library_places(name)) {
      if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      const char* text = dlerror();
      if (why.empty() && text) why = text;
    }
  return error(Code::library_missing, "", fmt::format("{} ({})", what, *names.begin()),
               fmt::format("{}; {}", why, remedy));
}

}  // namespace ferrule::cuda
