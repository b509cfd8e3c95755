// Work split over threads.
#include "runtime/parallel.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "doctest/doctest.h"

namespace ferrule::test {

TEST_CASE("parallel_for covers every index once") {
  for (int threads : {1, 2, 3})
    for (int64_t n : {0, 1, 5, 1000})
      for (int64_t grain : {1, 7, 5000}) {
        set_threads(threads);
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t k = begin; k < end; ++k) ++seen[static_cast<size_t>(k)];
        });
        CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& s) { return s == 1; }));
      }
  set_threads(0);
}

TEST_CASE(
    "parallel_thread: each thread of a piece of work has a place of its own, 0 outside of it") {
  set_threads(3);
  CHECK(parallel_thread() == 0);
  for (int64_t n : {300, 2, 300, 1}) {  // a smaller team between larger ones
    std::vector<std::atomic<int>> users(3);
    parallel_for(n, 1, [&](int64_t, int64_t) { ++users[static_cast<size_t>(parallel_thread())]; });
    for (size_t k = 0; k < 3; ++k) CHECK(users[k] == (static_cast<int64_t>(k) < n ? 1 : 0));
  }
  CHECK(parallel_thread() == 0);
  set_threads(0);
}

TEST_CASE(
    "on_team: who waits at the barrier sees what all have written; work inside work stays on its "
    "thread") {
  set_threads(3);
  std::vector<int> written(3), sums(3);
  std::atomic<int> inner{0};
  on_team(3, [&](int me, int team) {
    CHECK(team == 3);
    CHECK(parallel_thread() == me);
    for (int round = 1; round < 20; ++round) {
      written[static_cast<size_t>(me)] = round;
      team_barrier();
      const int sum = written[0] + written[1] + written[2];
      if (sum == 3 * round) ++sums[static_cast<size_t>(me)];
      team_barrier();
    }
    for (int64_t n : {100, 1}) {
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        if (begin == 0 && end == n && parallel_thread() == 0) ++inner;
      });
      on_team(n, [&](int mine, int alone) {
        if (mine == 0 && alone == 1 && parallel_thread() == 0) ++inner;
      });
    }
    CHECK(parallel_thread() == me);
  });
  CHECK(sums == std::vector<int>{19, 19, 19});
  CHECK(inner == 12);
  set_threads(0);
}

TEST_CASE(
    "kernels count themselves: work inside of work, and the pieces of what is one kernel, are no "
    "more of them") {
  auto called = [](auto&& f) {
    const int64_t before = kernels_called();
    f();
    return kernels_called() - before;
  };
  auto piece = [](int64_t n) { parallel_for(n, 1, [](int64_t, int64_t) {}); };
  CHECK(called([&] { piece(100); }) == 1);
  CHECK(called([&] { piece(0); }) == 1);
  CHECK(called([&] { piece(100), piece(1); }) == 2);
  CHECK(called([&] { on_team(2, [](int, int) {}); }) == 1);
  CHECK(called([&] { count_kernel(); }) == 1);
  for (const int64_t n : {1, 100})
    CHECK(called([&] {
            parallel_for(n, 1, [&](int64_t, int64_t) { piece(100), count_kernel(); });
          }) == 1);
  CHECK(called([&] {
          const OneKernel one;
          piece(100), count_kernel(), piece(1);
        }) == 1);
}

}  // namespace ferrule::test
