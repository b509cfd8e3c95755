// The memory of a large constant, which the system gets back while nobody needs the bytes in their
// order: the kernels have packed the weights into an order of their own, and can write them back.
// Addresses stay; who asks the tensor for its bytes finds them written again. Only for private
// memory: what a file backs the system takes back by itself.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

namespace ferrule {

class Residence {
 public:
  /// Writes the bytes that were given back, all of them and bit by bit the same.
  using Restore = std::function<void(void* bytes)>;

  Residence(void* at, int64_t bytes);
  ~Residence();
  Residence(const Residence&) = delete;
  Residence& operator=(const Residence&) = delete;

  /// Before the bytes are read.
  void require() {
    if (away_.load(std::memory_order_acquire)) [[unlikely]]
      fetch();
  }
  /// Somebody keeps the address and reads without asking: the bytes stay until as many let go.
  void hold();
  void let_go();
  /// The whole pages go back until require(). false: they are held, or there are none. Nobody may
  /// be reading: who reads while other threads make plans holds the bytes meanwhile.
  bool give_back(Restore restore);

  /// What somebody computed from the bytes and asks for again, so that they need not come for it;
  /// 0: nothing yet.
  std::atomic<uint64_t> sample = 0;

  static int64_t given_back();  ///< bytes of all constants that are away now

 private:
  void fetch();
  void* at_;
  int64_t bytes_;
  std::atomic<bool> away_ = false;
  std::mutex mutex_;
  int holders_ = 0;
  int64_t away_bytes_ = 0;
  Restore restore_;
};

}  // namespace ferrule
