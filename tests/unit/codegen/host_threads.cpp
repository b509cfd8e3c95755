#include "tests/unit/codegen/host_threads.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "engine/base/diagnostics.h"
#include "engine/base/dtype.h"

namespace ferrule::test {
namespace {

constexpr size_t kStackBytes = 64 << 10, kPage = 4096;

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

  void start_at(void (*function)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = static_cast<char*>(memory_) + kPage;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, function, 0);
  }

  ucontext_t context;

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

class Block {
 public:
  std::string run(HostEntry entry, const void* arguments, bool backward) {
    Dim3 d = host_runtime().block_dim;
    entry_ = entry;
    arguments_ = arguments;
    backward_ = backward;
    error_.clear();
    threads_.resize(size_t{d.x} * d.y * d.z);
    for (Thread& t : threads_) t.state = State::running;
    ready_.clear();
    started_ = ended_ = at_barrier_ = 0;
    while (error_.empty()) {
      Fibre* next = next_fibre();
      if (!next) break;
      swapcontext(&scheduler_, &next->context);
    }
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
    for (size_t k = 0; k < threads_.size(); ++k) release(k);
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
      swapcontext(&running_->context, &scheduler_);
    }
  }

 private:
  static void work();

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
    HostRuntime& r = host_runtime();
    auto id = static_cast<unsigned>(k);
    current_ = k;
    r.thread = {id % r.block_dim.x, id / r.block_dim.x % r.block_dim.y,
                id / r.block_dim.x / r.block_dim.y};
    r.lane = id % kWarp;
  }

  /// Until another thread releases this one; next_fibre makes it the current one again.
  void wait() {
    Fibre* mine = running_;
    swapcontext(&mine->context, &scheduler_);
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
  ucontext_t scheduler_;
};

Block& block() {
  static Block one;
  return one;
}
void Block::work() { block().loop(); }

}  // namespace

HostRuntime& host_runtime() {
  static HostRuntime runtime = [] {
    HostRuntime r;
    r.block_barrier = [](int line) { block().barrier(line); };
    r.warp_meeting = [](int line, unsigned mask, uint64_t value) {
      return block().meeting(line, mask, value);
    };
    r.f16_to_float = f16_to_float;
    r.float_to_f16 = float_to_f16;
    return r;
  }();
  return runtime;
}

std::string run_block(HostEntry entry, const void* arguments, bool backward) {
  return block().run(entry, arguments, backward);
}

std::string run_grid(HostEntry entry, void (*clear)(), std::string_view arguments, Dim3 grid,
                     Dim3 block) {
  // Aligned as the kernel's struct is.
  std::vector<uint64_t> copy((arguments.size() + 7) / 8);
  std::copy(arguments.begin(), arguments.end(), reinterpret_cast<char*>(copy.data()));
  HostRuntime& r = host_runtime();
  r.grid_dim = grid;
  r.block_dim = block;
  bool backward = false;
  for (r.block.z = 0; r.block.z < grid.z; ++r.block.z)
    for (r.block.y = 0; r.block.y < grid.y; ++r.block.y)
      for (r.block.x = 0; r.block.x < grid.x; ++r.block.x, backward = !backward) {
        clear();
        if (std::string wrong = run_block(entry, copy.data(), backward); !wrong.empty())
          return fmt::format("block {}, {}, {}: {}", r.block.x, r.block.y, r.block.z, wrong);
      }
  return {};
}

}  // namespace ferrule::test
