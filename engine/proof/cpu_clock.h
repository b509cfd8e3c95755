// Time that this thread has computed: a proof's budget, so that a busy machine proves as much as an
// idle one.
#pragma once
#include <ctime>

namespace ferrule {

/// Seconds since the thread began.
inline double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace ferrule
