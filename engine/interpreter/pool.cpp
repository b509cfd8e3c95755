// Pooling: windows over the spatial axes of [N, C, spatial...], one output element at a time.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

struct Pool {
  Window w;
  Dims spatial, out;  ///< out: [N, C, out...]
  int64_t planes = 0;
};

Result<Pool> pool_shape(const Call& c) {
  const Dims& x = c.input(0)->dims();
  if (x.size() < 3) return c.bad("input {} has no spatial axes", text(x));
  Pool p;
  p.spatial.assign(x.begin() + 2, x.end());
  FERRULE_ASSIGN(p.w, window(c, p.spatial, {}, c.n.attrs.i("ceil_mode", 0) != 0));
  p.out = {x[0], x[1]};
  p.out.insert(p.out.end(), p.w.out.begin(), p.w.out.end());
  p.planes = x[0] * x[1];
  FERRULE_TRY(c.fits(DType::f64, p.out));
  return p;
}

/// For each output element: start(), one call of tap(position in the input) for each element inside
/// the image, finish(output index, taps inside image or padding).
template <class Start, class Tap, class Finish>
void slide(const Pool& p, Start&& start, Tap&& tap, Finish&& finish) {
  const Window& w = p.w;
  const size_t rank = w.rank();
  const Dims in_strides = strides(p.spatial);
  const int64_t in_plane = count(p.spatial);
  if (count(p.out) == 0) return;
  int64_t o = 0;
  Dims lo(rank), hi(rank);
  for (int64_t plane = 0; plane < p.planes; ++plane) {
    Dims at(rank, 0);
    do {
      double padded = 1;  // taps that lie inside the image or its padding; a double cannot overflow
      bool empty = false;
      for (size_t k = 0; k < rank; ++k) {
        const int64_t first = at[k] * w.stride[k] - w.begin[k], d = w.dilation[k];
        lo[k] = first >= 0 ? 0 : (-first + d - 1) / d;
        const int64_t room = p.spatial[k] - first, room_padded = p.spatial[k] + w.end[k] - first;
        hi[k] = std::min(w.kernel[k], room <= 0 ? 0 : (room + d - 1) / d);
        padded *= static_cast<double>(
            std::min(w.kernel[k], room_padded <= 0 ? 0 : (room_padded + d - 1) / d));
        empty |= hi[k] <= lo[k];
      }
      start();
      if (!empty) {
        Dims t = lo;
        for (;;) {
          int64_t from = plane * in_plane;
          for (size_t k = 0; k < rank; ++k) {
            from += (at[k] * w.stride[k] - w.begin[k] + t[k] * w.dilation[k]) * in_strides[k];
          }
          tap(from);
          size_t k = rank;
          while (k > 0 && ++t[k - 1] >= hi[k - 1]) --k, t[k] = lo[k];
          if (k == 0) break;
        }
      }
      finish(o++, padded);
    } while (next(at, w.out));
  }
}

double least_integer(DType t) {
  return is_unsigned_int(t) || t == DType::boolean ? 0 : -std::ldexp(1, size_bits(t) - 1);
}

Outputs max_pool(const Call& c) {
  FERRULE_ASSIGN(const Pool p, pool_shape(c));
  const Tensor& x = *c.input(0);
  return with_number(c, x, [&]<class C>() -> Outputs {
    const View<C> in(x);
    std::vector<C> y(count(p.out));
    std::vector<int64_t> indices(c.wants(1) ? y.size() : 0);
    const bool column_major = c.n.attrs.i("storage_order", 0) != 0;
    const int64_t plane = count(p.spatial);
    // A window of nothing but pads gives the least number of the type.
    const C least = std::is_floating_point_v<C> ? -std::numeric_limits<C>::infinity()
                                                : from_real<C>(least_integer(x.dtype()));
    C best{};
    int64_t where = -1;
    slide(
        p,
        [&] {
          best = least;
          where = -1;
        },
        [&](int64_t i) {
          if (where < 0 || in[i] > best || (is_nan(in[i]) && !is_nan(best)))
            best = in[i], where = i;
        },
        [&](int64_t o, double) {
          y[o] = best;
          if (indices.empty()) return;
          int64_t flat = std::max<int64_t>(where, 0);
          if (column_major) {
            int64_t rest = flat % plane, scale = 1, at = 0;
            std::vector<int64_t> index(p.spatial.size());
            for (size_t k = p.spatial.size(); k-- > 0;)
              index[k] = rest % p.spatial[k], rest /= p.spatial[k];
            for (size_t k = 0; k < index.size(); ++k) at += index[k] * scale, scale *= p.spatial[k];
            flat = flat / plane * plane + at;
          }
          indices[o] = flat;
        });
    auto out = one(store(x.dtype(), p.out, y));
    if (c.wants(1)) out->push_back(Tensor::of_i64(p.out, indices));
    return out;
  });
}

Outputs average_pool(const Call& c) {
  FERRULE_ASSIGN(const Pool p, pool_shape(c));
  const Tensor& x = *c.input(0);
  const bool include = c.n.attrs.i("count_include_pad", 0) != 0;
  return with_float(c, x, [&]<class C>() {
    const View<C> in(x);
    std::vector<C> y(count(p.out));
    C sum = 0;
    int64_t n = 0;
    slide(
        p, [&] { sum = 0, n = 0; }, [&](int64_t i) { sum += in[i], ++n; },
        [&](int64_t o, double padded) {
          y[o] = sum / static_cast<C>(include ? padded : static_cast<double>(n));
        });
    return one(store(x.dtype(), p.out, y));
  });
}

template <class C>
C power(C v, C p) {
  return p == 1 ? v : p == 2 ? v * v : std::pow(v, p);
}
template <class C>
C root(C v, C p) {
  return p == 1 ? v : p == 2 ? std::sqrt(v) : std::pow(v, 1 / p);
}

Outputs lp_pool(const Call& c) {
  FERRULE_ASSIGN(const Pool p, pool_shape(c));
  const Tensor& x = *c.input(0);
  const int64_t order = c.n.attrs.i("p", 2);
  if (order < 1) return c.bad_attr("p", "{} is not positive", order);
  return with_float(c, x, [&]<class C>() {
    const View<C> in(x);
    std::vector<C> y(count(p.out));
    const C norm = static_cast<C>(order);
    C sum = 0;
    slide(
        p, [&] { sum = 0; }, [&](int64_t i) { sum += power(std::fabs(in[i]), norm); },
        [&](int64_t o, double) { y[o] = root(sum, norm); });
    return one(store(x.dtype(), p.out, y));
  });
}

/// Global pooling: one value for each [N, C] plane.
template <class F>
Outputs global(const Call& c, F&& reduce) {
  const Tensor& x = *c.input(0);
  if (x.rank() < 2) return c.bad("input {} has no channels", text(x.dims()));
  Dims out(x.dims().size(), 1);
  out[0] = x.dims()[0], out[1] = x.dims()[1];
  const int64_t plane = count(x.dims(), 2);
  return with_float(c, x, [&]<class C>() {
    const View<C> in(x);
    std::vector<C> y(count(out));
    for (size_t k = 0; k < y.size(); ++k) {
      y[k] = reduce(std::span<const C>(in.data() + static_cast<int64_t>(k) * plane,
                                       static_cast<size_t>(plane)));
    }
    return one(store(x.dtype(), out, y));
  });
}

Outputs global_average_pool(const Call& c) {
  return global(c, []<class C>(std::span<const C> v) {
    double sum = 0;  // planes may be large
    for (C e : v) sum += static_cast<double>(e);
    return static_cast<C>(sum / static_cast<double>(v.size()));
  });
}
Outputs global_max_pool(const Call& c) {
  return global(c, []<class C>(std::span<const C> v) {
    C best = -std::numeric_limits<C>::infinity();
    for (C e : v) {
      if (e > best || is_nan(e)) best = e;
    }
    return best;
  });
}
Outputs global_lp_pool(const Call& c) {
  const int64_t order = c.n.attrs.i("p", 2);
  if (order < 1) return c.bad_attr("p", "{} is not positive", order);
  return global(c, [&]<class C>(std::span<const C> v) {
    C sum = 0;
    for (C e : v) sum += power(std::fabs(e), static_cast<C>(order));
    return root(sum, static_cast<C>(order));
  });
}

Outputs max_unpool(const Call& c) {
  const Tensor &x = *c.input(0), &at = *c.input(1);
  if (x.rank() < 3 || at.dims() != x.dims())
    return c.bad("input {} and indices {}", text(x.dims()), text(at.dims()));
  if (at.dtype() != DType::i64) return c.unsupported_type(at);
  const size_t rank = x.dims().size() - 2;
  FERRULE_ASSIGN(const Dims kernel, list_attr(c, "kernel_shape", rank, 1, 1));
  FERRULE_ASSIGN(const Dims stride, list_attr(c, "strides", rank, 1, 1));
  FERRULE_ASSIGN(const Dims pads, list_attr(c, "pads", 2 * rank, 0, 0));
  Dims natural{x.dims()[0], x.dims()[1]};
  for (size_t k = 0; k < rank; ++k) {
    natural.push_back((x.dims()[2 + k] - 1) * stride[k] - pads[k] - pads[rank + k] + kernel[k]);
  }
  FERRULE_TRY(c.fits(DType::f64, natural));
  const Dims out = c.ints(2, "").value_or(natural);
  FERRULE_TRY(c.fits(DType::f64, out));
  if (out.size() != natural.size())
    return c.bad("output shape {} for input {}", text(out), text(x.dims()));
  // Indices count in the natural output; a larger one holds it in its corner.
  std::vector<int64_t> from(count(out), -1);
  const Dims out_strides = strides(out), natural_strides = strides(natural);
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t flat = at.at_i64(i), to = 0;
    if (flat < 0 || flat >= count(natural)) return c.bad("index {} is out of range", flat);
    for (size_t k = 0; k < natural.size(); ++k) {
      const int64_t index = flat / natural_strides[k];
      flat %= natural_strides[k];
      if (index >= out[k]) return c.bad("index {} lies outside {}", at.at_i64(i), text(out));
      to += index * out_strides[k];
    }
    from[to] = i;
  }
  return one(take(x, out, from));
}

/// The largest pixel of each cell of a grid over each region, which whole pixels bound; a cell
/// without any gives 0. source: https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html (Fast R-CNN)
Outputs max_roi_pool(const Call& c) {
  const Tensor &x = *c.input(0), &rois = *c.input(1);
  const Dims cells = c.n.attrs.ints("pooled_shape");
  if (x.rank() != 4 || rois.rank() != 2 || rois.dims()[1] != 5 || rois.dtype() != x.dtype())
    return c.bad("input {} and regions {}", text(x.dims()), text(rois.dims()));
  if (cells.size() != 2 || cells[0] < 1 || cells[1] < 1)
    return c.bad_attr("pooled_shape", "{} are not two sizes", text(cells));
  const double scale = c.n.attrs.f("spatial_scale", 1);
  const int64_t channels = x.dims()[1];
  const Dims out{rois.dims()[0], channels, cells[0], cells[1]};
  FERRULE_TRY(c.fits(DType::f64, out));
  return with_float(c, x, [&]<class C>() -> Outputs {
    const View<C> in(x);
    const View<double> region(rois);
    std::vector<C> y;
    y.reserve(static_cast<size_t>(count(out)));
    for (int64_t r = 0; r < out[0]; ++r) {
      const double image = region[r * 5];
      if (!(image >= 0 && image < static_cast<double>(x.dims()[0])))
        return c.bad("image {} of region {} is out of range", image, r);
      // Of axis 0 (rows) and 1 (columns): the pixels of each of its cells.
      std::vector<std::pair<int64_t, int64_t>> bounds[2];
      for (const int64_t axis : {0, 1}) {
        const auto pixels = static_cast<double>(x.dims()[2 + axis]);
        const double first = std::round(region[r * 5 + 2 - axis] * scale),
                     last = std::round(region[r * 5 + 4 - axis] * scale);
        const double cell = std::max(last - first + 1, 1.0) / static_cast<double>(cells[axis]);
        auto pixel = [&](double v) {  // what is no number is none of them, either
          return v > 0 ? static_cast<int64_t>(std::min(v, pixels)) : 0;
        };
        for (int64_t k = 0; k < cells[axis]; ++k) {
          const auto at = static_cast<double>(k);
          bounds[axis].emplace_back(pixel(std::floor(at * cell) + first),
                                    pixel(std::ceil((at + 1) * cell) + first));
        }
      }
      for (int64_t ch = 0; ch < channels; ++ch) {
        const C* plane =
            in.data() + (static_cast<int64_t>(image) * channels + ch) * x.dims()[2] * x.dims()[3];
        for (const auto& [top, bottom] : bounds[0])
          for (const auto& [left, right] : bounds[1]) {
            C best = top < bottom && left < right ? plane[top * x.dims()[3] + left] : C{0};
            for (int64_t i = top; i < bottom; ++i)
              for (int64_t j = left; j < right; ++j)
                best = std::max(best, plane[i * x.dims()[3] + j]);
            y.push_back(best);
          }
      }
    }
    return one(store(x.dtype(), out, y));
  });
}

}  // namespace

std::vector<Entry> pool_table() {
  return {
      {"MaxPool", max_pool, 1},
      {"AveragePool", average_pool, 1},
      {"LpPool", lp_pool, 1},
      {"GlobalAveragePool", global_average_pool, 1},
      {"GlobalMaxPool", global_max_pool, 1},
      {"GlobalLpPool", global_lp_pool, 1},
      {"MaxRoiPool", max_roi_pool, 2},
      {"MaxUnpool", max_unpool, 2},
  };
}

}  // namespace ferrule::interp
