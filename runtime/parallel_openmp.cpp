#include <omp.h>

#include <algorithm>

#include "runtime/parallel.h"
#include "runtime/parallel_team.h"

namespace ferrule {
namespace {

/// The largest team that OpenMP makes, whatever the environment says of limits. oneDNN leaves
/// undone what it gave to threads that it then did not get.
int largest_team() {
  if (omp_get_dynamic()) omp_set_dynamic(0);
  return omp_get_max_active_levels() < 1 ? 1 : omp_get_thread_limit();
}

}  // namespace

void set_threads(int threads) {
  if (threads <= 0) threads = omp_get_num_procs();
  threads = std::min(threads, largest_team());
  if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
}

int threads() { return omp_get_max_threads(); }

void run_team(int64_t parts, void (*fn)(void*, int, int), void* context) {
#pragma omp parallel num_threads(static_cast<int>(parts))
  fn(context, omp_get_thread_num(), omp_get_num_threads());
}

void team_barrier() {
#pragma omp barrier
}

bool in_team() { return omp_in_parallel(); }
int team_member() { return omp_get_thread_num(); }

}  // namespace ferrule
