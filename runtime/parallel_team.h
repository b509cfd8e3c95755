// What parallel.cpp needs of the threads behind it: parallel_openmp.cpp has libgomp's,
// parallel_threads.cpp those of the build under ThreadSanitizer. set_threads, threads and
// team_barrier (parallel.h) are theirs, too.
#pragma once
#include <cstdint>

namespace ferrule {

/// fn(context, me, team) on each of `parts` threads, or of fewer: team of them, me in [0, team).
/// Not within a team.
void run_team(int64_t parts, void (*fn)(void*, int me, int team), void* context);
/// Whether the calling thread is one of a team's that has more than one, and which.
bool in_team();
int team_member();

}  // namespace ferrule
