#include <omp.h>

#include "runtime/parallel.h"
#include "runtime/parallel_team.h"

namespace ferrule {

void set_threads(int threads) {
  if (threads <= 0) threads = omp_get_num_procs();
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
