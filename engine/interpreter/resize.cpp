// Resampling: Resize, GridSample, AffineGrid, RoiAlign. Resize is separable: each axis has, for
// every output coordinate, a few input positions with weights (engine/semantics/resampling.h).
#include "engine/interpreter/internal.h"
#include "engine/semantics/resampling.h"

namespace ferrule::interp {
namespace {

using Weighted = ResizeTap;
using Taps = std::vector<ResizeTap>;
using Axis = ResizeAxis;
constexpr double kMostPixels =
    1e15;  ///< of an axis; whether memory has room for so many is asked later

Result<Resampling> resampling(const Call& c) {
  Resampling r = Resampling::of(c.n.attrs);
  if (const std::string_view name = r.unknown(); !name.empty())
    return c.bad_attr(name, "unknown value \"{}\"", escape(c.n.attrs.s(name)));
  return r;
}

/// Sizes and scales of every axis.
Result<std::vector<Axis>> resize_axes(const Call& c, const Resampling& r) {
  const Tensor& x = *c.input(0);
  const Tensor *roi = c.input(1), *scales = c.input(2), *sizes = c.input(3);
  if (scales && scales->numel() == 0) scales = nullptr;
  if (sizes && sizes->numel() == 0) sizes = nullptr;
  if (!scales == !sizes) return c.bad("exactly one of scales and sizes is wanted");
  FERRULE_ASSIGN(const Dims axes, c.axes(x.rank()));
  const auto n = std::ssize(axes);
  if ((scales ? scales : sizes)->numel() != n)
    return c.bad("{} for {}",
                 counted((scales ? scales : sizes)->numel(), scales ? "scale" : "size"),
                 counted(n, "axis"));
  if (scales ? !is_float(scales->dtype()) : !is_int(sizes->dtype()))
    return c.unsupported_type(scales ? *scales : *sizes);
  std::vector<Axis> out;
  for (int64_t d : x.dims()) out.push_back({d, d});
  double common = 0;
  const std::string policy = c.n.attrs.s("keep_aspect_ratio_policy", "stretch");
  for (int64_t k = 0; k < n; ++k) {
    Axis& a = out[static_cast<size_t>(axes[k])];
    a.scale = scales ? scales->at_f64(k)
                     : static_cast<double>(sizes->at_i64(k)) / static_cast<double>(a.in);
    if (sizes && a.in == 0 && sizes->at_i64(k) == 0) a.scale = 1;  // nothing stays nothing
    if (!(a.scale > 0) || !std::isfinite(a.scale)) return c.bad("a scale of {}", a.scale);
    const double size =
        scales ? resized_size(a.in, a.scale) : static_cast<double>(sizes->at_i64(k));
    if (size > kMostPixels) return c.bad("a size of {}", size);
    a.out = static_cast<int64_t>(size);
    if (k == 0 || (policy == "not_larger" ? a.scale < common : a.scale > common)) common = a.scale;
  }
  for (int64_t k = 0; sizes && policy != "stretch" && k < n; ++k) {
    Axis& a = out[static_cast<size_t>(axes[k])];
    a.scale = common;
    const double size = std::floor(common * static_cast<double>(a.in) + 0.5);
    if (size > kMostPixels) return c.bad("a size of {}", size);
    a.out = static_cast<int64_t>(size);
  }
  if (r.coordinates == "tf_crop_and_resize") {
    if (!roi || roi->numel() != 2 * n || !is_float(roi->dtype()))
      return c.bad("tf_crop_and_resize wants a roi of {} numbers", 2 * n);
    for (int64_t k = 0; k < n; ++k) {
      Axis& a = out[static_cast<size_t>(axes[k])];
      a.roi_begin = roi->at_f64(k), a.roi_end = roi->at_f64(n + k);
    }
  }
  return out;
}

Outputs resize(const Call& c) {
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const Resampling r, resampling(c));
  FERRULE_ASSIGN(const std::vector<Axis> axes, resize_axes(c, r));
  Dims out;
  for (const Axis& a : axes) out.push_back(a.out);
  FERRULE_TRY(c.fits(DType::f64, out));
  if (!is_float(x.dtype()) && !is_integral(x.dtype())) return c.unsupported_type(x);
  // Beside a size of 0 another may be anything: nothing goes over its positions.
  if (count(out) == 0) return one(store(x.dtype(), out, std::vector<double>()));
  if (x.numel() == 0) return c.bad("input {} is empty", text(x.dims()));
  Dims dims = x.dims();
  const View<double> in(x);
  const bool nearest = r.mode == "nearest";
  const double* source = in.data();
  std::vector<double> y;
  for (size_t k = 0; k < axes.size(); ++k) {
    const Axis& a = axes[k];
    if (r.keeps(a)) continue;
    if (r.antialias && a.scale < 1e-6) return c.bad("a scale of {} with antialias", a.scale);
    Dims to = dims;
    to[k] = a.out;
    FERRULE_TRY(c.fits(DType::f64, to));
    const int64_t outer = count(dims, 0, k), inner = count(dims, k + 1);
    std::vector<double> z(count(to));
    constexpr int64_t kBlock = 256;  // positions whose taps are kept while all lines are computed
    for (int64_t first = 0; first < a.out; first += kBlock) {
      std::vector<Taps> block;
      for (int64_t i = first; i < std::min(first + kBlock, a.out); ++i)
        block.push_back(resize_taps(a, r, i));
      for (int64_t o = 0; o < outer; ++o) {
        double* row = z.data() + (o * a.out + first) * inner;
        for (const Taps& taps : block) {
          const double* line = source + o * a.in * inner;
          if (taps.empty()) {
            std::fill_n(row, inner, r.extrapolation);
          } else if (inner == 1 && !nearest) {
            double sum = 0;  // not in *row, which each addition would wait for
            for (const Weighted& t : taps) sum += t.weight * line[t.at];
            *row = sum;
          } else {
            for (const Weighted& t : taps) {
              const double* from = line + t.at * inner;
              if (nearest)
                std::copy_n(from, inner, row);  // -0 stays -0
              else
                add_row(row, from, t.weight, inner, 1);
            }
          }
          row += inner;
        }
      }
    }
    y = std::move(z);
    source = y.data();
    dims = to;
  }
  return one(y.empty() ? x : store(c, x.dtype(), out, y));
}

// --- GridSample

Outputs grid_sample(const Call& c) {
  const Tensor &x = *c.input(0), &grid = *c.input(1);
  const auto rank = static_cast<size_t>(std::max(x.rank() - 2, 0));
  if (rank < 1 || grid.rank() != x.rank() || grid.dims().back() != static_cast<int64_t>(rank) ||
      grid.dims()[0] != x.dims()[0]) {
    return c.bad("input {} and grid {}", text(x.dims()), text(grid.dims()));
  }
  if (!is_float(x.dtype()) || !is_float(grid.dtype()))
    return c.unsupported_type(is_float(x.dtype()) ? grid : x);
  const auto how = GridSampling::of(c.n.attrs);
  if (!how)
    return c.bad_attr("mode", "unknown value \"{}\"", escape(c.n.attrs.s("mode", "linear")));
  const Dims spatial(x.dims().begin() + 2, x.dims().end()),
      places(grid.dims().begin() + 1, grid.dims().end() - 1);
  Dims out{x.dims()[0], x.dims()[1]};
  out.insert(out.end(), places.begin(), places.end());
  FERRULE_TRY(c.fits(DType::f64, out));
  const int64_t plane = count(spatial), per_batch = count(places);
  if (plane == 0) return c.bad("input {} is empty", text(x.dims()));
  const Dims own = strides(spatial);
  const View<double> in(x), at(grid);
  std::vector<double> y(count(out));
  for (int64_t b = 0; b < x.dims()[0]; ++b) {
    for (int64_t p = 0; p < per_batch; ++p) {
      std::vector<Taps> taps(rank, Taps(how->taps()));
      for (size_t k = 0; k < rank; ++k)  // grid entries are x first: the last axis
        how->read(spatial[k],
                  at[(b * per_batch + p) * static_cast<int64_t>(rank) +
                     static_cast<int64_t>(rank - 1 - k)],
                  taps[k]);
      const bool nearest = how->mode == GridSampling::Mode::nearest;
      const Dims sizes(rank, static_cast<int64_t>(how->taps()));
      for (int64_t ch = 0; ch < x.dims()[1]; ++ch) {
        double sum = 0;
        Dims t(rank, 0);
        do {
          double w = 1;
          int64_t from = (b * x.dims()[1] + ch) * plane;
          for (size_t k = 0; k < rank; ++k) {
            const Weighted& tap = taps[k][t[k]];
            w = tap.at < 0 ? 0 : w * tap.weight;
            from += std::max<int64_t>(tap.at, 0) * own[k];
          }
          if (w != 0) sum = nearest ? in[from] : sum + w * in[from];
        } while (next(t, sizes));
        y[static_cast<size_t>((b * x.dims()[1] + ch) * per_batch + p)] = sum;
      }
    }
  }
  return one(store(x.dtype(), out, y));
}

Outputs affine_grid(const Call& c) {
  const Tensor& theta = *c.input(0);
  const auto size = c.ints(1, "");
  if (!size || size->size() < 4 || size->size() > 5 || theta.rank() != 3)
    return c.bad("theta {} and {} sizes", text(theta.dims()), size ? size->size() : 0);
  if (!is_float(theta.dtype())) return c.unsupported_type(theta);
  const auto rank = std::ssize(*size) - 2;
  if (theta.dims() != Dims{(*size)[0], rank, rank + 1})
    return c.bad("theta {} for {}", text(theta.dims()), text(*size));
  const Dims spatial(size->begin() + 2, size->end());
  Dims out{(*size)[0]};
  out.insert(out.end(), spatial.begin(), spatial.end());
  out.push_back(rank);
  FERRULE_TRY(c.fits(DType::f64, out));
  const bool corners = c.n.attrs.i("align_corners") != 0;
  auto coordinates = [&](int64_t size) {
    std::vector<double> along;
    const auto d = static_cast<double>(size);
    for (double i = 0; i < d; ++i)
      along.push_back(corners ? (d == 1 ? 0 : -1 + 2 * i / (d - 1)) : -1 + (2 * i + 1) / d);
    return along;
  };
  const View<double> in(theta);
  if (count(out) == 0) return one(store(theta.dtype(), out, std::vector<double>()));
  const auto xs = coordinates(spatial.back()), ys = coordinates(spatial[spatial.size() - 2]),
             zs = coordinates(rank == 3 ? spatial[0] : 1);
  auto fill = [&]<class C>(Made<C> y) {
    C* to = y.data();
    for (int64_t b = 0; b < (*size)[0]; ++b)
      for (double pz : zs)
        for (double py : ys) {
          for (int64_t r = 0; r < rank; ++r) {
            const double* m = in.data() + (b * rank + r) * (rank + 1);
            const double my = m[1] * py, mz = m[2] * (rank == 3 ? pz : 1), shift = m[rank];
            for (size_t i = 0; i < xs.size(); ++i) {
              const double v = 0 + m[0] * xs[i] + my + mz;
              to[static_cast<int64_t>(i) * rank + r] = static_cast<C>(rank == 3 ? v + shift : v);
            }
          }
          to += std::ssize(xs) * rank;
        }
    return one(y.done());
  };
  if (theta.dtype() == DType::f32) return fill(Made<float>(c, DType::f32, out));
  return fill(Made<double>(c, theta.dtype(), out));
}

// --- RoiAlign

/// Adds the four neighbours of a sampling point with their weights; none when it lies far outside.
void bilinear(double y, double x, int64_t h, int64_t w, std::vector<Weighted>& taps) {
  if (!(y >= -1 && y <= static_cast<double>(h) && x >= -1 && x <= static_cast<double>(w))) return;
  y = std::max(y, 0.0), x = std::max(x, 0.0);
  auto split = [](double& v, int64_t size, int64_t& low, int64_t& high) {
    low = static_cast<int64_t>(v);
    high = low + 1;
    if (low >= size - 1) low = high = size - 1, v = static_cast<double>(low);
  };
  int64_t y0, y1, x0, x1;
  split(y, h, y0, y1);
  split(x, w, x0, x1);
  const double fy = y - static_cast<double>(y0), fx = x - static_cast<double>(x0);
  taps.insert(taps.end(), {{y0 * w + x0, (1 - fy) * (1 - fx)},
                           {y0 * w + x1, (1 - fy) * fx},
                           {y1 * w + x0, fy * (1 - fx)},
                           {y1 * w + x1, fy * fx}});
}

Outputs roi_align(const Call& c) {
  const Tensor &x = *c.input(0), &rois = *c.input(1), &batch = *c.input(2);
  if (x.rank() != 4 || rois.rank() != 2 || rois.dims()[1] != 4 || batch.numel() != rois.dims()[0] ||
      !is_int(batch.dtype())) {
    return c.bad("input {}, rois {}, batch indices {}", text(x.dims()), text(rois.dims()),
                 text(batch.dims()));
  }
  if (!is_float(x.dtype()) || !is_float(rois.dtype())) return c.unsupported_type(x);
  const int64_t channels = x.dims()[1], h = x.dims()[2], w = x.dims()[3];
  const int64_t oh = c.n.attrs.i("output_height", 1), ow = c.n.attrs.i("output_width", 1),
                ratio = c.n.attrs.i("sampling_ratio", 0);
  const Dims out{rois.dims()[0], channels, oh, ow};
  FERRULE_TRY(c.fits(DType::f64, out));
  if (ratio < 0 || ratio > 4096 || h * w == 0)
    return c.bad_attr("sampling_ratio", "{} is out of range", ratio);
  const double scale = c.n.attrs.f("spatial_scale", 1);
  const bool half = c.n.attrs.s("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  const bool maximum = c.n.attrs.s("mode", "avg") == "max";
  const View<double> in(x), box(rois);
  // Each image with the channels of a pixel side by side, once a roi reads it.
  std::vector<std::vector<double>> images(static_cast<size_t>(x.dims()[0]));
  std::vector<double> y(static_cast<size_t>(count(out))), place(static_cast<size_t>(channels));
  std::vector<Weighted> taps;
  for (int64_t r = 0; r < out[0]; ++r) {
    const int64_t b = batch.at_i64(r);
    if (b < 0 || b >= x.dims()[0]) return c.bad("batch index {} is out of range", b);
    const double shift = half ? 0.5 : 0, x0 = box[r * 4] * scale - shift,
                 y0 = box[r * 4 + 1] * scale - shift;
    double rw = box[r * 4 + 2] * scale - shift - x0, rh = box[r * 4 + 3] * scale - shift - y0;
    if (!half) rw = std::max(rw, 1.0), rh = std::max(rh, 1.0);
    const double bh = rh / static_cast<double>(oh), bw = rw / static_cast<double>(ow);
    const double gh = ratio ? static_cast<double>(ratio) : std::ceil(bh),
                 gw = ratio ? static_cast<double>(ratio) : std::ceil(bw);
    if (!(gh <= 4096 && gw <= 4096)) return c.bad("roi {} is out of range", r);
    std::vector<double>& pixels = images[static_cast<size_t>(b)];
    if (pixels.empty()) pixels = channels_last(in.data() + b * channels * h * w, channels, h * w);
    for (int64_t p = 0; p < oh * ow; ++p) {
      taps.clear();
      for (double iy = 0; iy < gh; ++iy)
        for (double ix = 0; ix < gw; ++ix)
          bilinear(y0 + (static_cast<double>(p / ow) + (iy + 0.5) / gh) * bh,
                   x0 + (static_cast<double>(p % ow) + (ix + 0.5) / gw) * bw, h, w, taps);
      std::ranges::fill(place, 0);
      for (size_t t = 0; t < taps.size(); t += 4) {  // as bilinear() adds them
        const double weights[] = {taps[t].weight, taps[t + 1].weight, taps[t + 2].weight,
                                  taps[t + 3].weight};
        FourRows<double> rows;
        for (size_t k = 0; k < 4; ++k) rows[k] = pixels.data() + taps[t + k].at * channels;
        if (!maximum) add_four(place.data(), rows, weights, channels);
        for (size_t k = 0; maximum && k < 4; ++k)
          for (int64_t ch = 0; ch < channels; ++ch) {
            const double v = weights[k] * rows[k][ch];
            place[ch] = t + k > 0 ? std::max(place[ch], v) : v;
          }
      }
      const double parts = maximum ? 1 : std::max(gh * gw, 1.0);
      for (int64_t ch = 0; ch < channels; ++ch)
        y[static_cast<size_t>((r * channels + ch) * oh * ow + p)] = place[ch] / parts;
    }
  }
  return one(store(c, x.dtype(), out, y));
}

}  // namespace

std::vector<Entry> resize_table() {
  return {{"Resize", resize, 1},
          {"GridSample", grid_sample, 2},
          {"AffineGrid", affine_grid, 2},
          {"RoiAlign", roi_align, 3}};
}

}  // namespace ferrule::interp
