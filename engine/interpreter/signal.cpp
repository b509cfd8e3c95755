// Fourier transforms of one axis (DFT, STFT) and the filters of mel spectrograms; convolution at
// displaced places.
#include <complex>
#include <numbers>

#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

using Complex = std::complex<double>;

/// An element of several lines that are transformed side by side.
template <int64_t kLines>
struct Lanes {
  double re[kLines] = {}, im[kLines] = {};
};

/// Transforms of one length by its smallest prime factors; the other direction has `sign` +1.
class Fourier {
 public:
  Fourier(int64_t n, int sign) : roots_(static_cast<size_t>(n)) {
    for (int64_t k = 0; k < n; ++k)
      roots_[static_cast<size_t>(k)] = std::polar(
          1.0, sign * 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n));
  }
  int64_t size() const { return std::ssize(roots_); }

  /// x, `step` apart, into y; `room`: n elements, overwritten. No product asks for what C++ wants
  /// of infinities: they make NaN either way.
  template <int64_t kLines>
  __attribute__((optimize("O3"))) void transform(const Lanes<kLines>* x, int64_t step,
                                                 Lanes<kLines>* y, Lanes<kLines>* room,
                                                 int64_t n) const {
    if (n == 1) {
      *y = *x;
      return;
    }
    const int64_t p = factor(n), m = n / p, root = size() / n;
    for (int64_t k = 0; k < p; ++k) transform(x + k * step, step * p, room + k * m, y + k * m, m);
    const Complex* roots = roots_.data();
    if (p == 2) {
      for (int64_t j = 0; j < m; ++j) {
        const Lanes<kLines>&a = room[j], &b = room[m + j];
        const double re = roots[j * root].real(), im = roots[j * root].imag();
        Lanes<kLines>&sum = y[j], &difference = y[m + j];
        for (int64_t l = 0; l < kLines; ++l) {
          const double turned_re = b.re[l] * re - b.im[l] * im,
                       turned_im = b.re[l] * im + b.im[l] * re;
          sum.re[l] = a.re[l] + turned_re, sum.im[l] = a.im[l] + turned_im;
          difference.re[l] = a.re[l] - turned_re, difference.im[l] = a.im[l] - turned_im;
        }
      }
      return;
    }
    for (int64_t j = 0; j < n; ++j) {
      Lanes<kLines> sum;
      for (int64_t k = 0, at = 0, from = j % m; k < p; ++k, from += m) {
        const double re = roots[at * root].real(), im = roots[at * root].imag();
        const Lanes<kLines>& b = room[from];
        for (int64_t l = 0; l < kLines; ++l) {
          sum.re[l] += b.re[l] * re - b.im[l] * im;
          sum.im[l] += b.re[l] * im + b.im[l] * re;
        }
        if ((at += j) >= n) at -= n;
      }
      y[j] = sum;
    }
  }

 private:
  static int64_t factor(int64_t n) {
    for (int64_t p = 2; p * p <= n; ++p)
      if (n % p == 0) return p;
    return n;
  }

  std::vector<Complex> roots_;
};

Status still_going(const Call& c) {
  if (c.options.cancel && c.options.cancel->stopped())
    return error(Code::cancelled, c.place(), "time is up");
  return {};
}

/// Transforms `lines` lines, whose elements read(line, j) gives; write(line, j, value) takes the
/// first `wanted` of each result.
template <int64_t kLines, class Read, class Write>
Status transform_lines(const Call& c, const Fourier& fourier, int64_t lines, int64_t wanted,
                       Read read, Write write) {
  const int64_t n = fourier.size();
  std::vector<Lanes<kLines>> x(static_cast<size_t>(n)), y(x), room(x);
  for (int64_t line = 0; line < lines; line += kLines) {
    FERRULE_TRY(still_going(c));
    const int64_t some = std::min(kLines, lines - line);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < some; ++l) {
        const Complex v = read(line + l, j);
        x[j].re[l] = v.real(), x[j].im[l] = v.imag();
      }
    fourier.transform(x.data(), 1, y.data(), room.data(), n);
    for (int64_t l = 0; l < some; ++l)
      for (int64_t j = 0; j < wanted; ++j) write(line + l, j, Complex(y[j].re[l], y[j].im[l]));
  }
  return {};
}
/// Several at a time, unless they are few or long.
template <class Read, class Write>
Status transform_all(const Call& c, const Fourier& fourier, int64_t lines, int64_t wanted,
                     Read read, Write write) {
  return lines < 3 || fourier.size() > 1 << 16
             ? transform_lines<1>(c, fourier, lines, wanted, read, write)
             : transform_lines<8>(c, fourier, lines, wanted, read, write);
}

/// One number of an optional operand.
Result<int64_t> whole_number(const Call& c, size_t slot, int64_t otherwise) {
  const Tensor* t = c.input(slot);
  if (!t) return otherwise;
  if (!is_int(t->dtype()) || t->numel() != 1)
    return c.bad("input {} is {}{}, not one integer", slot, name(t->dtype()), text(t->dims()));
  return t->at_i64(0);
}

/// Real numbers have 1 component, complex ones 2.
Result<bool> is_complex(const Call& c, const Dims& d) {
  if (d.size() < 2 || d.back() < 1 || d.back() > 2)
    return c.bad("its input is {}: the last axis holds 1 or 2 components", text(d));
  return d.back() == 2;
}

Outputs dft(const Call& c) {
  const Tensor& x = *c.input(0);
  if (!is_float(x.dtype())) return c.unsupported_type(x);
  const Dims& d = x.dims();
  FERRULE_ASSIGN(const bool complex, is_complex(c, d));
  const bool inverse = c.n.attrs.i("inverse", 0) != 0, half = c.n.attrs.i("onesided", 0) != 0;
  FERRULE_ASSIGN(const int64_t given, whole_number(c, 2, c.n.attrs.i("axis", -2)));
  FERRULE_ASSIGN(const int64_t axis, c.axis(given, x.rank()));
  if (axis == x.rank() - 1) return c.bad_attr("axis", "{} is the axis of the components", given);
  const auto k = static_cast<size_t>(axis);
  const bool to_real = inverse && half;
  if (half && !inverse && complex) return c.bad("onesided transforms are of real numbers");
  FERRULE_ASSIGN(const int64_t n, whole_number(c, 1, to_real ? 2 * (d[k] - 1) : d[k]));
  if (n < 1) return c.bad("a transform of {} elements", n);
  Dims out = d;
  out.back() = to_real ? 1 : 2;
  out[k] = half && !inverse ? n / 2 + 1 : n;
  FERRULE_TRY(c.fits(DType::f64, out));
  FERRULE_TRY(c.fits(DType::f64, {n, 4}));
  const Fourier fourier(n, inverse ? 1 : -1);
  const View<double> v(x);
  const int64_t inner = count(d, k + 1, d.size() - 1), outer = count(d, 0, k), parts = d.back();
  auto element = [&](int64_t line, int64_t j) -> Complex {
    if (j >= d[k]) return 0;
    const double* at = v.data() + ((line / inner * d[k] + j) * inner + line % inner) * parts;
    return {at[0], complex ? at[1] : 0};
  };
  std::vector<double> y(static_cast<size_t>(count(out)));
  FERRULE_TRY(transform_all(
      c, fourier, outer * inner, out[k],
      [&](int64_t line, int64_t j) {  // to real numbers: the other half mirrors the first
        return to_real && j > n / 2 ? std::conj(element(line, n - j)) : element(line, j);
      },
      [&](int64_t line, int64_t j, Complex value) {
        if (inverse) value /= static_cast<double>(n);
        double* to = y.data() + ((line / inner * out[k] + j) * inner + line % inner) * out.back();
        to[0] = value.real();
        if (!to_real) to[1] = value.imag();
      }));
  return one(store(c, x.dtype(), out, y));
}

Outputs stft(const Call& c) {
  const Tensor& x = *c.input(0);
  if (!is_float(x.dtype())) return c.unsupported_type(x);
  const Dims& d = x.dims();
  if (d.size() != 3) return c.bad("its signal is {}, not [batch,length,components]", text(d));
  FERRULE_ASSIGN(const bool complex, is_complex(c, d));
  FERRULE_ASSIGN(const int64_t step, whole_number(c, 1, 0));
  const Tensor* window = c.input(2);
  if (window && window->rank() != 1) return c.bad("its window is {}", text(window->dims()));
  FERRULE_ASSIGN(const int64_t n, whole_number(c, 3, window ? window->numel() : d[1]));
  if (step < 1) return c.bad("a step of {} elements", step);
  if (n < 1 || n > d[1]) return c.bad("frames of {} elements of {}", n, d[1]);
  if (window && window->numel() != n)
    return c.bad("a window of {} elements for frames of {}", window->numel(), n);
  const bool half = c.n.attrs.i("onesided", 1) != 0;
  if (half && complex) return c.bad("onesided transforms are of real numbers");
  const Dims out{d[0], 1 + (d[1] - n) / step, half ? n / 2 + 1 : n, 2};
  FERRULE_TRY(c.fits(DType::f64, out));
  FERRULE_TRY(c.fits(DType::f64, {n, 4}));
  const Fourier fourier(n, -1);
  const View<double> v(x);
  const std::vector<double> weights = window ? window->to_f64() : std::vector<double>(n, 1.0);
  std::vector<double> y(static_cast<size_t>(count(out)));
  FERRULE_TRY(transform_all(
      c, fourier, d[0] * out[1], out[2],
      [&](int64_t line, int64_t j) {
        const int64_t at = (line / out[1] * d[1] + line % out[1] * step + j) * d[2];
        return weights[static_cast<size_t>(j)] * Complex(v[at], complex ? v[at + 1] : 0);
      },
      [&](int64_t line, int64_t j, Complex value) {
        double* to = y.data() + (line * out[2] + j) * 2;
        to[0] = value.real(), to[1] = value.imag();
      }));
  return one(store(c, x.dtype(), out, y));
}

Outputs mel_weight_matrix(const Call& c) {
  FERRULE_ASSIGN(const int64_t bands, whole_number(c, 0, 0));
  FERRULE_ASSIGN(const int64_t length, whole_number(c, 1, 0));
  FERRULE_ASSIGN(const int64_t rate, whole_number(c, 2, 0));
  for (size_t slot : {3, 4})
    if (!is_float(c.input(slot)->dtype()) || c.input(slot)->numel() != 1)
      return c.bad("input {} is not one number", slot);
  const double low = c.input(3)->at_f64(0), high = c.input(4)->at_f64(0);
  if (bands < 1 || length < 1 || rate < 1)
    return c.bad("{} bands, {} points, rate {}", bands, length, rate);
  if (!(low >= 0 && high >= low && std::isfinite(high)))
    return c.bad("a band from {} to {} Hz", low, high);
  const auto type = static_cast<DType>(c.n.attrs.i("output_datatype", 1));
  if (!is_float(type) && !is_int(type))
    return c.bad_attr("output_datatype", "{} is no number type", c.n.attrs.i("output_datatype"));
  const Dims out{length / 2 + 1, bands};
  FERRULE_TRY(c.fits(DType::f64, out));
  FERRULE_TRY(c.fits(DType::f64, {bands, 4}));
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double step = (mel(high) - mel(low)) / static_cast<double>(bands + 2);
  std::vector<int64_t> bins;
  for (int64_t i = 0; i < bands + 2; ++i) {
    const double hertz =
        700 * (std::pow(10, (static_cast<double>(i) * step + mel(low)) / 2595) - 1);
    bins.push_back(static_cast<int64_t>(
        std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate))));
    if (bins.back() > out[0]) return c.bad("{} Hz is beyond half the rate of {}", high, rate);
  }
  std::vector<double> y(static_cast<size_t>(count(out)));
  const auto set = [&](int64_t row, int64_t band, double v) {
    if (row < out[0]) y[static_cast<size_t>(row * bands + band)] = v;
  };
  for (int64_t i = 0; i < bands; ++i) {
    const int64_t left = bins[i], middle = bins[i + 1], right = bins[i + 2];
    if (left == middle) set(middle, i, 1);
    for (int64_t j = left; left != middle && j <= middle; ++j)
      set(j, i, static_cast<double>(j - left) / static_cast<double>(middle - left));
    for (int64_t j = middle; j < right; ++j)
      set(j, i, static_cast<double>(right - j) / static_cast<double>(right - middle));
  }
  return one(store(type, out, y));
}

// --- DeformConv

/// The pixels around a place and their weights: those inside the image, up to four.
struct Corners {
  FourRows<double> rows;
  double weights[4];
  size_t count = 0;

  /// `image`: [height, width, channels].
  Corners(const double* image, int64_t height, int64_t width, int64_t channels, double row,
          double column) {
    if (!(row > -1 && column > -1 && row < static_cast<double>(height) &&
          column < static_cast<double>(width)))
      return;
    const auto top = static_cast<int64_t>(std::floor(row)),
               left = static_cast<int64_t>(std::floor(column));
    for (int64_t i = std::max<int64_t>(top, 0); i < std::min(top + 2, height); ++i)
      for (int64_t j = std::max<int64_t>(left, 0); j < std::min(left + 2, width); ++j) {
        rows[count] = image + (i * width + j) * channels;
        weights[count++] = (1 - std::fabs(row - static_cast<double>(i))) *
                           (1 - std::fabs(column - static_cast<double>(j)));
      }
  }
  /// Adds what they make of each channel.
  void add_to(double* sums, int64_t channels) const {
    if (count == 4) return add_four(sums, rows, weights, channels);
    for (size_t k = 0; k < count; ++k) add_row(sums, rows[k], weights[k], channels, 1);
  }
};

Outputs deform_conv(const Call& c) {
  const Tensor &x = *c.input(0), &w = *c.input(1), &offset = *c.input(2);
  if (!is_float(x.dtype())) return c.unsupported_type(x);
  for (size_t slot = 1; slot < 5; ++slot)
    if (c.input(slot) && c.input(slot)->dtype() != x.dtype())
      return c.bad("operands of {} and {}", name(x.dtype()), name(c.input(slot)->dtype()));
  const Dims &d = x.dims(), &k = w.dims();
  if (d.size() != 4 || k.size() != 4) return c.unsupported("it is not over images of two axes");
  const int64_t group = c.n.attrs.i("group", 1), shifts = c.n.attrs.i("offset_group", 1);
  if (group < 1 || d[1] != k[1] * group || k[0] % group)
    return c.bad("{} and weights {} in {} groups", text(d), text(k), group);
  if (shifts < 1 || d[1] % shifts)
    return c.bad_attr("offset_group", "{} of {} channels", shifts, d[1]);
  FERRULE_ASSIGN(const Window at, window(c, {d[2], d[3]}, {k[2], k[3]}, false));
  const int64_t points = k[2] * k[3], oh = at.out[0], ow = at.out[1];
  const Dims out{d[0], k[0], oh, ow}, wanted{d[0], shifts * points * 2, oh, ow},
      masked{d[0], shifts * points, oh, ow};
  if (offset.dims() != wanted)
    return c.bad("offsets of {}, {} are wanted", text(offset.dims()), text(wanted));
  if (c.input(4) && c.input(4)->dims() != masked)
    return c.bad("a mask of {}, {} is wanted", text(c.input(4)->dims()), text(masked));
  if (c.input(3) && c.input(3)->dims() != Dims{k[0]})
    return c.bad("a bias of {}", text(c.input(3)->dims()));
  FERRULE_TRY(c.fits(DType::f64, out));
  const int64_t per_group = k[0] / group, shifted = d[1] / shifts;
  constexpr int64_t kPlaces = 32;  // at once: what they need of the weights stays in a cache
  FERRULE_TRY(c.fits(DType::f64, {kPlaces, d[1], points}));
  const View<double> xv(x), wv(w), shift(offset);
  std::optional<View<double>> bias, mask;
  if (c.input(3)) bias.emplace(*c.input(3));
  if (c.input(4)) mask.emplace(*c.input(4));
  std::vector<double> y(static_cast<size_t>(count(out))), weights,
      samples(static_cast<size_t>(kPlaces * points * d[1])),
      sums(static_cast<size_t>(kPlaces * per_group));
  for (int64_t g = 0; g < group; ++g)  // [group, points, channels, per_group]
    for (int64_t p = 0; p < points; ++p)
      for (int64_t ch = 0; ch < k[1]; ++ch)
        for (int64_t m = 0; m < per_group; ++m)
          weights.push_back(wv[((g * per_group + m) * k[1] + ch) * points + p]);
  for (int64_t n = 0; n < d[0]; ++n) {
    std::vector<std::vector<double>> images;
    for (int64_t s = 0; s < shifts; ++s)
      images.push_back(
          channels_last(xv.data() + (n * d[1] + s * shifted) * d[2] * d[3], shifted, d[2] * d[3]));
    for (int64_t first = 0; first < oh * ow; first += kPlaces) {
      FERRULE_TRY(still_going(c));
      const int64_t places = std::min(kPlaces, oh * ow - first);
      // What each point of the kernel reads at each place: [places, points, channels].
      std::ranges::fill(samples, 0);
      double* read = samples.data();
      for (int64_t place = first; place < first + places; ++place) {
        const int64_t i = place / ow, j = place % ow;
        for (int64_t p = 0; p < points; ++p)
          for (int64_t s = 0; s < shifts; ++s, read += shifted) {
            const int64_t at_offset = (n * shifts + s) * points + p;
            const double* moved = shift.data() + 2 * at_offset * oh * ow + place;
            const Corners corners(
                images[s].data(), d[2], d[3], shifted,
                static_cast<double>(i * at.stride[0] - at.begin[0] + p / k[3] * at.dilation[0]) +
                    moved[0],
                static_cast<double>(j * at.stride[1] - at.begin[1] + p % k[3] * at.dilation[1]) +
                    moved[oh * ow]);
            corners.add_to(read, shifted);
            if (!mask) continue;
            const double factor = (*mask)[at_offset * oh * ow + place];
            for (int64_t ch = 0; ch < shifted; ++ch) read[ch] *= factor;
          }
      }
      for (int64_t g = 0; g < group; ++g) {
        for (int64_t q = 0; q < places; ++q)
          for (int64_t m = 0; m < per_group; ++m)
            sums[q * per_group + m] = bias ? (*bias)[g * per_group + m] : 0;
        for (int64_t p = 0; p < points; ++p)
          for (int64_t q = 0; q < places; ++q)
            add_rows(&sums[q * per_group], &weights[(g * points + p) * k[1] * per_group],
                     &samples[(q * points + p) * d[1] + g * k[1]], k[1], per_group);
        double* to = y.data() + (n * k[0] + g * per_group) * oh * ow + first;
        for (int64_t m = 0; m < per_group; ++m, to += oh * ow)
          for (int64_t q = 0; q < places; ++q) to[q] = sums[q * per_group + m];
      }
    }
  }
  return one(store(c, x.dtype(), out, y));
}

}  // namespace

std::vector<Entry> signal_table() {
  return {
      {"DFT", dft, 1},
      {"DeformConv", deform_conv, 3},
      {"MelWeightMatrix", mel_weight_matrix, 5},
      {"STFT", stft, 2},
  };
}

}  // namespace ferrule::interp
