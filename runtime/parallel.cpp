#include "runtime/parallel.h"

#include <algorithm>

#include "runtime/parallel_team.h"

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

int64_t kernels_called() { return called; }

void count_kernel() { called += alone == 0 && counted == 0 && !in_team(); }

OneKernel::OneKernel() {
  count_kernel();
  ++counted;
}
OneKernel::~OneKernel() { --counted; }

void parallel_ranges(int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* context) {
  count_kernel();
  const int64_t parts = std::min<int64_t>(threads(), n / std::max<int64_t>(grain, 1));
  if (parts <= 1 || in_team()) return by_itself([&] { fn(context, 0, n); });
  struct Ranges {
    int64_t n;
    void (*fn)(void*, int64_t, int64_t);
    void* context;
  } ranges{n, fn, context};
  run_team(
      parts,
      [](void* c, int me, int team) {  // the team can be smaller than asked for
        const Ranges& r = *static_cast<Ranges*>(c);
        const int64_t begin = r.n * me / team, end = r.n * (me + 1) / team;
        if (begin < end) r.fn(r.context, begin, end);
      },
      &ranges);
}

void parallel_team(int64_t parts, void (*fn)(void*, int, int), void* context) {
  count_kernel();
  parts = std::min<int64_t>(threads(), parts);
  if (parts <= 1 || in_team()) return by_itself([&] { fn(context, 0, 1); });
  run_team(parts, fn, context);
}

int parallel_thread() { return alone ? 0 : team_member(); }

}  // namespace ferrule
