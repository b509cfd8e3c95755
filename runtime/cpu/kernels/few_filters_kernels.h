// few_filters.h for the instruction set S; included like winograd_kernels.h.

/// `F` filters of `B` vectors of pixels: as many as the registers hold.
template <class S, int F>
inline constexpr int kMostVectors =
    ((S::kLanes == 16 ? 30 : 14) - 1) / (F + 1) < 8 ? ((S::kLanes == 16 ? 30 : 14) - 1) / (F + 1)
                                                    : 8;

template <class S, int F, int B>
void block(const Shape& s, const Job& j, int64_t column) {
  using V = typename S::V;
  V acc[F][B];
#pragma GCC unroll 8
  for (int f = 0; f < F; ++f)
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) acc[f][b] = j.bias ? S::set(j.bias[f]) : S::zero();
  const float* w = j.weights;
  for (int64_t r = 0; r < s.window_rows; ++r) {
    if (!j.rows[r]) {
      w += s.channels * s.kernel * F;
      continue;
    }
    const float* plane = j.rows[r] + column;
    for (int64_t c = 0; c < s.channels; ++c, plane += s.plane) {
      for (int64_t t = 0; t < s.kernel; ++t, w += F) {
        const float* x = plane + s.taps[t];
        V pixels[B];
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) pixels[b] = S::load(x + b * S::kLanes);
#pragma GCC unroll 8
        for (int f = 0; f < F; ++f) {
          const V weight = S::set(w[f]);
#pragma GCC unroll 8
          for (int b = 0; b < B; ++b) acc[f][b] = S::fma(pixels[b], weight, acc[f][b]);
        }
      }
    }
  }
  const int64_t left = j.pixels - column;
  auto lanes = [&](int b) {
    const int64_t n = left - b * S::kLanes;
    return n < S::kLanes ? n : S::kLanes;
  };
  alignas(64) float row[S::kLanes] = {};
  for (int f = 0; f < F; ++f) {
    for (int k = 0; k < j.count; ++k) {
      const Step& step = j.steps[k];
      if (step.operand == Step::Operand::full) {
        const float* from = step.data + j.y_offset + column * F + f;
        apply<S, B>(step, acc[f], [&](int b) {
          for (int64_t i = 0; i < lanes(b); ++i) row[i] = from[(b * S::kLanes + i) * F];
          return S::load(row);
        });
        continue;
      }
      V one = S::zero();
      if (step.operand == Step::Operand::scalar) one = S::set(*step.data);
      if (step.operand == Step::Operand::channel) one = S::set(step.data[f]);
      apply<S, B>(step, acc[f], [&](int) { return one; });
    }
    float* y = j.y + column * s.y_pixel + f;
    for (int b = 0; b < B; ++b, y += S::kLanes * s.y_pixel) {
      if (s.y_pixel == 1) {
        S::store(y, acc[f][b], S::first(lanes(b)));
        continue;
      }
      S::store(row, acc[f][b]);
      for (int64_t i = 0; i < lanes(b); ++i) y[i * s.y_pixel] = row[i];
    }
  }
}

/// The row in blocks of nearly equal width.
template <class S, int F, int... Vectors>
void one_row(const Shape& s, const Job& j, Counts<Vectors...>) {
  constexpr int kMost = kMostVectors<S, F>;
  static constexpr void (*kBlocks[])(const Shape&, const Job&, int64_t) = {
      block<S, F, (Vectors < kMost ? Vectors + 1 : kMost)>...};
  const int64_t vectors = up(j.pixels, S::kLanes) / S::kLanes, blocks = up(vectors, kMost) / kMost;
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t from = vectors * k / blocks, to = vectors * (k + 1) / blocks;
    kBlocks[to - from - 1](s, j, from * S::kLanes);
  }
}
template <class S, int F>
void row_of(const Shape& s, const Job& j) {
  one_row<S, F>(s, j, Counts<0, 1, 2, 3, 4, 5, 6, 7>{});
}

template <class S>
constexpr Functions functions_of() {
  return {S::kLanes,
          {row_of<S, 1>, row_of<S, 2>, row_of<S, 3>, row_of<S, 4>, row_of<S, 5>, row_of<S, 6>,
           row_of<S, 7>, row_of<S, 8>}};
}
