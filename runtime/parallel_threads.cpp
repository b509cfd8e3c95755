// parallel.h on std::thread, for builds under ThreadSanitizer in the place of parallel.cpp: it sees
// neither what libgomp's threads wait for nor that they did. As there, a calling thread keeps the
// threads it has started, and parallel work inside parallel work stays on its thread.
#include <algorithm>
#include <barrier>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/parallel.h"

namespace ferrule {
namespace {

struct Region {
  Region(void (*f)(void*, int, int), void* c, int n) : fn(f), context(c), team(n), barrier(n) {}
  void (*fn)(void*, int me, int team);
  void* context;
  int team;
  std::barrier<> barrier;
};

thread_local int wanted = 0;            ///< set_threads; 0 = all
thread_local Region* inside = nullptr;  ///< what the thread works on
thread_local int place = 0;
thread_local int alone = 0;  ///< calls that the thread works off alone

/// Parallel work on one thread, which is thread 0 of it.
template <class F>
void by_itself(F&& f) {
  ++alone;
  f();
  --alone;
}

void take_part(Region& region, int me) {
  inside = &region, place = me;
  region.fn(region.context, me, region.team);
  inside = nullptr, place = 0;
}

/// The other threads of a calling thread's regions: they sleep until the next one.
class Team {
 public:
  ~Team() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    begin_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  void run(Region& region) {
    {
      std::lock_guard lock(mutex_);
      for (int me = static_cast<int>(threads_.size()) + 1; me < region.team; ++me)
        threads_.emplace_back([this, me, seen = rounds_] { wait_for_work(me, seen); });
      region_ = &region, left_ = region.team - 1, ++rounds_;
    }
    begin_.notify_all();
    take_part(region, 0);
    std::unique_lock lock(mutex_);
    end_.wait(lock, [&] { return left_ == 0; });
    region_ = nullptr;
  }

 private:
  void wait_for_work(int me, uint64_t seen) {
    std::unique_lock lock(mutex_);
    for (;;) {
      begin_.wait(lock, [&] { return stop_ || rounds_ != seen; });
      if (stop_) return;
      seen = rounds_;
      if (!region_ || me >= region_->team) continue;  // a region that does without this thread
      Region& region = *region_;
      lock.unlock();
      take_part(region, me);
      lock.lock();
      if (--left_ == 0) end_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  std::vector<std::thread> threads_;
  Region* region_ = nullptr;
  uint64_t rounds_ = 0;
  int left_ = 0;
  bool stop_ = false;
};

void run_team(int64_t parts, void (*fn)(void*, int, int), void* context) {
  thread_local Team team;
  Region region(fn, context, static_cast<int>(parts));
  team.run(region);
}

}  // namespace

void set_threads(int threads) { wanted = threads; }

int threads() {
  return wanted > 0 ? wanted : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int parallel_thread() { return alone ? 0 : place; }

void parallel_ranges(int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* context) {
  const int64_t parts = std::min<int64_t>(threads(), n / std::max<int64_t>(grain, 1));
  if (parts <= 1 || inside) return by_itself([&] { fn(context, 0, n); });
  struct Ranges {
    int64_t n;
    void (*fn)(void*, int64_t, int64_t);
    void* context;
  } ranges{n, fn, context};
  run_team(
      parts,
      [](void* c, int me, int team) {
        const Ranges& r = *static_cast<Ranges*>(c);
        const int64_t begin = r.n * me / team, end = r.n * (me + 1) / team;
        if (begin < end) r.fn(r.context, begin, end);
      },
      &ranges);
}

void parallel_team(int64_t parts, void (*fn)(void*, int, int), void* context) {
  parts = std::min<int64_t>(threads(), parts);
  if (parts <= 1 || inside) return by_itself([&] { fn(context, 0, 1); });
  run_team(parts, fn, context);
}

void team_barrier() {
  if (inside) inside->barrier.arrive_and_wait();
}

}  // namespace ferrule
