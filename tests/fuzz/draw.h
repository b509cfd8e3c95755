// Drawing at random: the same draws for the same seed, with every compiler and standard library.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ferrule::fuzz {

using Dims = std::vector<int64_t>;
using Strings = std::vector<std::string>;

class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d) {}

  /// splitmix64.  source: https://prng.di.unimi.it/splitmix64.c
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T of(const std::vector<T>& all) {
    return all[static_cast<size_t>(below(static_cast<int64_t>(all.size())))];
  }
  int64_t of(std::initializer_list<int64_t> all) {
    return all.begin()[below(static_cast<int64_t>(all.size()))];
  }
  template <class T>
  void shuffle(std::vector<T>& all) {
    for (size_t k = all.size(); k > 1; --k)
      std::swap(all[k - 1], all[static_cast<size_t>(below(static_cast<int64_t>(k)))]);
  }

 private:
  uint64_t state_;
};

}  // namespace ferrule::fuzz
