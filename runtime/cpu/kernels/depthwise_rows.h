// One row of a depthwise convolution for a vector type `Vector`: included by a file that has chosen
// the instruction set and defined it, inside a namespace of its own. A vector holds neighbouring
// channels of a pixel; a block of kBlock columns is summed in registers, every loaded pixel serving
// all its taps. So many sums are open that none waits for the one before it: short rows are summed
// for two vectors of channels at a time. Columns whose window leaves the image take the same path
// with zeros for the pixels outside. No include guard: there is one copy for each instruction set.

constexpr int kBlock = depthwise_columns(kLanes);

/// f on each of B accumulators; unrolled, so that they stay in registers.
template <int B, class F>
[[gnu::always_inline]] inline void each(Vector* acc, F&& f) {
#pragma GCC unroll 16
  for (int k = 0; k < B; ++k) acc[k] = f(acc[k], k);
}

/// Applies the steps to B neighbouring columns. `at`: of the first column in an operand of the
/// result's size.
template <int B>
[[gnu::noinline]] void apply_ops(const RowShape& s, Vector* acc, int64_t at, int64_t c,
                                 Mask lanes) {
  using K = RegisterOp::Kind;
  for (const RegisterOp& op : s.ops) {
    const Vector a = broadcast(op.alpha), b = broadcast(op.beta), one = broadcast(1);
    const bool full = op.spread == RegisterOp::Broadcast::full;
    const float* from = op.operand;
    Vector v = zero();
    if (op.spread == RegisterOp::Broadcast::channel)
      v = load(from + c, lanes);
    else if (full)
      from += at;
    else if (from)
      v = broadcast(*from);
    auto operand = [&](int k) { return full ? load(from + k * s.operand_pixel, lanes) : v; };
    auto clamped = [&](Vector x) { return minimum(one, maximum(zero(), fma(a, x, b))); };
    switch (op.kind) {
      case K::relu:
        each<B>(acc, [&](Vector x, int) { return maximum(zero(), x); });
        break;
      case K::leaky_relu:
        each<B>(acc, [&](Vector x, int) { return fma(a, minimum(zero(), x), maximum(zero(), x)); });
        break;
      case K::clip:
        each<B>(acc, [&](Vector x, int) { return minimum(b, maximum(a, x)); });
        break;
      case K::linear:
        each<B>(acc, [&](Vector x, int) { return fma(a, x, b); });
        break;
      case K::hardswish:
        each<B>(acc, [&](Vector x, int) { return mul(x, clamped(x)); });
        break;
      case K::hardsigmoid:
        each<B>(acc, [&](Vector x, int) { return clamped(x); });
        break;
      case K::abs:
        each<B>(acc, [&](Vector x, int) { return maximum(x, sub(zero(), x)); });
        break;
      case K::add:
        each<B>(acc, [&](Vector x, int k) { return add(x, operand(k)); });
        break;
      case K::sub:
        each<B>(acc, [&](Vector x, int k) { return sub(x, operand(k)); });
        break;
      case K::mul:
        each<B>(acc, [&](Vector x, int k) { return mul(x, operand(k)); });
        break;
      case K::div:
        each<B>(acc, [&](Vector x, int k) { return div(x, operand(k)); });
        break;
      case K::max:
        each<B>(acc, [&](Vector x, int k) { return maximum(operand(k), x); });
        break;
      case K::min:
        each<B>(acc, [&](Vector x, int k) { return minimum(operand(k), x); });
        break;
    }
  }
}

/// The tail, then the accumulators to B neighbouring pixels. They are copied for the tail: an array
/// whose address is taken would live in memory while it is summed.
template <int B>
[[gnu::always_inline]] inline void finish(const RowShape& s, const RowJob& j, int64_t column,
                                          int64_t c, Vector* acc, Mask lanes, bool whole) {
  if (s.clipped) {
    const Vector low = broadcast(s.low), high = broadcast(s.high);
    each<B>(acc, [&](Vector x, int) { return minimum(high, maximum(low, x)); });
  }
  if (!s.ops.empty()) {
    Vector copy[B];
    each<B>(acc, [&](Vector x, int k) { return copy[k] = x; });
    apply_ops<B>(s, copy, j.y_offset + column * s.operand_pixel + c, j.c + c, lanes);
    each<B>(acc, [&](Vector, int k) { return copy[k]; });
  }
  float* y = j.y + column * s.out_pixel + c;
  if (whole)
    each<B>(acc, [&](Vector x, int k) { return store(y + k * s.out_pixel, x), x; });
  else
    each<B>(acc, [&](Vector x, int k) { return store(y + k * s.out_pixel, x, lanes), x; });
}

/// Which of the pixels that a block reads lie in the image: [begin, end).
struct Inside {
  int begin, end;
};

/// B columns from `column` on, V vectors of channels from c (counted from the job's first) on. KW,
/// SW: the window's size and stride along the row, dense. Border: some pixels of the block lie
/// outside the image, at most KW - 1 on a side. Whole: all lanes.
template <int B, int KW, int SW, bool Border, bool Whole, int V = 1>
[[gnu::always_inline]] inline void block(const RowShape& s, const RowJob& j, int64_t column,
                                         int64_t c, Mask lanes, Inside inside) {
  constexpr int kInputs = (B - 1) * SW + KW;
  Vector acc[V][B];
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    const Vector bias = load(j.bias + c + v * kLanes, lanes);
    each<B>(acc[v], [&](Vector, int) { return bias; });
  }
  const float* row = j.x + c + (column * SW - s.pad) * s.pixel;
  const float* weights = j.weights + c;
  for (int64_t r = 0; r < j.rows; ++r, row += s.row_step, weights += KW * s.weight_pixel)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      Vector x[kInputs];
    // Tap by tap, so that neighbouring sums follow each other. A tap needs the pixels of the one
    // before it at this distance from the stride, and a new one.
#pragma GCC unroll 2
      for (int phase = 0; phase < SW; ++phase) {
        const float* p = row + v * kLanes + phase * s.pixel;
#pragma GCC unroll 8
        for (int t = phase; t < KW; t += SW) {
          const Vector w = load_all(weights + t * s.weight_pixel + v * kLanes);
#pragma GCC unroll 16
          for (int k = 0; k < B; ++k) {
            const int i = k * SW + t;
            if (t == phase || k == B - 1) {
              const bool outside = Border && ((i < KW - 1 && i < inside.begin) ||
                                              (i > kInputs - KW && i >= inside.end));
              x[i] = outside ? zero() : Whole ? load_all(p) : load(p, lanes);
              p += SW * s.pixel;
              asm("" : "+r"(p));  // one pointer that moves: the compiler would keep ten, spilled
            }
            acc[v][k] = fma(x[i], w, acc[v][k]);
          }
        }
      }
    }
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) finish<B>(s, j, column, c + v * kLanes, acc[v], lanes, Whole);
}

/// Any window: no pixel is used twice. Border: some of them may lie outside the image. Grouped: a
/// filter reads s.group channels, which lie in the same vector as its result: a permutation gives
/// each filter the n-th channel of its group.
template <int B, bool Border, bool Grouped>
[[gnu::always_inline]] inline void any_block(const RowShape& s, const RowJob& j, int64_t column,
                                             int64_t c, Mask lanes, bool whole) {
  Vector acc[B];
  each<B>(acc, [&](Vector, int) { return load(j.bias + c, lanes); });
  const float* row = j.x + c;
  const float* weights = j.weights + c;
  const int64_t first = column * s.stride - s.pad;
  const int64_t channels = Grouped ? s.group : 1;
  for (int64_t r = 0; r < j.rows; ++r, row += s.row_step)
    for (int64_t t = 0; t < s.kernel; ++t) {
      const int64_t at = first + t * s.dilation;
      const float* pixels = row + at * s.pixel;
      for (int64_t n = 0; n < channels; ++n, weights += s.weight_pixel) {
        const Vector w = load_all(weights);
        const Lanes pick = Grouped ? lanes_at(s.picks[static_cast<size_t>(n)].data()) : Lanes();
        const float* p = pixels;
#pragma GCC unroll 16
        for (int k = 0; k < B; ++k, p += s.stride * s.pixel) {
          const int64_t x = at + k * s.stride;
          if (Border && (x < 0 || x >= s.width)) continue;
          const Vector v = whole ? load_all(p) : load(p, lanes);
          acc[k] = fma(Grouped ? permute(v, pick) : v, w, acc[k]);
        }
      }
    }
  finish<B>(s, j, column, c, acc, lanes, whole);
}

template <int B, bool Grouped>
void any_columns(const RowShape& s, const RowJob& j, int64_t column) {
  const int64_t first = column * s.stride - s.pad;
  const bool border =
      first < 0 || first + (B - 1) * s.stride + (s.kernel - 1) * s.dilation >= s.width;
  for (int64_t c = 0; c < j.channels; c += kLanes) {
    const bool whole = c + kLanes <= j.channels;
    const Mask lanes = lanes_of(whole ? kLanes : j.channels - c);
    if (border)
      any_block<B, true, Grouped>(s, j, column, c, lanes, false);
    else if (whole)
      any_block<B, false, Grouped>(s, j, column, c, lanes, true);
    else
      any_block<B, false, Grouped>(s, j, column, c, lanes, false);
  }
}

template <int B, int KW, int SW>
void columns(const RowShape& s, const RowJob& j, int64_t column) {
  constexpr int kInputs = (B - 1) * SW + KW;
  const int64_t first = column * SW - s.pad, beyond = first + kInputs - s.width;
  if (first < 1 - KW || beyond > KW - 1) {  // pads as wide as the window
    for (int k = 0; k < B; ++k) any_columns<1, false>(s, j, column + k);
    return;
  }
  const bool border = first < 0 || beyond > 0;
  const Inside inside{first < 0 ? static_cast<int>(-first) : 0,
                      beyond > 0 ? static_cast<int>(kInputs - beyond) : kInputs};
  int64_t c = 0;
  if constexpr (2 * B <= kBlock && kBlock == 14)  // as many registers as a long row's
    for (; c + 2 * kLanes <= j.channels; c += 2 * kLanes)
      border ? block<B, KW, SW, true, true, 2>(s, j, column, c, lanes_of(kLanes), inside)
             : block<B, KW, SW, false, true, 2>(s, j, column, c, lanes_of(kLanes), inside);
  for (; c < j.channels; c += kLanes) {
    const bool whole = c + kLanes <= j.channels;
    const Mask lanes = lanes_of(whole ? kLanes : j.channels - c);
    if (border && whole)
      block<B, KW, SW, true, true>(s, j, column, c, lanes, inside);
    else if (border)
      block<B, KW, SW, true, false>(s, j, column, c, lanes, inside);
    else if (whole)
      block<B, KW, SW, false, true>(s, j, column, c, lanes, inside);
    else
      block<B, KW, SW, false, false>(s, j, column, c, lanes, inside);
  }
}

using ColumnsFn = void (*)(const RowShape&, const RowJob&, int64_t);
/// By the number of columns, from 1 on.
template <int KW, int SW, int... B>
constexpr std::array<ColumnsFn, sizeof...(B)> by_columns(std::integer_sequence<int, B...>) {
  return {columns<B + 1, KW, SW>...};
}
template <int KW, int SW>
constexpr auto kColumns = by_columns<KW, SW>(std::make_integer_sequence<int, kBlock>());

/// For 1, 4 and kBlock columns.
constexpr std::array<ColumnsFn, 3> kColumns7{columns<1, 7, 1>, columns<4, 7, 1>,
                                             columns<kBlock, 7, 1>},
    kAnyColumns{any_columns<1, false>, any_columns<4, false>, any_columns<kBlock, false>},
    kGroupedColumns{any_columns<1, true>, any_columns<4, true>, any_columns<kBlock, true>};

void row(const RowShape& s, const RowJob& j) {
  const ColumnsFn* fns = nullptr;
  const bool dense = s.dilation == 1 && s.group == 1;
  if (dense && s.kernel == 3)
    fns = s.stride == 1 ? kColumns<3, 1>.data() : s.stride == 2 ? kColumns<3, 2>.data() : nullptr;
  if (dense && s.kernel == 5)
    fns = s.stride == 1 ? kColumns<5, 1>.data() : s.stride == 2 ? kColumns<5, 2>.data() : nullptr;
  const auto& others = s.group > 1                               ? kGroupedColumns
                       : dense && s.kernel == 7 && s.stride == 1 ? kColumns7
                                                                 : kAnyColumns;
  const bool checked = others != kColumns7;
  auto inside = [&](int64_t column, int64_t n) {
    const int64_t first = column * s.stride - s.pad;
    return first >= 0 && first + (n - 1) * s.stride + (s.kernel - 1) * s.dilation < s.width;
  };
  for (int64_t column = j.begin; column < j.end;) {
    const int64_t left = j.end - column;
    // The rest in two equal parts rather than a long and a short one.
    const int64_t n =
        left >= 2 * kBlock || left <= kBlock ? (left < kBlock ? left : kBlock) : (left + 1) / 2;
    if (fns) {
      fns[n - 1](s, j, column);
      column += n;
    } else {
      constexpr int64_t kSizes[] = {1, 4, kBlock};
      size_t m = left >= kBlock ? 2 : left >= 4 ? 1 : 0;
      // Few columns at a border go one by one, so that the others need no check for each pixel.
      if (checked && s.pad <= 2 * s.stride)
        while (m > 0 && !inside(column, kSizes[m])) --m;
      others[m](s, j, column);
      column += kSizes[m];
    }
  }
}
