// The order of the elements along an axis of a tensor: where the largest or smallest are (ArgMax,
// ArgMin), and the first so many (TopK). For the interpreter and for kernels.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace ferrule {

/// Lines along an axis: outer x step of them, `length` long, their elements `step` apart.
struct Lines {
  int64_t outer = 0, length = 0, step = 1;
  int64_t start(int64_t line) const { return line / step * length * step + line % step; }
  int64_t size() const { return outer * step; }
};
inline Lines lines_along(const std::vector<int64_t>& dims, size_t axis) {
  Lines l{1, dims[axis], 1};
  for (size_t k = 0; k < axis; ++k) l.outer *= dims[k];
  for (size_t k = axis + 1; k < dims.size(); ++k) l.step *= dims[k];
  return l;
}

/// NaN counts as the largest.
template <class T>
bool larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return (a > b) | ((a != a) & (b == b));
  return a > b;
}
/// In a search for the smallest it counts as the smallest.
template <class T>
bool smaller(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return (a < b) | ((a != a) & (b == b));
  return a < b;
}

constexpr int64_t kSearched = 64;  ///< lines that are searched side by side

/// best[k], at[k]: the element that wins over all others of line k, and where; wins(a, b): a, which
/// stands behind b, does. n lines, at most kSearched, begin at x[0], x[1], …
template <class Index, class T, class Wins>
__attribute__((optimize("O3"))) void search(const T* x, int64_t length, int64_t step, int64_t n,
                                            Wins wins, T* best, Index* at) {
  std::copy_n(x, n, best);
  std::fill_n(at, n, Index{0});
  for (int64_t i = 1; i < length; ++i)
    for (int64_t k = 0; k < n; ++k) {
      const T a = x[i * step + k];
      const bool won = wins(a, best[k]);
      best[k] = won ? a : best[k];
      at[k] = won ? static_cast<Index>(i) : at[k];
    }
}

/// The winner of one line without gaps, which is searched as several lines first.
template <class Index, class T, class Wins>
int64_t winner(const T* x, int64_t length, Wins wins) {
  constexpr int64_t kLanes = 16;
  T best[kLanes];
  Index at[kLanes];
  const int64_t rows = length / kLanes;
  search(x, std::max<int64_t>(rows, 1), kLanes, rows ? kLanes : 1, wins, best, at);
  T b = best[0];
  int64_t where = int64_t{at[0]} * kLanes;
  for (int64_t k = 1; rows && k < kLanes; ++k)
    if (const int64_t i = int64_t{at[k]} * kLanes + k;
        i > where ? wins(best[k], b) : !wins(b, best[k]))
      b = best[k], where = i;
  for (int64_t i = std::max<int64_t>(rows * kLanes, 1); i < length; ++i)
    if (wins(x[i], b)) b = x[i], where = i;
  return where;
}

/// y[line] = where in it the winner is, for lines [begin, end).
template <class Index, class T, class Wins>
void winners(const T* x, const Lines& l, int64_t begin, int64_t end, Wins wins, int64_t* y) {
  if (l.step == 1) {
    for (int64_t line = begin; line < end; ++line)
      y[line] = winner<Index>(x + line * l.length, l.length, wins);
    return;
  }
  for (int64_t line = begin, n = 0; line < end; line += n) {
    T best[kSearched];
    Index at[kSearched];
    n = std::min({kSearched, end - line, l.step - line % l.step});
    search(x + l.start(line), l.length, l.step, n, wins, best, at);
    std::copy_n(at, n, y + line);
  }
}

/// y[line] = where in it the largest (else smallest) element is, the first or last of several.
template <class T>
void extremes(const T* x, const Lines& l, int64_t begin, int64_t end, bool largest, bool last,
              int64_t* y) {
  auto search = [&](auto wins) {
    if (l.length <= std::numeric_limits<int32_t>::max())
      winners<int32_t>(x, l, begin, end, wins, y);
    else
      winners<int64_t>(x, l, begin, end, wins, y);
  };
  if (largest && last)
    search([](T a, T b) { return !larger(b, a); });
  else if (largest)
    search([](T a, T b) { return larger(a, b); });
  else if (last)
    search([](T a, T b) { return !smaller(b, a); });
  else
    search([](T a, T b) { return smaller(a, b); });
}

template <class T>
struct Ranked {
  T value;
  int64_t at;
};

template <class T, class Before>
__attribute__((optimize("O3"))) bool any_before(const T* x, int64_t n, int64_t step, T than,
                                                Before before) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) any |= before(x[i * step], than) ? 1 : 0;
  return any != 0;
}

/// The k largest (else smallest) elements of a line in order, of equals the first; for the smallest
/// NaN comes last. `length` elements `step` apart; k at most `length`; `first`: ranking_room(k).
inline int64_t ranking_room(int64_t k) { return 2 * k + 8; }
template <class T>
void first_of_line(const T* x, int64_t length, int64_t step, bool largest, Ranked<T>* first,
                   int64_t k) {
  if (k == 0) return;
  auto select = [&](auto before) {
    auto less = [&](const Ranked<T>& a, const Ranked<T>& b) {
      return before(a.value, b.value) || (!before(b.value, a.value) && a.at < b.at);
    };
    constexpr int64_t kBlock = 16;  // elements that are passed over at once
    constexpr int64_t kFew = 32;    // so many are kept in order, whose last one is a close bound
    int64_t found = 0;
    bool bounded = false;  // whether only what comes before `bound` can be among the first
    T bound{};
    auto shrink = [&] {
      std::nth_element(first, first + k - 1, first + found, less);
      found = k, bounded = true, bound = first[k - 1].value;
    };
    auto insert = [&](T v, int64_t at) {
      int64_t to = bounded ? k - 1 : found++;
      for (; to > 0 && before(v, first[to - 1].value); --to) first[to] = first[to - 1];
      first[to] = {v, at};
      if (found == k) bounded = true, bound = first[k - 1].value;
    };
    for (int64_t i = 0; i < length; i += kBlock) {
      const int64_t n = std::min(kBlock, length - i);
      if (bounded && !any_before(x + i * step, n, step, bound, before)) continue;
      for (int64_t j = i; j < i + n; ++j) {
        const T v = x[j * step];
        if (bounded && !before(v, bound)) continue;
        if (k <= kFew) {
          insert(v, j);
          continue;
        }
        first[found++] = {v, j};
        if (found == ranking_room(k)) shrink();
      }
    }
    if (k <= kFew) return;
    if (found > k) shrink();
    std::sort(first, first + k, less);
  };
  if (largest)
    select([](T a, T b) { return larger(a, b); });
  else
    select([](T a, T b) { return larger(b, a); });
}

}  // namespace ferrule
