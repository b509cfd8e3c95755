#include "tests/fuzz/workers.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

namespace ferrule::fuzz {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// What a process and its threads have computed so far; 0: it is gone.
double processor_seconds(pid_t process) {
  clockid_t clock{};
  return clock_getcpuclockid(process, &clock) == 0 ? seconds_of(clock) : 0;
}

/// What all processes see.
struct Shared {
  std::atomic<uint64_t> next{0};
  struct Slot {
    std::atomic<uint64_t> piece{0};
    std::atomic<double> began{0};     ///< 0: between two pieces
    std::atomic<double> computed{0};  ///< by the process, before the piece
  } slots[64];
};

struct Worker {
  pid_t child = -1;
  int from = -1;  ///< its results: number, length, text
  std::string buffer;
  bool stopped = false;  ///< by us, for its time
};

void write_all(int to, const void* data, size_t bytes) {
  for (const char* p = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t n = write(to, p, bytes);
    if (n <= 0) _exit(0);  // nobody reads any more
    p += n, bytes -= static_cast<size_t>(n);
  }
}

[[noreturn]] void do_pieces(const Work& work, double until, Shared& shared, Shared::Slot& slot,
                            int to, const std::function<std::string(uint64_t)>& piece) {
  for (;;) {
    const uint64_t k = shared.next++;
    if (k >= work.count || (work.seconds > 0 && now() > until)) _exit(0);
    const uint64_t n = work.first + k;
    slot.piece = n, slot.computed = seconds_of(CLOCK_PROCESS_CPUTIME_ID), slot.began = now();
    const std::string text = piece(n);
    slot.began = 0;
    const uint64_t head[2] = {n, text.size()};
    write_all(to, head, sizeof head);
    write_all(to, text.data(), text.size());
  }
}

/// Whole results off the buffer's front.
void take_results(std::string& buffer,
                  const std::function<void(uint64_t, const std::string&)>& take) {
  uint64_t head[2];
  while (buffer.size() >= sizeof head) {
    std::memcpy(head, buffer.data(), sizeof head);
    if (buffer.size() - sizeof head < head[1]) return;
    take(head[0], buffer.substr(sizeof head, head[1]));
    buffer.erase(0, sizeof head + head[1]);
  }
}

std::string how_it_ended(const Worker& w, int status, double limit) {
  if (w.stopped) return fmt::format("does not end within {} s of processor time", limit);
  if (WIFSIGNALED(status))
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("ends the process with status {}", WEXITSTATUS(status));
}

}  // namespace

void in_children(const Work& work, const std::function<std::string(uint64_t)>& piece,
                 const std::function<void(uint64_t, const std::string&)>& take,
                 const std::function<void(uint64_t, const std::string&)>& lost) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& shared = *new (memory) Shared;
  const double until = now() + work.seconds;
  std::vector<Worker> workers(static_cast<size_t>(std::min(work.workers, 64)));
  auto start = [&](size_t k) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    std::fflush(nullptr);
    workers[k] = {fork(), ends[0], {}, false};
    if (workers[k].child == 0) {
      close(ends[0]);
      do_pieces(work, until, shared, shared.slots[k], ends[1], piece);
    }
    close(ends[1]);
  };
  for (size_t k = 0; k < workers.size(); ++k) start(k);
  for (;;) {
    std::vector<pollfd> wait;
    for (const Worker& w : workers)
      wait.push_back({w.from, POLLIN, 0});  // a worker that is done has -1, which poll skips
    bool any = false;
    for (const Worker& w : workers) any = any || w.child > 0;
    if (!any) break;
    poll(wait.data(), wait.size(), 200);
    for (size_t k = 0; k < workers.size(); ++k) {
      Worker& w = workers[k];
      Shared::Slot& slot = shared.slots[k];
      if (w.child <= 0) continue;
      if (const double began = slot.began;
          began > 0 && !w.stopped &&
          (processor_seconds(w.child) - slot.computed > work.limit ||
           now() - began > kBusy * work.limit))
        w.stopped = true, kill(w.child, SIGKILL);
      if (!(wait[k].revents & (POLLIN | POLLHUP))) continue;
      char bytes[1 << 16];
      if (const ssize_t n = ::read(w.from, bytes, sizeof bytes); n > 0) {
        w.buffer.append(bytes, static_cast<size_t>(n));
        take_results(w.buffer, take);
        continue;
      }
      int status = 0;
      waitpid(w.child, &status, 0);
      close(w.from);
      const bool died = slot.began > 0;
      if (died) lost(slot.piece, how_it_ended(w, status, work.limit));
      slot.began = 0;
      w.child = w.from = -1;
      if (died) start(k);
    }
  }
  munmap(memory, sizeof(Shared));
}

}  // namespace ferrule::fuzz
