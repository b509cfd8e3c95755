// One row of a depthwise convolution for a vector type `Vector`: included by a file that has chosen the instruction
// set and defined it, inside a namespace of its own. A vector holds neighbouring channels of a pixel; a block
// of kBlock columns is summed in registers, every loaded pixel serving all its taps. Columns whose window leaves the
// image take the same path with the lanes of outside pixels masked off, so that there is no branch in it.
// No include guard: there is one copy for each instruction set.

constexpr int kBlock = 8;

/// Applies the steps to B neighbouring columns. `at`: of the first column in an operand of the result's size.
template <int B>
inline void apply_ops(const RowShape& s, Vector* acc, int64_t at, int64_t c, Mask lanes) {
  using K = RegisterOp::Kind;
  for (const RegisterOp& op : s.ops) {
    const Vector a = broadcast(op.alpha), b = broadcast(op.beta);
    if (op.kind < K::add) {
      for (int k = 0; k < B; ++k) {
        switch (op.kind) {
          case K::relu: acc[k] = maximum(zero(), acc[k]); break;
          case K::leaky_relu: acc[k] = add(maximum(zero(), acc[k]), mul(a, minimum(zero(), acc[k]))); break;
          case K::clip: acc[k] = minimum(b, maximum(a, acc[k])); break;
          case K::linear: acc[k] = fma(a, acc[k], b); break;
          case K::hardswish: acc[k] = mul(acc[k], minimum(broadcast(1), maximum(zero(), fma(a, acc[k], b)))); break;
          case K::hardsigmoid: acc[k] = minimum(broadcast(1), maximum(zero(), fma(a, acc[k], b))); break;
          default: acc[k] = maximum(acc[k], sub(zero(), acc[k])); break;
        }
      }
      continue;
    }
    const bool full = op.spread == RegisterOp::Spread::full;
    const float* from = full ? op.operand + at : op.operand + (op.spread == RegisterOp::Spread::channel ? c : 0);
    Vector v = op.spread == RegisterOp::Spread::scalar ? broadcast(*op.operand) : load(from, lanes);
    for (int k = 0; k < B; ++k) {
      if (full && k > 0) v = load(from + k * s.pixel, lanes);
      switch (op.kind) {
        case K::add: acc[k] = add(acc[k], v); break;
        case K::sub: acc[k] = sub(acc[k], v); break;
        case K::mul: acc[k] = mul(acc[k], v); break;
        case K::div: acc[k] = div(acc[k], v); break;
        case K::max: acc[k] = maximum(v, acc[k]); break;
        default: acc[k] = minimum(v, acc[k]); break;
      }
    }
  }
}

/// Input columns that a block of B outputs reads: where (kept inside the image) and which lanes of it.
struct Columns {
  int64_t offset[64];
  Mask lanes[64];
};

/// B columns from `column` on, one vector of channels from c (counted from the job's first) on. KW, SW: the window's
/// size and stride along the row, dense. Border: some pixel of the block lies outside the image.
template <int B, int KW, int SW, bool Border>
inline void block(const RowShape& s, const RowJob& j, int64_t column, int64_t c, Mask lanes, bool whole, const Columns& at) {
  constexpr int kInputs = (B - 1) * SW + KW;
  Vector acc[B];
  const Vector bias = load(j.bias + c, lanes);
  for (int k = 0; k < B; ++k) acc[k] = bias;
  const float* row = j.x + c + (Border ? 0 : (column * SW - s.pad) * s.pixel);
  const float* weights = j.weights + c;
  for (int64_t r = 0; r < j.rows; ++r, row += s.row_step, weights += KW * s.weight_pixel) {
    Vector w[KW];
    for (int t = 0; t < KW; ++t) w[t] = load_all(weights + t * s.weight_pixel);
#pragma GCC unroll 40
    for (int i = 0; i < kInputs; ++i) {
      Vector x;
      if constexpr (Border) x = load(row + at.offset[i], both(at.lanes[i], lanes));
      else x = load(row + i * s.pixel, lanes);
#pragma GCC unroll 8
      for (int k = 0; k < B; ++k) {
        const int t = i - k * SW;
        if (t >= 0 && t < KW) acc[k] = fma(x, w[t], acc[k]);
      }
    }
  }
  apply_ops<B>(s, acc, j.y_offset + column * s.pixel + c, j.c + c, lanes);
  float* y = j.y + column * s.pixel + c;
  for (int k = 0; k < B; ++k) {
    if (whole) store(y + k * s.pixel, acc[k]);
    else store(y + k * s.pixel, acc[k], lanes);
  }
}

/// Any window: no pixel is used twice.
template <int B>
inline void any_block(const RowShape& s, const RowJob& j, int64_t column, int64_t c, Mask lanes, bool whole) {
  Vector acc[B];
  for (int k = 0; k < B; ++k) acc[k] = load(j.bias + c, lanes);
  const float* row = j.x + c;
  const float* weights = j.weights + c;
  for (int64_t r = 0; r < j.rows; ++r, row += s.row_step, weights += s.kernel * s.weight_pixel)
    for (int64_t t = 0; t < s.kernel; ++t) {
      const Vector w = load_all(weights + t * s.weight_pixel);
      for (int k = 0; k < B; ++k) {
        const int64_t x = (column + k) * s.stride - s.pad + t * s.dilation;
        if (x >= 0 && x < s.width) acc[k] = fma(load(row + x * s.pixel, lanes), w, acc[k]);
      }
    }
  apply_ops<B>(s, acc, j.y_offset + column * s.pixel + c, j.c + c, lanes);
  float* y = j.y + column * s.pixel + c;
  for (int k = 0; k < B; ++k) {
    if (whole) store(y + k * s.pixel, acc[k]);
    else store(y + k * s.pixel, acc[k], lanes);
  }
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
    if (border) block<B, KW, SW, true>(s, j, column, c, lanes, whole, at);
    else block<B, KW, SW, false>(s, j, column, c, lanes, whole, at);
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
constexpr ColumnsFn kColumns[kBlock + 1] = {nullptr,            columns<1, KW, SW>, columns<2, KW, SW>,
                                            columns<3, KW, SW>, columns<4, KW, SW>, columns<5, KW, SW>,
                                            columns<6, KW, SW>, columns<7, KW, SW>, columns<8, KW, SW>};

void row(const RowShape& s, const RowJob& j) {
  const ColumnsFn* fns = nullptr;
  if (s.dilation == 1 && s.kernel == 3) fns = s.stride == 1 ? kColumns<3, 1> : s.stride == 2 ? kColumns<3, 2> : nullptr;
  if (s.dilation == 1 && s.kernel == 5) fns = s.stride == 1 ? kColumns<5, 1> : s.stride == 2 ? kColumns<5, 2> : nullptr;
  for (int64_t column = j.begin; column < j.end;) {
    const int64_t left = j.end - column;
    // The rest in two equal parts rather than a long and a short one.
    const int64_t n = left >= 2 * kBlock || left <= kBlock ? (left < kBlock ? left : kBlock) : (left + 1) / 2;
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
