#include "runtime/cpu/nan_watch.h"

#include <xmmintrin.h>

#include <algorithm>
#include <atomic>

#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr unsigned kInvalid = _MM_EXCEPT_INVALID;

/// Threads that have ended with their flag up. It only grows, so that two sessions do not take it
/// from each other.
std::atomic<uint64_t> left_behind = 0;

/// In a thread that has been looked after: what it saw last is not lost when it ends.
struct LookedAfter {
  ~LookedAfter() {
    if (_mm_getcsr() & kInvalid) ++left_behind;
  }
};
void look_after() { [[maybe_unused]] thread_local LookedAfter here; }

/// The most threads of a team that the calling thread has looked after.
thread_local int largest_team = 0;

unsigned take_flag() {
  const unsigned csr = _mm_getcsr();
  if (csr & kInvalid) _mm_setcsr(csr & ~kInvalid);
  return csr & kInvalid;
}

}  // namespace

void NanWatch::begin(int team) {
  callers_ = take_flag();
  // Of two threads the second stays as long as the first; of more, some go whenever a part of them
  // is enough.
  if (team > 2 || team > std::max(largest_team, 1)) {
    on_team(team, [](int, int) {
      take_flag();
      look_after();
    });
    largest_team = team;
  }
  left_ = left_behind;
}

bool NanWatch::end(int team) {
  std::atomic<bool> raised = false;
  on_team(team, [&](int, int) {
    if (take_flag()) raised = true;
  });
  if (left_behind != left_) raised = true;
  if (callers_) _mm_setcsr(_mm_getcsr() | callers_);
  callers_ = 0;
  return raised;
}

}  // namespace ferrule::cpu
