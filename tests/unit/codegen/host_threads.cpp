#include "tests/unit/codegen/host_threads.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "engine/base/diagnostics.h"
#include "engine/base/dtype.h"
#include "tests/unit/codegen/host_races.h"
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace ferrule::test {
namespace {

constexpr size_t kStackBytes = 64 << 10, kPage = 4096;

/// Where somebody stands who may be left and come back to; ThreadSanitizer is told of both.
struct Place {
  ucontext_t context;
  [[maybe_unused]] void* watched = nullptr;
};
void leave(Place& from, Place& to) {
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(to.watched, 0);
#endif
  swapcontext(&from.context, &to.context);
}

/// A stack with a page below that faults, and where its thread stands.
class Fibre {
 public:
  Fibre() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    memory_ = mmap(nullptr, kStackBytes + kPage, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory_ == MAP_FAILED || mprotect(memory_, kPage, PROT_NONE) != 0) std::abort();
  }
  ~Fibre() { munmap(memory_, kStackBytes + kPage); }
  Fibre(const Fibre&) = delete;
  bool holds(uintptr_t at) const {
    return at - reinterpret_cast<uintptr_t>(memory_) < kStackBytes + kPage;
  }

  void start_at(void (*function)()) {
    ucontext_t& context = place.context;
    getcontext(&context);
    context.uc_stack.ss_sp = static_cast<char*>(memory_) + kPage;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, function, 0);
#ifdef __SANITIZE_THREAD__
    if (place.watched) __tsan_destroy_fiber(place.watched);
    place.watched = __tsan_create_fiber(0);
#endif
  }

  Place place;

 private:
  void* memory_;
};

struct Thread {
  enum class State : uint8_t { running, at_barrier, at_meeting, ended } state = State::running;
  Fibre* fibre = nullptr;
  int line = 0;
  unsigned mask = 0;
  uint64_t value = 0;
  WarpValues met;
};
using State = Thread::State;

class Block;
thread_local Block* now = nullptr;  ///< the block that this thread of the host runs

class Block {
 public:
  Block();
  HostRuntime runtime;

  /// The block that `runtime` names. `races`: sees what it does, or null.
  std::string run(const HostKernel& kernel, const void* arguments, bool backward,
                  Races* races = nullptr) {
    Dim3 d = runtime.block_dim;
    std::ranges::fill(kernel.shared, char(0xff));
    entry_ = kernel.run;
    arguments_ = arguments;
    backward_ = backward;
    error_.clear();
    threads_.resize(size_t{d.x} * d.y * d.z);
    shared_ = kernel.shared;
    races_ = races;
    const Dim3 at = runtime.block, grid = runtime.grid_dim;
    watched_ = {(at.z * grid.y + at.y) * grid.x + at.x, 0, {}, {}};
    watched_.threads.resize(races ? threads_.size() : 0);
    now = this;
#ifdef __SANITIZE_THREAD__
    scheduler_.watched = __tsan_get_current_fiber();
#endif
    for (Thread& t : threads_) t.state = State::running;
    ready_.clear();
    started_ = ended_ = at_barrier_ = 0;
    while (error_.empty()) {
      Fibre* next = next_fibre();
      if (!next) break;
      leave(scheduler_, next->place);
    }
    now = nullptr;
    if (error_.empty() && ended_ < threads_.size()) error_ = stuck();
    if (!error_.empty()) abandon();
    return error_;
  }

  void barrier(int line) {
    Thread& me = threads_[current_];
    me.state = State::at_barrier;
    me.line = line;
    if (++at_barrier_ < threads_.size()) return wait();
    at_barrier_ = 0;
    for (Thread& t : threads_)
      if (t.line != line)
        return fail(fmt::format("threads of a block meet at __syncthreads of lines {} and {}", line,
                                t.line));
    if (races_) Races::barrier(watched_);
    for (size_t k = 0; k < threads_.size(); ++k) release(k);
  }

  /// What other blocks of the host do may come in between.
  void fence() {
    if (!races_) return;
    Races::fence(watched_, static_cast<uint32_t>(current_));
    std::this_thread::yield();
  }
  void begin_atomic(uintptr_t at, size_t bytes) {
    if (races_) races_->begin_atomic(watched_, static_cast<uint32_t>(current_), own(at), bytes);
  }
  void end_atomic() {
    if (!races_) return;
    races_->end_atomic();
    std::this_thread::yield();
  }
  void access(uintptr_t at, size_t bytes, bool writes) {
    // A thread's own variables are on its stack.
    if (races_ && !running_->holds(at))
      races_->access(watched_, static_cast<uint32_t>(current_), own(at), bytes, writes, false);
  }

  const WarpValues* meeting(int line, unsigned mask, uint64_t value) {
    Thread& me = threads_[current_];
    me.state = State::at_meeting;
    me.line = line;
    me.mask = mask;
    me.value = value;
    size_t first = current_ / kWarp * kWarp,
           lanes = std::min<size_t>(kWarp, threads_.size() - first);
    unsigned wanted = lanes == kWarp ? mask : mask & ((1u << lanes) - 1);
    if (!(wanted >> (current_ - first) & 1)) {
      fail(
          fmt::format("line {}: a thread meets its warp under a mask that does not have it", line));
      return nullptr;
    }
    WarpValues all{{}, wanted};
    for (size_t lane = 0; lane < kWarp; ++lane) {
      all.value[lane] =
          0xfff7'dead'fff7'deadull;  // of a lane that is not there: a NaN in either width
      if (!(wanted >> lane & 1)) continue;
      const Thread& t = threads_[first + lane];
      if (t.state != State::at_meeting || t.mask != mask) {
        wait();
        return &me.met;
      }
      all.value[lane] = t.value;
    }
    for (size_t lane = 0; lane < lanes; ++lane)
      if (wanted >> lane & 1) {
        Thread& t = threads_[first + lane];
        if (t.line != line)
          fail(fmt::format("threads of a warp meet at lines {} and {}", line, t.line));
        t.met = all;
        release(first + lane);
      }
    return &me.met;
  }

  /// What a fibre does: threads one after another, as long as they do not wait.
  void loop() {
    for (;;) {
      while (started_ < threads_.size()) {
        size_t k = started_++;
        become(backward_ ? threads_.size() - 1 - k : k);
        threads_[current_].fibre = running_;
        entry_(arguments_);
        threads_[current_].state = State::ended;
        ++ended_;
      }
      idle_.push_back(running_);
      leave(running_->place, scheduler_);
    }
  }

 private:
  static void work();

  /// Shared memory of different blocks lies at different addresses that nobody has.
  uintptr_t own(uintptr_t at) const {
    const uintptr_t in = at - reinterpret_cast<uintptr_t>(shared_.data());
    return in < shared_.size() ? (uintptr_t{watched_.number} + 1) << 47 | in : at;
  }

  Fibre* next_fibre() {
    if (!ready_.empty()) {
      size_t k = backward_ ? ready_.back() : ready_.front();
      backward_ ? ready_.pop_back() : ready_.pop_front();
      become(k);
      return running_ = threads_[k].fibre;
    }
    if (started_ == threads_.size()) return nullptr;
    if (idle_.empty()) {
      fibres_.push_back(std::make_unique<Fibre>());
      fibres_.back()->start_at(work);
      idle_.push_back(fibres_.back().get());
    }
    running_ = idle_.back();
    idle_.pop_back();
    return running_;
  }

  void become(size_t k) {
    HostRuntime& r = runtime;
    auto id = static_cast<unsigned>(k);
    current_ = k;
    r.thread = {id % r.block_dim.x, id / r.block_dim.x % r.block_dim.y,
                id / r.block_dim.x / r.block_dim.y};
    r.lane = id % kWarp;
  }

  /// Until another thread releases this one; next_fibre makes it the current one again.
  void wait() {
    Fibre* mine = running_;
    leave(mine->place, scheduler_);
  }
  void release(size_t k) {
    threads_[k].state = State::running;
    if (k != current_) ready_.push_back(k);
  }
  void fail(std::string what) {
    error_ = std::move(what);
    wait();  // for ever
  }

  std::string stuck() const {
    size_t barrier = 0, meeting = 0;
    std::string where;
    for (const Thread& t : threads_) {
      barrier += t.state == State::at_barrier;
      meeting += t.state == State::at_meeting;
      if (t.state != State::ended && where.empty())
        where = fmt::format(", the first at line {}", t.line);
    }
    return fmt::format("of {} threads {} ended, {} wait at __syncthreads and {} for their warp{}",
                       threads_.size(), ended_, barrier, meeting, where);
  }
  void abandon() {
    idle_.clear();
    for (auto& f : fibres_) {
      f->start_at(work);
      idle_.push_back(f.get());
    }
  }

  HostEntry entry_ = nullptr;
  const void* arguments_ = nullptr;
  bool backward_ = false;
  std::string error_;
  std::vector<Thread> threads_;
  std::deque<size_t> ready_;  // may go on
  size_t started_ = 0, ended_ = 0, at_barrier_ = 0, current_ = 0;
  std::vector<std::unique_ptr<Fibre>> fibres_;
  std::vector<Fibre*> idle_;
  Fibre* running_ = nullptr;
  Place scheduler_;
  std::span<char> shared_;
  Races* races_ = nullptr;
  Races::Block watched_;
};

Block::Block() {
  runtime.block_barrier = [](int line) { now->barrier(line); };
  runtime.warp_meeting = [](int line, unsigned mask, uint64_t value) {
    return now->meeting(line, mask, value);
  };
  runtime.fence = [] { now->fence(); };
  runtime.begin_atomic = [](const volatile void* at, size_t bytes) {
    now->begin_atomic(reinterpret_cast<uintptr_t>(at), bytes);
  };
  runtime.end_atomic = [] { now->end_atomic(); };
  runtime.access = [](const void* at, size_t bytes, bool writes) {
    now->access(reinterpret_cast<uintptr_t>(at), bytes, writes);
  };
  runtime.f16_to_float = f16_to_float;
  runtime.float_to_f16 = float_to_f16;
}
void Block::work() { now->loop(); }

/// One for each block that runs at a time.
Block& place(size_t racer) {
  static std::array<Block, kRacers> all;
  return all[racer];
}

/// Aligned as the kernel's struct is.
std::vector<uint64_t> aligned(std::string_view arguments) {
  std::vector<uint64_t> copy((arguments.size() + 7) / 8);
  std::memcpy(copy.data(), arguments.data(), arguments.size());
  return copy;
}

/// The `k`th block of a launch.
std::string run_block(Block& b, size_t k, const HostKernel& kernel, const void* arguments,
                      Dim3 grid, Dim3 block, bool backward, Races* races) {
  const auto at = static_cast<unsigned>(k);
  b.runtime.grid_dim = grid;
  b.runtime.block_dim = block;
  b.runtime.block = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
  const std::string wrong = b.run(kernel, arguments, backward, races);
  const Dim3 i = b.runtime.block;
  return wrong.empty() ? wrong : fmt::format("block {}, {}, {}: {}", i.x, i.y, i.z, wrong);
}

}  // namespace

HostRuntime& host_runtime(size_t racer) { return place(racer).runtime; }

std::string run_grid(const HostKernel& kernel, std::string_view arguments, Dim3 grid, Dim3 block) {
  const std::vector<uint64_t> own = aligned(arguments);
  for (size_t k = 0; k < size_t{grid.x} * grid.y * grid.z; ++k)
    if (std::string wrong = run_block(place(0), k, kernel, own.data(), grid, block, k % 2, nullptr);
        !wrong.empty())
      return wrong;
  return {};
}

std::string race_grid(std::span<const HostKernel> copies, std::string_view arguments, Dim3 grid,
                      Dim3 block, uint64_t seed) {
  const std::vector<uint64_t> own = aligned(arguments);
  std::mt19937_64 rng(seed);
  std::vector<size_t> order(size_t{grid.x} * grid.y * grid.z);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::shuffle(order, rng);
  const uint64_t backward = rng();
  Races races;
  std::atomic<size_t> next = 0;
  std::array<std::string, kRacers> wrong;
  auto work = [&](size_t racer) {
    for (size_t k; wrong[racer].empty() && (k = next++) < order.size();)
      wrong[racer] = run_block(place(racer), order[k], copies[racer], own.data(), grid, block,
                               backward >> k % 64 & 1, &races);
  };
  std::vector<std::thread> racers;
  for (size_t k = 0; k < copies.size(); ++k) racers.emplace_back(work, k);
  for (std::thread& t : racers) t.join();
  for (const std::string& w : wrong)
    if (!w.empty()) return w;
  return races.found();
}

}  // namespace ferrule::test
