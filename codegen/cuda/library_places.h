// Where NVIDIA's libraries are looked for.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ferrule {

/// What to give to dlopen for "libnvrtc.so.13", one after the other: $CUDA_HOME, NVIDIA's wheels
/// beside ours, what the system finds, /usr/local/cuda.
std::vector<std::string> library_places(std::string_view name);

}  // namespace ferrule
