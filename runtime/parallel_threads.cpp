// parallel_team.h on std::thread, for builds under ThreadSanitizer in the place of
// parallel_openmp.cpp: it sees neither what libgomp's threads wait for nor that they did. As there,
// a calling thread keeps the threads it has started.
#include <algorithm>
#include <barrier>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/parallel.h"
#include "runtime/parallel_team.h"

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

}  // namespace

void set_threads(int threads) { wanted = threads; }

int threads() {
  return wanted > 0 ? wanted : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void run_team(int64_t parts, void (*fn)(void*, int, int), void* context) {
  thread_local Team team;
  Region region(fn, context, static_cast<int>(parts));
  team.run(region);
}

void team_barrier() {
  if (inside) inside->barrier.arrive_and_wait();
}

bool in_team() { return inside != nullptr; }
int team_member() { return place; }

}  // namespace ferrule
