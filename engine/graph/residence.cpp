#include "engine/graph/residence.h"

#include <sys/mman.h>

namespace ferrule {
namespace {

std::atomic<int64_t> total = 0;

}  // namespace

Residence::Residence(void* at, int64_t bytes) : at_(at), bytes_(bytes) {}

Residence::~Residence() { total -= away_bytes_; }

void Residence::hold() {
  std::lock_guard lock(mutex_);
  ++holders_;
}

void Residence::let_go() {
  std::lock_guard lock(mutex_);
  --holders_;
}

bool Residence::give_back(Restore restore) {
  constexpr uintptr_t kPage = 4096;
  std::lock_guard lock(mutex_);
  if (holders_) return false;
  if (away_) {
    restore_ = std::move(restore);
    return true;
  }
  // Neighbours on the first and the last page may be anybody's.
  const auto first = reinterpret_cast<uintptr_t>(at_);
  const uintptr_t begin = (first + kPage - 1) / kPage * kPage,
                  end = (first + static_cast<uintptr_t>(bytes_)) / kPage * kPage;
  if (begin >= end || ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) != 0)
    return false;
  restore_ = std::move(restore);
  away_bytes_ = static_cast<int64_t>(end - begin);
  total += away_bytes_;
  away_.store(true, std::memory_order_release);
  return true;
}

void Residence::fetch() {
  std::lock_guard lock(mutex_);
  if (!away_) return;  // another thread was quicker
  restore_(at_);
  restore_ = nullptr;  // what it wrote from is needed no longer
  total -= away_bytes_;
  away_bytes_ = 0;
  away_.store(false, std::memory_order_release);
}

int64_t Residence::given_back() { return total; }

}  // namespace ferrule
