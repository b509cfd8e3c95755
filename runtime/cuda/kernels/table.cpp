// Which library computes what.
#include "runtime/cuda/kernel.h"

namespace ferrule::cuda {

Factory library_factory(std::string_view) { return nullptr; }

}  // namespace ferrule::cuda
