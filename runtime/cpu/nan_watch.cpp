#include "runtime/cpu/nan_watch.h"

#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr unsigned kInvalid = _MM_EXCEPT_INVALID;

/// Threads that have ended with their flag up. It only grows, so that two sessions do not take it
/// from each other.
std::atomic<uint64_t> left_behind = 0;
std::atomic<uint64_t> rounds = 0;  ///< ends of watches so far

/// In a thread that has been looked after: what it saw last is not lost when it ends.
struct LookedAfter {
  std::shared_ptr<WatchedThread> thread = std::make_shared<WatchedThread>();
  ~LookedAfter() {
    if (_mm_getcsr() & kInvalid) ++left_behind;
    thread->ended = true;
  }
};
const std::shared_ptr<WatchedThread>& look_after() {
  thread_local LookedAfter here;
  return here.thread;
}

/// The thread is on its way out when OpenMP has put another in its place.
bool ends_soon(const WatchedThread& t) {
  const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (!t.ended && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
  return t.ended;
}

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
    watched_.assign(static_cast<size_t>(team), nullptr);
    on_team(team, [this](int me, int) {
      take_flag();
      watched_[static_cast<size_t>(me)] = look_after();
    });
    largest_team = team;
  }
  left_ = left_behind;
}

bool NanWatch::end(int team) {
  std::atomic<bool> raised = false;
  const uint64_t round = ++rounds;
  on_team(team, [&](int, int) {
    if (take_flag()) raised = true;
    look_after()->seen = round;
  });
  for (const auto& t : watched_)
    if (t && t->seen != round && !ends_soon(*t)) raised = true;
  watched_.clear();
  if (left_behind != left_) raised = true;
  if (callers_) _mm_setcsr(_mm_getcsr() | callers_);
  callers_ = 0;
  return raised;
}

}  // namespace ferrule::cpu
