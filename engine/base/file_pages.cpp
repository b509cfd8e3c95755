#include "engine/base/file_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace ferrule {
namespace {

/// What is mapped: of other memory, letting go of pages would lose what is in them.
struct MappedRanges {
  std::mutex mutex;
  std::map<uintptr_t, uintptr_t> end_of;  ///< by its begin
};

/// Never destroyed: tensors in static objects may outlive it.
MappedRanges& mapped_ranges() {
  static auto* ranges = new MappedRanges;
  return *ranges;
}

}  // namespace

std::shared_ptr<const void> map_file_pages(int fd, size_t size) {
  void* p = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (p == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(p);
  MappedRanges& all = mapped_ranges();
  {
    std::lock_guard lock(all.mutex);
    all.end_of[begin] = begin + size;
  }
  return {p, [size](const void* q) {
            MappedRanges& ranges = mapped_ranges();
            std::lock_guard lock(ranges.mutex);
            ranges.end_of.erase(reinterpret_cast<uintptr_t>(q));
            ::munmap(const_cast<void*>(q), size);
          }};
}

void let_go_file_pages(const void* at, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(at);
  uintptr_t end = begin + bytes;
  MappedRanges& all = mapped_ranges();
  std::lock_guard lock(all.mutex);
  auto it = all.end_of.upper_bound(begin);
  if (it == all.end_of.begin() || (--it)->second < end) return;
  begin = (begin + page - 1) / page * page, end = end / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace ferrule
