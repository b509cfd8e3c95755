#include "runtime/cpu/nan_watch.h"

#include <xmmintrin.h>

#include <atomic>

#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr unsigned kInvalid = _MM_EXCEPT_INVALID;

/// Whether this thread's flag has been looked after: a thread that OpenMP made since has it not.
thread_local bool looked_after = false;
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
  looked_after = true;
  // Of two threads the second stays as long as the first; of more, some go whenever a part of them is enough.
  if (team <= 1 || (team == 2 && largest_team >= 2)) return;
  on_team(team, [](int, int) {
    take_flag();
    looked_after = true;
  });
  largest_team = team;
}

NanWatch::Seen NanWatch::end(int team) {
  std::atomic<bool> raised = false, replaced = false;
  on_team(team, [&](int, int) {
    if (take_flag()) raised = true;
    if (!looked_after) replaced = looked_after = true;
  });
  if (callers_) _mm_setcsr(_mm_getcsr() | callers_);
  callers_ = 0;
  return replaced ? Seen::unsure : raised ? Seen::invalid : Seen::nothing;
}

}  // namespace ferrule::cpu
