// All that the static LLVM takes of glibc 2.36. With a copy of our own, a wheel that is built on
// Debian 12 runs from glibc 2.35 on, which Ubuntu 22.04 has.
#include <sys/random.h>

#include <cstdint>

extern "C" __attribute__((visibility("hidden"))) uint32_t arc4random() noexcept {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}
