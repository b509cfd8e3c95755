// One row of a depthwise convolution for a vector type `Vector`: included by a file that has chosen
// the instruction set and defined it, inside a namespace of its own. A vector holds neighbouring
// channels of a pixel; a block of kBlock columns is summed in registers, every loaded pixel serving
// all its taps. Columns whose window leaves the image take the same path with the lanes of outside
// pixels masked off, so that there is no branch in it. No include guard: there is one copy for each
// instruction set.

constexpr int kBlock = 8;

/// f on each of B accumulators; unrolled, so that they stay in registers.
template <int B, class F>
[[gnu::always_inline]] inline void each(Vector* acc, F&& f) {
#pragma GCC unroll 8
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

/// Input columns that a block of B outputs reads: where (kept inside the image) and which lanes of
/// it.
struct Columns {
  int64_t offset[64];
  Mask lanes[64];
};

/// B columns from `column` on, one vector of channels from c (counted from the job's first) on. KW,
/// SW: the window's size and stride along the row, dense. Border: some pixel of the block lies
/// outside the image. Whole: all lanes.
template <int B, int KW, int SW, bool Border, bool Whole>
[[gnu::always_inline]] inline void block(const RowShape& s, const RowJob& j, int64_t column,
                                         int64_t c, Mask lanes, const Columns& at) {
  constexpr int kInputs = (B - 1) * SW + KW;
  Vector acc[B];
  const Vector bias = load(j.bias + c, lanes);
  each<B>(acc, [&](Vector, int) { return bias; });
  const float* row = j.x + c + (Border ? 0 : (column * SW - s.pad) * s.pixel);
  const float* weights = j.weights + c;
  for (int64_t r = 0; r < j.rows; ++r, row += s.row_step, weights += KW * s.weight_pixel) {
    const float* p = row;
    Vector w[KW];
#pragma GCC unroll 8
    for (int t = 0; t < KW; ++t) w[t] = load_all(weights + t * s.weight_pixel);
#pragma GCC unroll 40
    for (int i = 0; i < kInputs; ++i) {
      Vector x;
      if constexpr (Border)
        x = load(row + at.offset[i], both(at.lanes[i], lanes));
      else
        x = Whole ? load_all(p) : load(p, lanes);
      p += s.pixel;
      asm("" : "+r"(p));  // one pointer that moves: the compiler would keep ten and spill them
#pragma GCC unroll 8
      for (int k = 0; k < B; ++k) {
        const int t = i - k * SW;
        if (t >= 0 && t < KW) acc[k] = fma(x, w[t], acc[k]);
      }
    }
  }
  finish<B>(s, j, column, c, acc, lanes, Whole);
}

/// Any window: no pixel is used twice.
template <int B>
inline void any_block(const RowShape& s, const RowJob& j, int64_t column, int64_t c, Mask lanes,
                      bool whole) {
  Vector acc[B];
  each<B>(acc, [&](Vector, int) { return load(j.bias + c, lanes); });
  const float* row = j.x + c;
  const float* weights = j.weights + c;
  for (int64_t r = 0; r < j.rows; ++r, row += s.row_step, weights += s.kernel * s.weight_pixel)
    for (int64_t t = 0; t < s.kernel; ++t) {
      const Vector w = load_all(weights + t * s.weight_pixel);
#pragma GCC unroll 8
      for (int k = 0; k < B; ++k) {
        const int64_t x = (column + k) * s.stride - s.pad + t * s.dilation;
        if (x >= 0 && x < s.width) acc[k] = fma(load(row + x * s.pixel, lanes), w, acc[k]);
      }
    }
  finish<B>(s, j, column, c, acc, lanes, whole);
}

template <int B, int KW, int SW>
void columns(const RowShape& s, const RowJob& j, int64_t column) {
  constexpr int kInputs = (B - 1) * SW + KW;
  const int64_t first = column * SW - s.pad;
  const bool border = first < 0 || first + kInputs > s.width;
  Columns at;
  if (border)
    for (int i = 0; i < kInputs; ++i) {
      const int64_t x = first + i, inside = x < 0 ? 0 : x >= s.width ? s.width - 1 : x;
      at.offset[i] = inside * s.pixel;
      at.lanes[i] = x == inside ? lanes_of(kLanes) : lanes_of(0);
    }
  for (int64_t c = 0; c < j.channels; c += kLanes) {
    const bool whole = c + kLanes <= j.channels;
    const Mask lanes = lanes_of(whole ? kLanes : j.channels - c);
    if (border && whole)
      block<B, KW, SW, true, true>(s, j, column, c, lanes, at);
    else if (border)
      block<B, KW, SW, true, false>(s, j, column, c, lanes, at);
    else if (whole)
      block<B, KW, SW, false, true>(s, j, column, c, lanes, at);
    else
      block<B, KW, SW, false, false>(s, j, column, c, lanes, at);
  }
}

template <int B>
void any_columns(const RowShape& s, const RowJob& j, int64_t column) {
  for (int64_t c = 0; c < j.channels; c += kLanes) {
    const bool whole = c + kLanes <= j.channels;
    any_block<B>(s, j, column, c, lanes_of(whole ? kLanes : j.channels - c), whole);
  }
}

using ColumnsFn = void (*)(const RowShape&, const RowJob&, int64_t);
/// By the number of columns.
template <int KW, int SW>
constexpr ColumnsFn kColumns[kBlock + 1] = {nullptr,
                                            columns<1, KW, SW>,
                                            columns<2, KW, SW>,
                                            columns<3, KW, SW>,
                                            columns<4, KW, SW>,
                                            columns<5, KW, SW>,
                                            columns<6, KW, SW>,
                                            columns<7, KW, SW>,
                                            columns<8, KW, SW>};

void row(const RowShape& s, const RowJob& j) {
  const ColumnsFn* fns = nullptr;
  if (s.dilation == 1 && s.kernel == 3)
    fns = s.stride == 1 ? kColumns<3, 1> : s.stride == 2 ? kColumns<3, 2> : nullptr;
  if (s.dilation == 1 && s.kernel == 5)
    fns = s.stride == 1 ? kColumns<5, 1> : s.stride == 2 ? kColumns<5, 2> : nullptr;
  for (int64_t column = j.begin; column < j.end;) {
    const int64_t left = j.end - column;
    // The rest in two equal parts rather than a long and a short one.
    const int64_t n =
        left >= 2 * kBlock || left <= kBlock ? (left < kBlock ? left : kBlock) : (left + 1) / 2;
    if (fns) {
      fns[n](s, j, column);
      column += n;
    } else {
      const int64_t m = n >= 4 ? 4 : 1;
      (m == 4 ? any_columns<4> : any_columns<1>)(s, j, column);
      column += m;
    }
  }
}
