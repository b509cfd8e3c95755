// What is largest along an axis and the first so many, against sorting all of it plainly.
#include "engine/semantics/line_order.h"

#include <doctest/doctest.h>

#include <numeric>
#include <random>
#include <vector>

namespace ferrule {
namespace {

/// Few values, so that many are equal; of floats some are NaN, infinite, or a zero of either sign.
template <class T>
T drawn(std::mt19937& rng) {
  const unsigned what = rng() % 40;
  if constexpr (std::is_floating_point_v<T>) {
    const T inf = std::numeric_limits<T>::infinity();
    if (what < 6) return std::vector<T>{std::nan(""), inf, -inf, T{0}, -T{0}, T{1}}[what];
  }
  return static_cast<T>(what) - static_cast<T>(20);
}

/// The order of a line's elements, of equals the first before the last.
template <class T>
std::vector<int64_t> sorted(const T* x, int64_t length, int64_t step, bool largest) {
  std::vector<int64_t> all(static_cast<size_t>(length));
  std::iota(all.begin(), all.end(), 0);
  auto more = [&](int64_t a, int64_t b) {
    const T v = x[a * step], w = x[b * step];
    return w == w && (v != v || v > w);
  };
  std::ranges::stable_sort(all,
                           [&](int64_t a, int64_t b) { return largest ? more(a, b) : more(b, a); });
  return all;
}

template <class T>
void check_lines(const Lines& l, std::mt19937& rng) {
  CAPTURE(l.length);
  CAPTURE(l.step);
  std::vector<T> x(static_cast<size_t>(l.size() * l.length));
  for (T& v : x) v = drawn<T>(rng);
  for (const bool largest : {true, false}) {
    std::vector<int64_t> first(static_cast<size_t>(l.size()), -1), last(first);
    const int64_t middle = l.size() / 2;
    for (auto [begin, end] : {std::pair(int64_t{0}, middle), std::pair(middle, l.size())}) {
      extremes(x.data(), l, begin, end, largest, false, first.data());
      extremes(x.data(), l, begin, end, largest, true, last.data());
    }
    for (int64_t line = 0; line < l.size(); ++line) {
      const T* from = x.data() + l.start(line);
      const auto order = sorted(from, l.length, l.step, largest);
      auto same = [&](int64_t a, int64_t b) {
        const T v = from[a * l.step], w = from[b * l.step];
        return v == w || (v != v && w != w);
      };
      // In a search for the smallest NaN is the smallest, in an order it is the largest.
      const bool nan = std::ranges::any_of(
          order, [&](int64_t i) { return !(from[i * l.step] == from[i * l.step]); });
      const auto extreme = nan ? sorted(from, l.length, l.step, true) : order;
      size_t equals = 1;
      while (equals < extreme.size() && same(extreme[equals], extreme[0])) ++equals;
      CHECK(first[line] == extreme[0]);
      CHECK(last[line] == extreme[equals - 1]);
      for (int64_t k : {int64_t{0}, int64_t{1}, l.length / 3, l.length}) {
        std::vector<Ranked<T>> found(static_cast<size_t>(ranking_room(k)));
        first_of_line(from, l.length, l.step, largest, found.data(), k);
        std::vector<int64_t> at;
        for (int64_t i = 0; i < k; ++i) at.push_back(found[i].at);
        CHECK(at == std::vector<int64_t>(order.begin(), order.begin() + k));
        for (int64_t i = 0; i < k; ++i)
          CHECK((found[i].value == from[at[i] * l.step] || found[i].value != found[i].value));
      }
    }
  }
}

}  // namespace

TEST_CASE("the order along an axis is that of sorting it") {
  std::mt19937 rng(1);
  for (int64_t length : {1, 2, 15, 16, 17, 33, 100, 500})
    for (int64_t step : {1, 2, 63, 64, 65, 130}) {
      const Lines l{length * step > 5000 ? 1 : 3, length, step};
      check_lines<float>(l, rng);
      check_lines<int8_t>(l, rng);
      if (step < 63) check_lines<double>(l, rng), check_lines<int64_t>(l, rng);
    }
}

}  // namespace ferrule
