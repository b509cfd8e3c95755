// The numbers that a proof draws: the same for the same rule text on every machine and with every
// standard library, so that a proof can be repeated and a counter-example found again.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace ferrule {

class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  /// Seeded by a text.
  static Draw of(std::string_view text);

  uint64_t bits();
  /// 0 … n - 1; 0 where there is nothing to choose.
  int64_t below(int64_t n) {
    return n > 0 ? static_cast<int64_t>(bits() % static_cast<uint64_t>(n)) : 0;
  }
  int64_t between(int64_t least, int64_t most) { return least + below(most - least + 1); }
  bool chance(int percent) { return below(100) < percent; }
  /// [0, 1)
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double between(double least, double most) { return least + (most - least) * unit(); }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(std::ssize(list)))];
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (size_t n = list.size(); n > 1; --n)
      std::swap(list[n - 1], list[static_cast<size_t>(below(static_cast<int64_t>(n)))]);
  }

 private:
  uint64_t state_;
};

}  // namespace ferrule
