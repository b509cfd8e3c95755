// Convolutions of any rank as direct loops; nothing is unrolled into columns. There are two orders
// with the same products: by rows (each input channel and kernel tap adds one scaled input row to
// an output row) and, where a group has many output channels, by channels (each tap adds a scaled
// row of weights to the channels of one output position).
#include "engine/interpreter/conv.h"

namespace ferrule::interp {
namespace {

/// Position in the input that tap `tap` of output position `at` reads, or -1 outside.
int64_t tap_position(const Window& w, const Dims& spatial, const Dims& in_strides, const Dims& at,
                     const Dims& tap, size_t axes) {
  int64_t from = 0;
  for (size_t k = 0; k < axes; ++k) {
    const int64_t i = at[k] * w.stride[k] + tap[k] * w.dilation[k] - w.begin[k];
    if (i < 0 || i >= spatial[k]) return -1;
    from += i * in_strides[k];
  }
  return from;
}

/// One image and group by channels. x [channels, in_plane] -> y [m, out_plane]; weights [m,
/// channels, taps].
template <class C>
void by_channels(const C* x, const Dims& spatial, const C* weights, const C* bias, int64_t channels,
                 int64_t m, const Window& w, C* y) {
  constexpr int64_t kBlock = 16;  // output positions that share a row of weights while it is near
  const int64_t in_plane = count(spatial), out_plane = count(w.out), taps = count(w.kernel);
  const Dims in_strides = strides(spatial);
  const std::vector<C> packed = channels_last(weights, m, channels * taps),  // [channels, taps, m]
      pixels = channels_last(x, channels, in_plane);
  std::vector<C> out(kBlock * m);
  std::vector<int64_t> from(kBlock);
  Dims at(w.out.size(), 0);
  for (int64_t start = 0; start < out_plane; start += kBlock) {
    const int64_t n = std::min(kBlock, out_plane - start);
    std::vector<Dims> places;
    for (int64_t p = 0; p < n; ++p, next(at, w.out)) {
      places.push_back(at);
      for (int64_t i = 0; i < m; ++i) out[p * m + i] = bias ? bias[i] : C{0};
    }
    Dims tap(w.kernel.size(), 0);
    int64_t t = 0;
    do {
      for (int64_t p = 0; p < n; ++p) {
        from[p] = tap_position(w, spatial, in_strides, places[p], tap, at.size());
      }
      const C* rows = packed.data() + t * m;
      for (int64_t c = 0; c < channels; c += 4) {
        for (int64_t p = 0; p < n; ++p) {
          if (from[p] < 0) continue;
          const C* in = pixels.data() + from[p] * channels + c;
          const C* row = rows + c * taps * m;
          C* to = out.data() + p * m;
          if (c + 4 <= channels)
            add_four(to, {row, row + taps * m, row + 2 * taps * m, row + 3 * taps * m}, in, m);
          else
            for (int64_t r = 0; r < channels - c; ++r) add_row(to, row + r * taps * m, in[r], m, 1);
        }
      }
      ++t;
    } while (next(tap, w.kernel));
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t i = 0; i < m; ++i) y[i * out_plane + start + p] = out[p * m + i];
    }
  }
}

int64_t ceil_div(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

/// Axes of one element that the window does not touch are left out, and trailing ones that it does
/// not touch are one long axis: rows are to be long.
void collapse(Dims& spatial, Window& w) {
  auto plain = [&](size_t k) {
    return w.kernel[k] == 1 && w.stride[k] == 1 && w.begin[k] == 0 && w.end[k] == 0;
  };
  auto erase = [&](size_t k) {
    for (Dims* d : {&spatial, &w.kernel, &w.stride, &w.dilation, &w.begin, &w.end, &w.out})
      d->erase(d->begin() + static_cast<int64_t>(k));
  };
  for (size_t k = spatial.size(); k-- > 0 && spatial.size() > 1;)
    if (spatial[k] == 1 && plain(k)) erase(k);
  while (spatial.size() > 1 && plain(spatial.size() - 1) && plain(spatial.size() - 2)) {
    const size_t k = spatial.size() - 2;
    spatial[k] *= spatial[k + 1];
    w.out[k] *= w.out[k + 1];
    erase(k + 1);
  }
}

}  // namespace

template <class C>
std::vector<C> convolve(const C* x, const Dims& xdims, const C* weights, int64_t out_channels,
                        const C* bias, int64_t group, Window w) {
  Dims spatial(xdims.begin() + 2, xdims.end());
  collapse(spatial, w);
  const int64_t batch = xdims[0], channels = xdims[1] / group, per_group = out_channels / group;
  const int64_t in_plane = count(spatial), out_plane = count(w.out), taps = count(w.kernel);
  const size_t last = spatial.size() - 1;
  const int64_t row = w.out[last], in_row = spatial[last];
  const Dims outer(w.out.begin(), w.out.end() - 1), in_strides = strides(spatial);
  std::vector<C> y(batch * out_channels * out_plane);
  if (y.empty()) return y;
  if (per_group >= 16) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t g = 0; g < group; ++g) {
        by_channels(x + (b * group + g) * channels * in_plane, spatial,
                    weights + g * per_group * channels * taps,
                    bias ? bias + g * per_group : nullptr, channels, per_group, w,
                    y.data() + (b * group + g) * per_group * out_plane);
      }
    }
    return y;
  }
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t m = 0; m < out_channels; ++m) {
      C* out = y.data() + (b * out_channels + m) * out_plane;
      const C* in = x + (b * xdims[1] + m / per_group * channels) * in_plane;
      const C* kernel = weights + m * channels * taps;
      std::fill(out, out + out_plane, bias ? bias[m] : C{0});
      Dims at(outer.size(), 0);
      do {
        for (int64_t c = 0; c < channels; ++c) {
          Dims tap(w.kernel.size(), 0);
          int64_t t = c * taps;
          do {
            const C weight = kernel[t++];
            const int64_t line = tap_position(w, spatial, in_strides, at, tap, last);
            if (line < 0) continue;
            const int64_t from = c * in_plane + line;
            const int64_t shift = tap[last] * w.dilation[last] - w.begin[last];
            const int64_t lo = std::max<int64_t>(0, ceil_div(-shift, w.stride[last]));
            const int64_t hi = std::min(row, ceil_div(in_row - shift, w.stride[last]));
            if (lo < hi) {
              add_row(out + lo, in + from + shift + lo * w.stride[last], weight, hi - lo,
                      w.stride[last]);
            }
          } while (next(tap, w.kernel));
        }
        out += row;
      } while (next(at, outer));
    }
  }
  return y;
}
template std::vector<int64_t> convolve<int64_t>(const int64_t*, const Dims&, const int64_t*,
                                                int64_t, const int64_t*, int64_t, Window);

Result<ConvShape> conv_shape(const Call& c, const Tensor& x, const Tensor& w, const Tensor* bias) {
  if (x.rank() < 3 || w.rank() != x.rank()) {
    return c.bad("input {} and weights {} do not fit together", text(x.dims()), text(w.dims()));
  }
  const int64_t group = c.n.attrs.i("group", 1), m = w.dims()[0];
  if (group < 1 || x.dims()[1] % group != 0 || m % group != 0) {
    return c.bad_attr("group", "{} does not divide the channels {} and {}", group, x.dims()[1], m);
  }
  if (w.dims()[1] != x.dims()[1] / group) {
    return c.bad("weights {} have {} input channels, {} / {} are wanted", text(w.dims()),
                 w.dims()[1], x.dims()[1], group);
  }
  if (bias && bias->dims() != Dims{m})
    return c.bad("bias {} for {}", text(bias->dims()), counted(m, "channel"));
  const Dims spatial(x.dims().begin() + 2, x.dims().end());
  ConvShape s{group, {}, {x.dims()[0], m}};
  FERRULE_ASSIGN(s.window, window(c, spatial, Dims(w.dims().begin() + 2, w.dims().end()), false));
  s.out.insert(s.out.end(), s.window.out.begin(), s.window.out.end());
  FERRULE_TRY(c.fits(DType::f64, s.out));
  return s;
}

namespace {

Outputs conv(const Call& c) {
  const Tensor &x = *c.input(0), &w = *c.input(1);
  FERRULE_ASSIGN(const ConvShape s, conv_shape(c, x, w, c.input(2)));
  return with_number(c, x, [&]<class C>() {
    const View<C> xs(x), ws(w);
    std::vector<C> bias;
    if (c.input(2)) {
      const View<C> b(*c.input(2));
      bias.assign(b.data(), b.data() + b.size());
    }
    return one(store(x.dtype(), s.out,
                     convolve(xs.data(), x.dims(), ws.data(), w.dims()[0],
                              c.input(2) ? bias.data() : nullptr, s.group, s.window)));
  });
}

/// Pads and output dims of a transposed convolution.
Result<Window> transposed_window(const Call& c, const Dims& spatial, const Dims& kernel) {
  const size_t rank = spatial.size();
  Window w;
  w.kernel = kernel;
  for (int64_t k : kernel) {
    if (k < 1) return c.bad_attr("kernel_shape", "{} is out of range", k);
  }
  const Dims given = c.n.attrs.ints("kernel_shape");
  if (!given.empty() && given != kernel) {
    return c.bad_attr("kernel_shape", "{} but the weights have {}", text(given), text(kernel));
  }
  FERRULE_ASSIGN(w.stride, list_attr(c, "strides", rank, 1, 1));
  FERRULE_ASSIGN(w.dilation, list_attr(c, "dilations", rank, 1, 1));
  FERRULE_ASSIGN(const Dims pads, list_attr(c, "pads", 2 * rank, 0, -(int64_t{1} << 31)));
  FERRULE_ASSIGN(const Dims extra, list_attr(c, "output_padding", rank, 0, 0));
  Dims wanted = c.n.attrs.ints("output_shape");
  if (wanted.size() == rank + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  if (!wanted.empty() && wanted.size() != rank) {
    return c.bad_attr("output_shape", "{} entries, {} are wanted", wanted.size(), rank);
  }
  const std::string mode = c.n.attrs.s("auto_pad", "NOTSET");
  for (size_t k = 0; k < rank; ++k) {
    const int64_t full =
        w.stride[k] * (spatial[k] - 1) + (kernel[k] - 1) * w.dilation[k] + 1 + extra[k];
    int64_t begin = pads[k], end = pads[rank + k];
    if (mode == "VALID") begin = end = 0;
    if (!wanted.empty() || mode.starts_with("SAME")) {
      const int64_t out = wanted.empty() ? spatial[k] * w.stride[k] : wanted[k];
      if (out < 0 || out > (int64_t{1} << 31))
        return c.bad_attr("output_shape", "{} is out of range", out);
      const int64_t total = std::max<int64_t>(0, full - out);
      begin = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      end = full - out - begin;  // negative: zeros behind the data
    }
    w.begin.push_back(begin);
    w.end.push_back(end);
    w.out.push_back(full - begin - end);
  }
  return w;
}

template <class C>
std::vector<C> transposed(const View<C>& x, const Dims& xdims, const View<C>& weights,
                          const Dims& wdims, int64_t group, const Window& w, std::vector<C> y) {
  const Dims spatial(xdims.begin() + 2, xdims.end());
  const int64_t channels = xdims[1], per_group = wdims[1], taps = count(w.kernel);
  const int64_t in_plane = count(spatial), out_plane = count(w.out);
  if (in_plane == 0) return y;
  const Dims out_strides = strides(w.out);
  for (int64_t b = 0; b < xdims[0]; ++b) {
    for (int64_t ch = 0; ch < channels; ++ch) {
      const C* in = x.data() + (b * channels + ch) * in_plane;
      for (int64_t m = 0; m < per_group; ++m) {
        const int64_t to_channel = ch / (channels / group) * per_group + m;
        C* out = y.data() + (b * per_group * group + to_channel) * out_plane;
        const C* kernel = weights.data() + (ch * per_group + m) * taps;
        Dims tap(w.kernel.size(), 0);
        int64_t t = 0;
        do {
          const C weight = kernel[t++];
          Dims at(spatial.size(), 0);
          int64_t i = 0;
          do {
            int64_t to = 0;
            bool inside = true;
            for (size_t k = 0; k < at.size(); ++k) {
              const int64_t o = at[k] * w.stride[k] + tap[k] * w.dilation[k] - w.begin[k];
              inside &= o >= 0 && o < w.out[k];
              to += o * out_strides[k];
            }
            if (inside) out[to] = add(out[to], mul(weight, in[i]));
            ++i;
          } while (next(at, spatial));
        } while (next(tap, w.kernel));
      }
    }
  }
  return y;
}

Outputs conv_transpose(const Call& c) {
  const Tensor &x = *c.input(0), &w = *c.input(1);
  if (x.rank() < 3 || w.rank() != x.rank() || w.dims()[0] != x.dims()[1]) {
    return c.bad("input {} and weights {} do not fit together", text(x.dims()), text(w.dims()));
  }
  const int64_t group = c.n.attrs.i("group", 1);
  if (group < 1 || x.dims()[1] % group != 0) {
    return c.bad_attr("group", "{} does not divide the channels {}", group, x.dims()[1]);
  }
  const Dims spatial(x.dims().begin() + 2, x.dims().end());
  FERRULE_ASSIGN(const Window win,
                 transposed_window(c, spatial, Dims(w.dims().begin() + 2, w.dims().end())));
  int64_t channels = 0;
  if (__builtin_mul_overflow(w.dims()[1], group, &channels))
    return c.bad("too many output channels");
  Dims out{x.dims()[0], channels};
  out.insert(out.end(), win.out.begin(), win.out.end());
  FERRULE_TRY(c.fits(DType::f64, out));
  if (c.input(2) && c.input(2)->dims() != Dims{channels}) {
    return c.bad("bias {} for {}", text(c.input(2)->dims()), counted(channels, "channel"));
  }
  return with_float(c, x, [&]<class C>() {
    std::vector<C> y(count(out));
    if (c.input(2)) {
      const View<C> bias(*c.input(2));
      const int64_t plane = count(win.out);
      for (size_t i = 0; i < y.size(); ++i) y[i] = bias[static_cast<int64_t>(i) / plane % channels];
    }
    return one(
        store(x.dtype(), out,
              transposed(View<C>(x), x.dims(), View<C>(w), w.dims(), group, win, std::move(y))));
  });
}

/// Sums the columns of image blocks back into the image: the inverse gather of im2col.
Outputs col2im(const Call& c) {
  const Tensor& x = *c.input(0);
  if (!is_integral(c.input(1)->dtype()) || !is_integral(c.input(2)->dtype()))
    return c.unsupported_type(*c.input(1));
  const Dims image = c.input(1)->to_i64(), block = c.input(2)->to_i64();
  const size_t rank = image.size();
  if (x.rank() != 3 || rank == 0 || block.size() != rank)
    return c.bad("input {} is not [N,C*block,L]", text(x.dims()));
  Window w;
  FERRULE_ASSIGN(w.stride, list_attr(c, "strides", rank, 1, 1));
  FERRULE_ASSIGN(w.dilation, list_attr(c, "dilations", rank, 1, 1));
  FERRULE_ASSIGN(const Dims pads, list_attr(c, "pads", 2 * rank, 0, 0));
  Dims blocks;
  FERRULE_TRY(c.fits(DType::f64, image));
  FERRULE_TRY(c.fits(DType::f64, block));
  for (size_t k = 0; k < rank; ++k) {
    if (block[k] < 1) return c.bad("block {} is empty", text(block));
    const int64_t room = image[k] + pads[k] + pads[rank + k] - ((block[k] - 1) * w.dilation[k] + 1);
    if (room < 0) return c.bad("a block of {} does not fit into {}", block[k], image[k]);
    blocks.push_back(room / w.stride[k] + 1);
  }
  const int64_t taps = count(block), places = count(blocks);
  if (x.dims()[1] % taps != 0 || x.dims()[2] != places) {
    return c.bad("input {} for blocks {} at {} places", text(x.dims()), text(block), places);
  }
  const int64_t channels = x.dims()[1] / taps, plane = count(image);
  Dims out{x.dims()[0], channels};
  out.insert(out.end(), image.begin(), image.end());
  FERRULE_TRY(c.fits(DType::f64, out));
  return with_number(c, x, [&]<class C>() {
    const View<C> in(x);
    Made<C> y(c, x.dtype(), out);
    std::fill_n(y.data(), count(out), C{0});
    const Dims out_strides = strides(image), outer(blocks.begin(), blocks.end() - 1);
    int64_t i = 0;
    for (int64_t nc = 0; nc < x.dims()[0] * channels; ++nc) {
      Dims tap(rank, 0);
      do {
        // The blocks [begin, end) of a row have this tap inside.
        const size_t last = rank - 1;
        const int64_t o = tap[last] * w.dilation[last] - pads[last], step = w.stride[last];
        const int64_t begin = std::clamp<int64_t>(ceil_div(-o, step), 0, blocks[last]),
                      end = std::clamp<int64_t>(ceil_div(image[last] - o, step), 0, blocks[last]);
        Dims at(rank - 1, 0);
        do {
          int64_t to = nc * plane + o;
          bool inside = true;
          for (size_t k = 0; k < last; ++k) {
            const int64_t p = at[k] * w.stride[k] + tap[k] * w.dilation[k] - pads[k];
            inside &= p >= 0 && p < image[k];
            to += p * out_strides[k];
          }
          C* row = y.data() + to;
          if (inside && step == 1) {
            add_row(row + begin, in.data() + i + begin, C{1}, end - begin, 1);
          } else {
            for (int64_t j = begin; inside && j < end; ++j)
              row[j * step] = add(row[j * step], in[i + j]);
          }
          i += blocks[last];
        } while (next(at, outer));
      } while (next(tap, block));
    }
    return one(y.done());
  });
}

}  // namespace

std::vector<Entry> conv_table() {
  return {{"Conv", conv, 2}, {"ConvTranspose", conv_transpose, 2}, {"Col2Im", col2im, 3}};
}

}  // namespace ferrule::interp
