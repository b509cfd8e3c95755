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

}  // namespace ferrule::test
