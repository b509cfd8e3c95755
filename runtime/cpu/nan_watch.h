// Whether NaN met a minimum or maximum during a run, without looking at one result. The library's relu, clip and the like
// are x86's min and max, which give their second operand where one is NaN, and so hide it; they also raise the sticky
// flag "invalid operation" then, as do 0 * Inf and Inf - Inf. A run that leaves the flag down on all threads of the
// team has hidden no NaN. Other code may raise it for reasons of its own: that costs time, never a result.
#pragma once
#include <cstdint>

namespace ferrule::cpu {

class NanWatch {
 public:
  enum class Seen : uint8_t {
    nothing,
    invalid,
    unsure,  ///< OpenMP replaced a thread meanwhile, which took its flag along
  };
  /// Lowers the flags of `team` threads, that of the caller included.
  void begin(int team);
  /// What they saw since; the caller's own flag is as it was before or up.
  Seen end(int team);

 private:
  unsigned callers_ = 0;
};

}  // namespace ferrule::cpu
