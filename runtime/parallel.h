// Work split over threads: OpenMP, the same libgomp as oneDNN, so that library calls and generated
// kernels share one pool. Tiny work stays on the calling thread. The body must not throw.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace ferrule {

/// Threads that the calling thread's parallel work uses from now on; 0 = one a physical core we may
/// use.
void set_threads(int threads);
int threads();

/// Kernels that the calling thread has called so far: pieces of parallel work, however many threads
/// they took, and calls of a library, those aside that are part of a piece of parallel work.
int64_t kernels_called();
/// For calls of a library, which splits its work itself, and where there is nothing to split.
void count_kernel();
/// What counts as one kernel though it takes several pieces of work one after the other.
class OneKernel {
 public:
  OneKernel();
  ~OneKernel();
  OneKernel(const OneKernel&) = delete;
};

/// fn(context, begin, end) over disjoint ranges that cover [0, n), each at least `grain` long (but
/// the last).
void parallel_ranges(int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* context);

/// As parallel_ranges, for a callable `body(begin, end)`.
template <class Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  if (n <= 0) return count_kernel();
  using B = std::remove_reference_t<Body>;
  parallel_ranges(
      n, grain, [](void* c, int64_t begin, int64_t end) { (*static_cast<B*>(c))(begin, end); },
      const_cast<std::remove_const_t<B>*>(std::addressof(body)));
}

/// fn(context, me, team) once on each of `parts` threads (or fewer), me in [0, team). Where team is
/// larger than 1, team_barrier() inside fn waits for all of them.
void parallel_team(int64_t parts, void (*fn)(void*, int me, int team), void* context);
void team_barrier();

/// Which of those that share the innermost of these calls the calling thread is, in [0, threads()):
/// whoever works on memory of its own finds it by this. Parallel work inside of parallel work stays
/// on one thread, which then is thread 0.
int parallel_thread();

/// As parallel_team, for a callable `body(me, team)`.
template <class Body>
void on_team(int64_t parts, Body&& body) {
  using B = std::remove_reference_t<Body>;
  parallel_team(
      parts, [](void* c, int me, int team) { (*static_cast<B*>(c))(me, team); },
      const_cast<std::remove_const_t<B>*>(std::addressof(body)));
}

}  // namespace ferrule
