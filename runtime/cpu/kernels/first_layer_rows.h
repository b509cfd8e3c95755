// One row of a convolution that reads planes (the model's own layout) and writes channels-last
// pixels: included behind depthwise_rows.h, whose vectors, tails and jobs it uses. A vector holds
// neighbouring filters; B pixels and V vectors are summed in registers, every input value being
// spread over a vector. Columns whose window leaves the image are taken one by one. No include
// guard: there is one copy for each instruction set.

template <int B, int V, int SW, bool Border>
[[gnu::noinline]] void first_block(const RowShape& s, const RowJob& j, int64_t column, int64_t c) {
  Vector acc[V][B];
  Mask lanes[V];
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    const int64_t left = j.channels - c - v * kLanes;
    lanes[v] = lanes_of(left < kLanes ? left : kLanes);
    const Vector bias = load(j.bias + c + v * kLanes, lanes[v]);
    each<B>(acc[v], [&](Vector, int) { return bias; });
  }
  const float* w = j.weights + c;
  const int64_t first = column * SW - s.pad;
  for (int64_t plane = 0; plane < s.planes; ++plane) {
    const float* row = j.x + plane * s.plane_step + first;
    for (int64_t r = 0; r < j.rows; ++r, row += s.row_step)
      for (int64_t t = 0; t < s.kernel; ++t, w += s.weight_pixel) {
        if (Border && (first + t * s.dilation < 0 || first + t * s.dilation >= s.width)) continue;
        const float* x = row + t * s.dilation;
        Vector taps[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) taps[v] = load_all(w + v * kLanes);
#pragma GCC unroll 8
        for (int k = 0; k < B; ++k) {
          const Vector pixel = broadcast(x[k * SW]);
#pragma GCC unroll 2
          for (int v = 0; v < V; ++v) acc[v][k] = fma(pixel, taps[v], acc[v][k]);
        }
      }
    w += (s.window_rows - j.rows) * s.kernel * s.weight_pixel;
  }
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v)
    finish<B>(s, j, column, c + v * kLanes, acc[v], lanes[v], c + (v + 1) * kLanes <= j.channels);
}

/// All filters of B columns: two vectors at a time where the registers hold them.
template <int B, int SW, bool Border>
void first_columns(const RowShape& s, const RowJob& j, int64_t column) {
  int64_t c = 0;
  if constexpr (kLanes == 16)
    for (; c + kLanes < j.channels; c += 2 * kLanes) first_block<B, 2, SW, Border>(s, j, column, c);
  for (; c < j.channels; c += kLanes) first_block<B, 1, SW, Border>(s, j, column, c);
}

template <int SW>
void first_row_of(const RowShape& s, const RowJob& j) {
  const int64_t reach = (s.kernel - 1) * s.dilation;
  for (int64_t column = j.begin; column < j.end;) {
    const int64_t first = column * SW - s.pad, left = j.end - column;
    // Columns from here on whose windows lie inside the image.
    const int64_t inside =
        first < 0 || first + reach >= s.width ? 0 : (s.width - 1 - reach - first) / SW + 1;
    const int64_t n = inside < left ? inside : left;
    if (n >= 8)
      first_columns<8, SW, false>(s, j, column), column += 8;
    else if (n >= 4)
      first_columns<4, SW, false>(s, j, column), column += 4;
    else if (n >= 1)
      first_columns<1, SW, false>(s, j, column), column += 1;
    else
      first_columns<1, SW, true>(s, j, column), column += 1;
  }
}

void first_row(const RowShape& s, const RowJob& j) {
  if (s.stride == 1)
    first_row_of<1>(s, j);
  else
    first_row_of<2>(s, j);
}
