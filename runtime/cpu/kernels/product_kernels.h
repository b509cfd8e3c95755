// The functions of product.h over an instruction set S. Included like winograd_kernels.h.

/// Bias, tail and store of a vector of channels of some rows.
template <class S, int Rows, bool Whole>
[[gnu::always_inline]] inline void write(const Shape& s, const Tensors& t, int64_t first,
                                         int64_t channel, const typename S::V* sum) {
  using V = typename S::V;
  const typename S::Mask mask = S::first(Whole ? 0 : s.k - channel);
  auto load = [&](const float* p) { return Whole ? S::load(p) : S::load(p, mask); };
  auto store = [&](int r, V v) {
    float* y = t.y + (first + r) * s.y_pixel + channel;
    if constexpr (Whole)
      S::store(y, v);
    else
      S::store(y, v, mask);
  };
  const V bias = t.bias ? load(t.bias + channel) : S::zero(), low = S::set(t.low),
          high = S::set(t.high);
  const float* addend = t.addend ? t.addend + first * s.k + channel : nullptr;
  V v[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    v[r] = S::add(sum[r], bias);
    if (addend) v[r] = S::add(v[r], load(addend + r * s.k));
    v[r] = S::min(high, S::max(low, v[r]));
    if (!t.count) store(r, v[r]);
  }
  if (!t.count) return;
  apply_all<S, Rows>(t.steps, t.count, v, channel, load, [&](int r) { return (first + r) * s.k; });
  for (int r = 0; r < Rows; ++r) store(r, v[r]);
}

/// Long sums are added in parts of so many products: the weights of one stay in the L1 cache while
/// they serve several cells, and the sum rounds less than one long chain.
inline constexpr int64_t kPart = 128, kCells = 8;

/// Products [begin, begin + count) of a run. What comes before is in `sums`, unless they are the
/// first; there the sum is left, unless they are the last.
struct Part {
  int64_t begin, count;
  bool first, last;
  float* sums;
};

/// Rows x N vectors of the result, one part of them. `u`: the block's weights.
template <class S, int Rows, int N>
void cell(const Shape& s, const Tensors& t, const float* const* runs, int64_t first, const float* u,
          int64_t channel, const Part& part) {
  using V = typename S::V;
  V sum[N][Rows];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n)
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) sum[n][r] = S::zero();
  const float* at[Rows];
  for (int r = 0; r < Rows; ++r) at[r] = runs[r] + part.begin;
  u += part.begin * N * S::kLanes;
#pragma GCC unroll 2
  for (int64_t c = 0; c < part.count; ++c, u += N * S::kLanes) {
    V weights[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) weights[n] = S::load(u + n * S::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const V value = S::set(at[r][c]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[n][r] = S::fma(value, weights[n], sum[n][r]);
    }
  }
  if (!part.first)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r)
        sum[n][r] = S::add(sum[n][r], S::load(part.sums + (n * Rows + r) * S::kLanes));
  if (!part.last) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) S::store(part.sums + (n * Rows + r) * S::kLanes, sum[n][r]);
    return;
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    const int64_t k = channel + n * S::kLanes;
    if (k + S::kLanes <= s.k)
      write<S, Rows, true>(s, t, first, k, sum[n]);
    else
      write<S, Rows, false>(s, t, first, k, sum[n]);
  }
}

/// Two neighbouring whole blocks at once: a few rows alone would wait for each sum.
template <class S, int Rows>
void two_cells(const Shape& s, const Tensors& t, const float* const* pixels, int64_t first,
               const float* u, int64_t channel) {
  using V = typename S::V;
  constexpr int kN = kBlockVectors;
  V total[2 * kN][Rows];
#pragma GCC unroll 16
  for (int n = 0; n < 2 * kN; ++n)
#pragma GCC unroll 2
    for (int r = 0; r < Rows; ++r) total[n][r] = S::zero();
  const float* other = u + s.c * kN * S::kLanes;
  for (int64_t begin = 0; begin < s.c; begin += kPart) {
    V sum[2 * kN][Rows];
#pragma GCC unroll 16
    for (int n = 0; n < 2 * kN; ++n)
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) sum[n][r] = S::zero();
    const int64_t end = s.c - begin < kPart ? s.c : begin + kPart;
    for (int64_t c = begin; c < end; ++c, u += kN * S::kLanes, other += kN * S::kLanes) {
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r) {
        const V value = S::set(pixels[r][c]);
#pragma GCC unroll 4
        for (int n = 0; n < kN; ++n) {
          sum[n][r] = S::fma(value, S::load(u + n * S::kLanes), sum[n][r]);
          sum[kN + n][r] = S::fma(value, S::load(other + n * S::kLanes), sum[kN + n][r]);
        }
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < 2 * kN; ++n)
#pragma GCC unroll 2
      for (int r = 0; r < Rows; ++r)
        total[n][r] = begin ? S::add(sum[n][r], total[n][r]) : sum[n][r];
  }
#pragma GCC unroll 16
  for (int n = 0; n < 2 * kN; ++n) {
    const int64_t k = channel + n * S::kLanes;
    if (k + S::kLanes <= s.k)
      write<S, Rows, true>(s, t, first, k, total[n]);
    else
      write<S, Rows, false>(s, t, first, k, total[n]);
  }
}

using Cell = void (*)(const Shape&, const Tensors&, const float* const*, int64_t, const float*,
                      int64_t, const Part&);

template <class S>
inline Cell cell_for(int64_t rows, int64_t vectors) {
  return of_size<S>(rows, vectors, []<int Rows, int N>() -> Cell { return cell<S, Rows, N>; });
}

/// The run of memory that a row reads.
inline const float* run_of(const Shape& s, const Tensors& t, int64_t row) {
  if (s.taps == 1 && s.stride_h == 1 && s.stride_w == 1) return t.x + row * s.x_pixel;
  const int64_t line = row / s.ow, column = row % s.ow;
  if (column < s.left || column >= s.right)
    return t.border +
           (line * s.borders() + (column < s.left ? column : column - s.right + s.left)) * s.c;
  return t.x +
         ((line / s.oh * s.h + line % s.oh * s.stride_h) * s.w + column * s.stride_w - s.pad) *
             s.x_pixel;
}

/// Up to kCells cells from row `first` on. `u`: the weights of the block of `width` vectors at
/// `channel`.
template <class S>
void cells(const Shape& s, const Tensors& t, int64_t first, int64_t rows, const float* u,
           int64_t channel, int64_t width) {
  constexpr int64_t kSums = int64_t{S::kRows} * kBlockVectors * S::kLanes;
  alignas(64) float sums[kCells * kSums];
  const float* runs[kCells * S::kRows];
  for (int64_t r = 0; r < rows; ++r) runs[r] = run_of(s, t, first + r);
  const Cell whole = cell_for<S>(S::kRows, width);
  for (int64_t c = 0; c < s.c; c += kPart) {
    const bool last = c + kPart >= s.c;
    for (int64_t r = 0; r < rows; r += S::kRows) {
      const int64_t count = rows - r < S::kRows ? rows - r : S::kRows;
      (count == S::kRows ? whole : cell_for<S>(count, width))(
          s, t, runs + r, first + r, u, channel,
          {c, last ? s.c - c : kPart, c == 0, last, sums + r / S::kRows * kSums});
    }
  }
}

template <class S>
void rows_of(const Shape& s, const Tensors& t, int64_t first, int64_t last, int64_t begin,
             int64_t end) {
  const int64_t vectors = up(s.k, S::kLanes) / S::kLanes;
  for (int64_t v = begin, width = 0; v < end; v += width) {
    width = block_width(vectors - v);
    const float* u = t.u + v * S::kLanes * s.c;
    if (last - first <= 2 && last > first && v + 2 * kBlockVectors <= end &&
        width == kBlockVectors && block_width(vectors - v - width) == kBlockVectors) {
      const float* at[2] = {run_of(s, t, first), run_of(s, t, last - 1)};
      (last - first == 1 ? two_cells<S, 1> : two_cells<S, 2>)(s, t, at, first, u, v * S::kLanes);
      width *= 2;
      continue;
    }
    constexpr int64_t kMost = kCells * S::kRows;
    for (int64_t row = first; row < last; row += kMost)
      cells<S>(s, t, row, last - row < kMost ? last - row : kMost, u, v * S::kLanes, width);
  }
}
