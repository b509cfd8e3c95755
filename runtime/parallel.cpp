#include "runtime/parallel.h"

#include <omp.h>

#include <algorithm>

namespace ferrule {
namespace {

thread_local int alone = 0;  ///< calls that the thread works off alone
thread_local int64_t called = 0;
thread_local int counted = 0;  ///< of OneKernel that the thread is in

/// Parallel work on one thread, which is thread 0 of it.
template <class F>
void by_itself(F&& f) {
  ++alone;
  f();
  --alone;
}

}  // namespace

void set_threads(int threads) {
  if (threads <= 0) threads = omp_get_num_procs();
  if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
}

int threads() { return omp_get_max_threads(); }

int64_t kernels_called() { return called; }

void count_kernel() { called += alone == 0 && counted == 0 && !omp_in_parallel(); }

OneKernel::OneKernel() {
  count_kernel();
  ++counted;
}
OneKernel::~OneKernel() { --counted; }

void parallel_ranges(int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* context) {
  count_kernel();
  grain = std::max<int64_t>(grain, 1);
  const int64_t parts = std::min<int64_t>(omp_get_max_threads(), n / grain);
  if (parts <= 1 || omp_in_parallel()) return by_itself([&] { fn(context, 0, n); });
#pragma omp parallel num_threads(static_cast<int>(parts))
  {
    // The team can be smaller than asked for.
    const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t begin = n * me / team, end = n * (me + 1) / team;
    if (begin < end) fn(context, begin, end);
  }
}

void parallel_team(int64_t parts, void (*fn)(void*, int, int), void* context) {
  count_kernel();
  parts = std::min<int64_t>(omp_get_max_threads(), parts);
  if (parts <= 1 || omp_in_parallel()) return by_itself([&] { fn(context, 0, 1); });
#pragma omp parallel num_threads(static_cast<int>(parts))
  fn(context, omp_get_thread_num(), omp_get_num_threads());
}

void team_barrier() {
#pragma omp barrier
}

int parallel_thread() { return alone ? 0 : omp_get_thread_num(); }

}  // namespace ferrule
