// A number that differs when a backend library was built from other sources than libferrule: its
// version and the sizes of what is passed across. Both sides compute it from the headers they were
// built with.
#pragma once
#include "runtime/backend.h"

namespace ferrule {

constexpr uint64_t backend_abi_hash() {
  uint64_t h = 0xcbf29ce484222325u;
  auto mix = [&](uint64_t v) { h = (h ^ v) * 0x100000001b3u; };
  for (const char* p = FERRULE_VERSION; *p; ++p) mix(static_cast<unsigned char>(*p));
  for (uint64_t size : {sizeof(Plan), sizeof(Layer), sizeof(Graph), sizeof(Node), sizeof(Value),
                        sizeof(Tensor), sizeof(Lowered), sizeof(LoweredLayer), sizeof(Launch),
                        sizeof(PostOp), sizeof(Error), sizeof(PrepareContext), sizeof(Limits),
                        sizeof(Target), uint64_t{_GLIBCXX_USE_CXX11_ABI}, uint64_t{2}})
    mix(size);
  return h;
}

}  // namespace ferrule
