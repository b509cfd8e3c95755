// set_threads for a scope.
#pragma once
#include "runtime/parallel.h"

namespace ferrule {

/// The calling thread's OpenMP may be an application's, too (torch's), and its number of threads is
/// what that has set.
class ScopedThreads {
 public:
  explicit ScopedThreads(int wanted) : before_(threads()) { set_threads(wanted); }
  ~ScopedThreads() { set_threads(before_); }
  int before() const { return before_; }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  int before_;
};

}  // namespace ferrule
