// The functions of winograd_functions.h over an instruction set S: its vector type with the
// operations used here. Included by one file per instruction set, inside an unnamed namespace, so
// that no two of them share a symbol.

/// B^T d and A^T m along one axis.
template <class S, int Tile>
struct Transform;

template <class S>
struct Transform<S, 2> {
  using V = typename S::V;
  static inline void input(const V* d, V* o) {
    o[0] = S::sub(d[2], d[0]);
    o[1] = S::add(d[2], d[1]);
    o[2] = S::sub(d[2], d[1]);
    o[3] = S::sub(d[3], d[1]);
  }
  static inline void output(const V* m, V* o) {
    o[0] = S::add(m[0], S::add(m[1], m[2]));
    o[1] = S::add(m[3], S::sub(m[1], m[2]));
  }
};

template <class S>
struct Transform<S, 4> {
  using V = typename S::V;
  static inline void input(const V* d, V* o) {
    constexpr float a = kPointA, b = kPointB;
    const V aa = S::set(a * a), bb = S::set(b * b), sum = S::set(a * a + b * b),
            product = S::set(a * a * b * b);
    const V even_a = S::fnma(bb, d[2], d[4]), odd_a = S::mul(S::set(a), S::fnma(bb, d[1], d[3]));
    const V even_b = S::fnma(aa, d[2], d[4]), odd_b = S::mul(S::set(b), S::fnma(aa, d[1], d[3]));
    o[0] = S::fma(product, d[0], S::fnma(sum, d[2], d[4]));
    o[1] = S::add(even_a, odd_a);
    o[2] = S::sub(even_a, odd_a);
    o[3] = S::add(even_b, odd_b);
    o[4] = S::sub(even_b, odd_b);
    o[5] = S::fma(product, d[1], S::fnma(sum, d[3], d[5]));
  }
  static inline void output(const V* m, V* o) {
    constexpr float a = kPointA, b = kPointB;
    const V sum_a = S::add(m[1], m[2]), difference_a = S::sub(m[1], m[2]);
    const V sum_b = S::add(m[3], m[4]), difference_b = S::sub(m[3], m[4]);
    o[0] = S::add(m[0], S::add(sum_a, sum_b));
    o[1] = S::fma(S::set(a), difference_a, S::mul(S::set(b), difference_b));
    o[2] = S::fma(S::set(a * a), sum_a, S::mul(S::set(b * b), sum_b));
    o[3] = S::fma(S::set(a * a * a), difference_a, S::fma(S::set(b * b * b), difference_b, m[5]));
  }
};

/// Where a row's tile is: its image, and its first result.
struct Place {
  int64_t image, y, x;
};
inline Place place(const Shape& s, int64_t row) {
  const int64_t per_image = s.tiles_h * s.tiles_w, in_image = row % per_image;
  return {row / per_image, in_image / s.tiles_w * s.tile, in_image % s.tiles_w * s.tile};
}

// --- input
// ------------------------------------------------------------------------------------------

/// One vector of channels of one tile. `at`: the tile's pixels, which may be anywhere.
template <class S, int Tile, bool Whole>
inline void input_vector(const float* const* at, int64_t channel, typename S::Mask mask, float* v,
                         int64_t stride) {
  using V = typename S::V;
  constexpr int t = Tile + 2;
  V half[t][t];
#pragma GCC unroll 6
  for (int j = 0; j < t; ++j) {
    V d[t], o[t];
#pragma GCC unroll 6
    for (int i = 0; i < t; ++i) {
      const float* p = at[i * t + j] + channel;
      d[i] = Whole ? S::load(p) : S::load(p, mask);
    }
    Transform<S, Tile>::input(d, o);
#pragma GCC unroll 6
    for (int i = 0; i < t; ++i) half[i][j] = o[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < t; ++i) {
    V o[t];
    Transform<S, Tile>::input(half[i], o);
#pragma GCC unroll 6
    for (int j = 0; j < t; ++j) S::store(v + (i * t + j) * stride, o[j]);
  }
}

template <class S, int Tile>
void input(const Shape& s, const Tensors& tensors, const Block& b, int64_t from, int64_t to) {
  constexpr int t = Tile + 2;
  const int64_t padded = up(s.c, S::kLanes);
  for (int64_t row = from; row < to; ++row) {
    const Place p = place(s, b.first + row);
    const float* at[t * t];
    for (int i = 0; i < t; ++i)
      for (int j = 0; j < t; ++j) {
        const int64_t iy = p.y + i - s.pad_top, ix = p.x + j - s.pad_left;
        const bool inside = iy >= 0 && iy < s.h && ix >= 0 && ix < s.w;
        at[i * t + j] =
            inside ? tensors.x + ((p.image * s.h + iy) * s.w + ix) * s.x_pixel : tensors.zeros;
      }
    const int64_t group = row / S::kRows, lane = row % S::kRows;
    for (int64_t chunk = 0; chunk < padded; chunk += kChunk) {
      const int64_t width = padded - chunk < kChunk ? padded - chunk : kChunk;
      float* v = b.v + chunk * b.capacity + group * S::kRows * width + lane * S::kLanes;
      for (int64_t c = chunk; c < chunk + width; c += S::kLanes, v += S::kRows * S::kLanes) {
        if (c + S::kLanes <= s.c)
          input_vector<S, Tile, true>(at, c, typename S::Mask{}, v, b.v_stride);
        else
          input_vector<S, Tile, false>(at, c, S::first(s.c - c), v, b.v_stride);
      }
    }
  }
}

// --- products
// ---------------------------------------------------------------------------------------

/// Rows x N vectors of M from one chunk: `channels` is a multiple of the lanes.
template <class S, int Rows, int N>
void micro(const float* v, const float* u, int64_t channels, float* m, int64_t m_row, bool first) {
  using V = typename S::V;
  V sum[Rows][N];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum[r][n] = S::zero();
  for (int64_t c = 0; c < channels; c += S::kLanes, v += S::kRows * S::kLanes)
#pragma GCC unroll 2
    for (int l = 0; l < S::kLanes; ++l, u += N * S::kLanes) {
      V weights[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) weights[n] = S::load(u + n * S::kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const V value = S::set(v[r * S::kLanes + l]);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sum[r][n] = S::fma(value, weights[n], sum[r][n]);
      }
    }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      float* to = m + r * m_row + n * S::kLanes;
      S::store(to, first ? sum[r][n] : S::add(S::load(to), sum[r][n]));
    }
}

using Micro = void (*)(const float*, const float*, int64_t, float*, int64_t, bool);

template <class S>
inline Micro micro_for(int64_t rows, int64_t vectors) {
  return of_size<S>(rows, vectors, []<int Rows, int N>() -> Micro { return micro<S, Rows, N>; });
}

/// Asks for a part of what will be multiplied after this: `bytes` from `p`, the n-th of `parts`.
template <class S>
inline void fetch(const float* p, int64_t bytes, int64_t n, int64_t parts) {
  const char* from = reinterpret_cast<const char*>(p);
  for (int64_t at = bytes / 64 * n / parts, end = bytes / 64 * (n + 1) / parts; at < end; ++at)
    S::prefetch(from + at * 64);
}

template <class S, int Tile>
void product(const Shape& s, const Tensors& tensors, const Block& b, const Pass& p) {
  const int64_t padded = up(s.c, S::kLanes), vectors = up(s.k, S::kLanes) / S::kLanes;
  const int64_t m_row = (p.end - p.begin) * S::kLanes, last_rows = b.rows % S::kRows;
  for (int64_t k = p.begin, width = 0; k < p.end; k += width) {
    width = block_width(vectors - k);
    const Micro whole = micro_for<S>(S::kRows, width),
                last = last_rows ? micro_for<S>(last_rows, width) : nullptr;
    const float* u = tensors.u + k * S::kLanes * padded * s.elements();
    for (int e = 0; e < s.elements(); ++e) {
      const float* v = b.v + e * b.v_stride;
      float* m = p.m + e * p.m_stride + (k - p.begin) * S::kLanes;
      for (int64_t chunk = 0; chunk < padded; chunk += kChunk) {
        const int64_t channels = padded - chunk < kChunk ? padded - chunk : kChunk,
                      size = channels * width * S::kLanes;
        for (int64_t row = 0; row < b.rows; row += S::kRows) {
          fetch<S>(u + 2 * size, size * 4, row / S::kRows, up(b.rows, S::kRows) / S::kRows);
          (row + S::kRows <= b.rows ? whole : last)(v + chunk * b.capacity + row * channels, u,
                                                    channels, m + row * m_row, m_row, chunk == 0);
        }
        u += size;
      }
    }
  }
}

// --- output
// -----------------------------------------------------------------------------------------

/// A tile's results in memory.
template <int Tile>
struct Results {
  Place at;
  int64_t to[Tile * Tile];  ///< number of its pixel; of the tile's first one where it is outside
  bool inside[Tile * Tile];
};

/// One result by the direct sum. A NaN ends it: nothing changes it any more.
inline float direct(const Shape& s, const Tensors& t, const Place& at, int64_t i, int64_t j,
                    int64_t k) {
  float sum = 0;
  const float* weights = t.weights(t.own) + k * s.c * 9;
  for (int64_t tap = 0; tap < 9; ++tap) {
    const int64_t iy = at.y + i + tap / 3 - s.pad_top, ix = at.x + j + tap % 3 - s.pad_left;
    if (iy < 0 || ix < 0 || iy >= s.h || ix >= s.w) continue;
    const float* x = t.x + ((at.image * s.h + iy) * s.w + ix) * s.x_pixel;
    const float* w = weights + tap;
    for (int64_t c = 0; c < s.c && sum == sum; ++c) sum += x[c] * w[c * 9];
  }
  return sum;
}

template <class S, int Tile>
void make_finite(const Shape& s, const Tensors& t, const Results<Tile>& r, int64_t channel,
                 typename S::V* v) {
  for (int i = 0; i < Tile * Tile; ++i) {
    float lanes[S::kLanes];
    S::store(lanes, v[i]);
    for (int64_t l = 0; r.inside[i] && l < S::kLanes && channel + l < s.k; ++l)
      if (lanes[l] - lanes[l] != 0) lanes[l] = direct(s, t, r.at, i / Tile, i % Tile, channel + l);
    v[i] = S::load(lanes);
  }
}

/// One vector of channels of one tile.
template <class S, int Tile, bool Whole>
inline void output_vector(const Shape& s, const Tensors& tensors, const Results<Tile>& r,
                          const float* m, int64_t stride, int64_t channel) {
  using V = typename S::V;
  constexpr int t = Tile + 2, count = Tile * Tile;
  const typename S::Mask mask = S::first(Whole ? 0 : s.k - channel);
  auto load = [&](const float* p) { return Whole ? S::load(p) : S::load(p, mask); };
  V half[Tile][t], v[count], probe[2] = {S::zero(), S::zero()};
#pragma GCC unroll 6
  for (int j = 0; j < t; ++j) {
    V d[t], o[Tile];
#pragma GCC unroll 6
    for (int i = 0; i < t; ++i) d[i] = S::load(m + (i * t + j) * stride);
    Transform<S, Tile>::output(d, o);
#pragma GCC unroll 6
    for (int i = 0; i < Tile; ++i) half[i][j] = o[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < Tile; ++i) {
    Transform<S, Tile>::output(half[i], v + i * Tile);
#pragma GCC unroll 6
    for (int j = 0; j < Tile; ++j) probe[j % 2] = S::fma(v[i * Tile + j], S::zero(), probe[j % 2]);
  }
  if (S::any_nan(S::add(probe[0], probe[1]))) [[unlikely]]
    make_finite<S, Tile>(s, tensors, r, channel, v);
  if (tensors.bias) {
    const V bias = load(tensors.bias + channel);
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) v[i] = S::add(v[i], bias);
  }
  apply_all<S, count>(tensors.steps, tensors.count, v, channel, load,
                      [&](int i) { return r.to[i] * s.k; });
  for (int i = 0; i < count; ++i) {
    if (!r.inside[i]) continue;
    float* y = tensors.y + r.to[i] * s.y_pixel + channel;
    if constexpr (Whole)
      S::store(y, v[i]);
    else
      S::store(y, v[i], mask);
  }
}

template <class S, int Tile>
void output(const Shape& s, const Tensors& tensors, const Block& b, const Pass& p) {
  const int64_t m_row = (p.end - p.begin) * S::kLanes;
  for (int64_t row = 0; row < b.rows; ++row) {
    Results<Tile> r{place(s, b.first + row), {}, {}};
    for (int i = 0; i < Tile; ++i)
      for (int j = 0; j < Tile; ++j) {
        const int k = i * Tile + j;
        r.inside[k] = r.at.y + i < s.oh && r.at.x + j < s.ow;
        const int64_t y = r.at.y + (r.inside[k] ? i : 0), x = r.at.x + (r.inside[k] ? j : 0);
        r.to[k] = (r.at.image * s.oh + y) * s.ow + x;
      }
    const float* m = p.m + row * m_row;
    for (int64_t k = p.begin; k < p.end; ++k, m += S::kLanes) {
      const int64_t channel = k * S::kLanes;
      if (channel + S::kLanes <= s.k)
        output_vector<S, Tile, true>(s, tensors, r, m, p.m_stride, channel);
      else
        output_vector<S, Tile, false>(s, tensors, r, m, p.m_stride, channel);
    }
  }
}

template <class S>
constexpr Functions functions_of(int tile) {
  if (tile == 2) return {S::kLanes, S::kRows, input<S, 2>, product<S, 2>, output<S, 2>};
  return {S::kLanes, S::kRows, input<S, 4>, product<S, 4>, output<S, 4>};
}
