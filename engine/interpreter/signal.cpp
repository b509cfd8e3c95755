// Fourier transforms of one axis (DFT, STFT) and the filters of mel spectrograms; convolution at
// displaced places.
#include <complex>
#include <numbers>

#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

using Complex = std::complex<double>;

/// Transforms of one length by its smallest prime factors; the other direction has `sign` +1.
class Fourier {
 public:
  Fourier(int64_t n, int sign) : roots_(static_cast<size_t>(n)) {
    for (int64_t k = 0; k < n; ++k)
      roots_[static_cast<size_t>(k)] = std::polar(
          1.0, sign * 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n));
  }
  /// Of x, as long as the transform, into y.
  void operator()(const std::vector<Complex>& x, std::vector<Complex>& y) {
    y.resize(x.size()), room_.resize(x.size());
    transform(x.data(), 1, y.data(), room_.data(), std::ssize(x));
  }

 private:
  static int64_t factor(int64_t n) {
    for (int64_t p = 2; p * p <= n; ++p)
      if (n % p == 0) return p;
    return n;
  }
  /// Without what C++ asks for infinities: they make NaN either way.
  static Complex product(Complex a, Complex b) {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  }

  /// `room`: n elements, overwritten.
  void transform(const Complex* x, int64_t step, Complex* y, Complex* room, int64_t n) const {
    if (n == 1) {
      *y = *x;
      return;
    }
    if (n == 2) {
      const Complex turned = product(x[step], roots_[0]);
      y[0] = x[0] + turned;
      y[1] = x[0] - turned;
      return;
    }
    const int64_t p = factor(n), m = n / p, root = std::ssize(roots_) / n;
    for (int64_t k = 0; k < p; ++k) transform(x + k * step, step * p, room + k * m, y + k * m, m);
    if (p == 2) {
      const Complex* turn = roots_.data();
      for (int64_t j = 0; j < m; ++j, turn += root) {
        const Complex turned = product(room[m + j], *turn);
        y[j] = room[j] + turned;
        y[m + j] = room[j] - turned;
      }
      return;
    }
    for (int64_t j = 0; j < n; ++j) {
      Complex sum = 0;
      for (int64_t k = 0, at = 0, from = j % m; k < p; ++k, from += m) {
        sum += product(room[from], roots_[static_cast<size_t>(at * root)]);
        if ((at += j) >= n) at -= n;
      }
      y[j] = sum;
    }
  }

  std::vector<Complex> roots_, room_;
};

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

Status still_going(const Call& c) {
  if (c.options.cancel && c.options.cancel->stopped())
    return error(Code::cancelled, c.place(), "time is up");
  return {};
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
  Fourier fourier(n, inverse ? 1 : -1);
  const View<double> v(x);
  const int64_t inner = count(d, k + 1, d.size() - 1), outer = count(d, 0, k), parts = d.back();
  std::vector<double> y(static_cast<size_t>(count(out)));
  std::vector<Complex> line(static_cast<size_t>(n)), made;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      FERRULE_TRY(still_going(c));
      for (int64_t j = 0; j < std::min(n, d[k]); ++j) {
        const int64_t at = ((o * d[k] + j) * inner + i) * parts;
        line[static_cast<size_t>(j)] = {v[at], complex ? v[at + 1] : 0};
      }
      if (to_real)  // the other half mirrors the first
        for (int64_t j = n / 2 + 1; j < n; ++j)
          line[static_cast<size_t>(j)] = std::conj(line[static_cast<size_t>(n - j)]);
      fourier(line, made);
      for (int64_t j = 0; j < out[k]; ++j) {
        Complex value = made[static_cast<size_t>(j)];
        if (inverse) value /= static_cast<double>(n);
        double* to = &y[static_cast<size_t>(((o * out[k] + j) * inner + i) * out.back())];
        to[0] = value.real();
        if (!to_real) to[1] = value.imag();
      }
    }
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
  Fourier fourier(n, -1);
  const View<double> v(x);
  const std::vector<double> weights = window ? window->to_f64() : std::vector<double>(n, 1.0);
  std::vector<double> y;
  y.reserve(static_cast<size_t>(count(out)));
  std::vector<Complex> line(static_cast<size_t>(n)), made;
  for (int64_t b = 0; b < d[0]; ++b)
    for (int64_t f = 0; f < out[1]; ++f) {
      FERRULE_TRY(still_going(c));
      for (int64_t j = 0; j < n; ++j) {
        const int64_t at = (b * d[1] + f * step + j) * d[2];
        line[static_cast<size_t>(j)] =
            weights[static_cast<size_t>(j)] * Complex(v[at], complex ? v[at + 1] : 0);
      }
      fourier(line, made);
      for (int64_t j = 0; j < out[2]; ++j) {
        y.push_back(made[static_cast<size_t>(j)].real());
        y.push_back(made[static_cast<size_t>(j)].imag());
      }
    }
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
  const int64_t per_group = k[0] / group, taps = k[1] * points, shifted = d[1] / shifts;
  FERRULE_TRY(c.fits(DType::f64, {d[1], points}));
  const View<double> xv(x), wv(w), shift(offset);
  std::optional<View<double>> bias, mask;
  if (c.input(3)) bias.emplace(*c.input(3));
  if (c.input(4)) mask.emplace(*c.input(4));
  // A place at a time: what each tap reads there of the channels that share its offset, then the
  // sums of the output channels of each group.
  std::vector<double> y(static_cast<size_t>(count(out))),
      samples(static_cast<size_t>(d[1] * points)), read(static_cast<size_t>(shifted)), weights,
      sums(static_cast<size_t>(per_group));
  for (int64_t g = 0; g < group; ++g) {  // [group, taps, per_group]
    const auto part = channels_last(wv.data() + g * per_group * taps, per_group, taps);
    weights.insert(weights.end(), part.begin(), part.end());
  }
  for (int64_t n = 0; n < d[0]; ++n) {
    std::vector<std::vector<double>> images;
    for (int64_t s = 0; s < shifts; ++s)
      images.push_back(
          channels_last(xv.data() + (n * d[1] + s * shifted) * d[2] * d[3], shifted, d[2] * d[3]));
    for (int64_t place = 0; place < oh * ow; ++place) {
      const int64_t i = place / ow, j = place % ow;
      if (j == 0) FERRULE_TRY(still_going(c));
      for (int64_t s = 0; s < shifts; ++s)
        for (int64_t p = 0; p < points; ++p) {
          const int64_t at_offset = (n * shifts + s) * points + p;
          const double* moved = shift.data() + 2 * at_offset * oh * ow + place;
          const Corners corners(
              images[s].data(), d[2], d[3], shifted,
              static_cast<double>(i * at.stride[0] - at.begin[0] + p / k[3] * at.dilation[0]) +
                  moved[0],
              static_cast<double>(j * at.stride[1] - at.begin[1] + p % k[3] * at.dilation[1]) +
                  moved[oh * ow]);
          std::ranges::fill(read, 0);
          corners.add_to(read.data(), shifted);
          const double factor = mask ? (*mask)[at_offset * oh * ow + place] : 1;
          for (int64_t ch = 0; ch < shifted; ++ch)
            samples[(s * shifted + ch) * points + p] = read[ch] * factor;
        }
      for (int64_t g = 0; g < group; ++g) {
        for (int64_t m = 0; m < per_group; ++m) sums[m] = bias ? (*bias)[g * per_group + m] : 0;
        add_rows(sums.data(), weights.data() + g * taps * per_group, &samples[g * taps], taps,
                 per_group);
        for (int64_t m = 0; m < per_group; ++m)
          y[(n * k[0] + g * per_group + m) * oh * ow + place] = sums[m];
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
