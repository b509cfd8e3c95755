// Which accesses to memory nothing orders: two to one byte, a store among them, by threads of one
// block without a barrier between them, or of two blocks that no fence and atomic operation on
// either side connect. Ordered is what CUDA's memory model calls so, whatever order the threads
// happened to run in: a thread's fence hands on what came before it, its own and what barriers and
// other threads' fences made known to it, through the atomic operations that this thread does
// next; they are known to a thread that meets the same word in an atomic operation of its own and
// then fences. Atomic operations alone order nothing, nor do shuffles.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace ferrule::test {

/// Of one launch; blocks may run on several threads of the host, each block on one.
class Races {
 public:
  /// How far a block is known: what is older than its `barriers`th barrier, and of single threads
  /// what is older than so many fences of theirs.
  struct Seen {
    uint32_t barriers = 0;
    std::map<uint32_t, uint32_t> fences;
  };
  using Known = std::map<uint32_t, Seen>;  ///< by block
  struct Block {
    struct Thread {
      uint32_t fences = 0;
      Known known, met, told;  ///< met: by atomic operations; told: by those that follow
    };
    uint32_t number = 0, barriers = 0;
    Known known;
    std::vector<Thread> threads;
  };

  void access(const Block& b, uint32_t thread, uintptr_t at, size_t bytes, bool writes,
              bool atomic);
  static void barrier(Block& b);
  static void fence(Block& b, uint32_t thread);
  /// Nobody else is between these two.
  void begin_atomic(Block& b, uint32_t thread, uintptr_t at, size_t bytes);
  void end_atomic() { atomics_.unlock(); }

  /// The first that was found, or "".
  std::string found() const { return found_; }

 private:
  struct Access {
    uint32_t block = 0, thread = 0, barriers = 0, fences = 0;
    bool there = false, atomic = false;
  };
  struct Byte {
    Access write, read[2];  ///< the last ones
  };
  static constexpr uintptr_t kPage = 256;
  struct Shard {
    std::mutex mutex;
    std::unordered_map<uintptr_t, std::unique_ptr<std::array<Byte, kPage>>> pages;
  };

  static bool ordered(const Access& before, const Block& b, uint32_t thread);
  void report(const Access& before, const char* did, const Access& now, const char* does);

  std::array<Shard, 16> shards_;
  std::mutex atomics_;
  std::map<uintptr_t, Known> words_;  ///< what atomic operations left
  std::mutex report_;
  std::string found_;
};

}  // namespace ferrule::test
