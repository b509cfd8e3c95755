// Work in child processes, so that a crash or a hang costs one piece of it and is a result like
// others.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace ferrule::fuzz {

constexpr double kBusy = 10;  ///< on a machine that does other work, too

struct Work {
  uint64_t first = 1;  ///< pieces are numbered from here
  uint64_t count = 0;
  double seconds = 0;  ///< begin no piece later than that; 0: all are done
  /// Seconds of processor time that one piece may take; the stubs compile kernels with g++. On the
  /// clock kBusy times as many, for what waits for ever.
  double limit = 60;
  int workers = 2;
};

/// Calls `piece(n)` in children, each forked from this process as it is now (which must have no
/// threads), and `take(n, text)` here with what it returned, in no order. `lost(n, how)`: the child
/// that did piece n died, or took too long.
void in_children(const Work& work, const std::function<std::string(uint64_t)>& piece,
                 const std::function<void(uint64_t, const std::string&)>& take,
                 const std::function<void(uint64_t, const std::string&)>& lost);

}  // namespace ferrule::fuzz
