// Whether NaN met a minimum or maximum during a run, without looking at one result. The library's
// relu, clip and the like are x86's min and max, which give their second operand where one is NaN,
// and so hide it; they also raise the sticky flag "invalid operation" then, as do 0 * Inf and Inf -
// Inf. A run that leaves the flag down on all threads of the team has hidden no NaN. Other code may
// raise it for reasons of its own: that costs time, never a result.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace ferrule::cpu {

struct WatchedThread {
  std::atomic<bool> ended = false;
  std::atomic<uint64_t> seen = 0;  ///< the last end of a watch that it took part in
};

class NanWatch {
 public:
  /// Lowers the flags of `team` threads, that of the caller included.
  void begin(int team);
  /// Whether one of them, or a thread that OpenMP let go meanwhile, has raised its flag since; the
  /// caller's own flag is as it was before or up. A thread that was both made and let go meanwhile
  /// is missed, so that where teams change (three threads and more) a window is one launch.
  bool end(int team);

 private:
  unsigned callers_ = 0;
  uint64_t left_ = 0;  ///< threads that had ended with their flag up when it began
  std::vector<std::shared_ptr<WatchedThread>> watched_;  ///< of the team, where teams change
};

}  // namespace ferrule::cpu
