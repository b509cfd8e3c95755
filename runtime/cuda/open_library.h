// NVIDIA's libraries, opened at run time.
#pragma once
#include <initializer_list>
#include <string_view>

#include "engine/base/result.h"

namespace ferrule::cuda {

/// One of NVIDIA's libraries, by one of its names. errors: library_missing, with `remedy`.
Result<void*> open_nvidia_library(std::string_view what, std::initializer_list<const char*> names,
                                  std::string_view remedy);

}  // namespace ferrule::cuda
