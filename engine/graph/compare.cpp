#include "engine/graph/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace ferrule {
namespace {

std::string describe(const Tensor& t) {
  if (!t.is_tensor()) return fmt::format("{} of {}", name(t.dtype()), t.elements().size());
  return fmt::format("{}[{}]", name(t.dtype()), fmt::join(t.dims(), ","));
}

Difference different(std::string text) {
  Difference d;
  d.ok = d.same = false;
  d.text = std::move(text);
  return d;
}

/// Why the reference could not have told a wrong result from a right one; "" where it could.
std::string_view says_nothing(const std::vector<double>& want) {
  size_t zeros = 0, odd = 0;
  bool constant = true;
  for (double w : want) {
    zeros += w == 0;
    odd += !std::isfinite(w);
    constant = constant && (w == want[0] || (std::isnan(w) && std::isnan(want[0])));
  }
  if (want.size() < 2) return "";
  if (constant) return "all its elements are the same, which says little";
  if (2 * zeros > want.size()) return "over half of it is 0, which says little";
  return 2 * odd > want.size() ? "over half of it is not finite, which says little" : "";
}

/// The Euclidean norm, relative to `unit`, over elements that are finite in both.
template <class Of>
double norm(const std::vector<double>& a, const std::vector<double>& b, double unit, Of of) {
  double sum = 0;
  for (size_t k = 0; k < a.size(); ++k)
    if (std::isfinite(a[k]) && std::isfinite(b[k])) sum += (of(k) / unit) * (of(k) / unit);
  return std::sqrt(sum);
}

/// Elements that are right one by one, because `absolute` is large beside them, and wrong together.
void compare_norms(const std::vector<double>& a, const std::vector<double>& b,
                   const Tolerance& tolerance, Difference& d) {
  double largest = 0;
  for (double w : b)
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
  if (largest == 0) largest = 1;
  const double off = norm(a, b, largest, [&](size_t k) { return a[k] - b[k]; }),
               size = norm(a, b, largest, [&](size_t k) { return b[k]; });
  const double allowed =
      tolerance.norm * size + tolerance.least / largest * std::sqrt(static_cast<double>(a.size()));
  if (size > 0 && off * d.allowed > d.error * allowed)
    d.together = true, d.error = off / size, d.allowed = allowed / size;
  if (off <= allowed) return;
  double worst = -1;
  for (size_t k = 0; k < a.size(); ++k)
    if (const double abs = std::abs(a[k] - b[k]); std::isfinite(abs) && abs > worst)
      worst = abs, d.at = static_cast<int64_t>(k);
  const auto at = static_cast<size_t>(d.at);
  d.ok = false;
  d.text =
      fmt::format("all elements together differ by {:.3g} of their size; element {} is {}, want {}",
                  off / size, at, a[at], b[at]);
}

/// The sign of NaN says nothing.
std::string plain(double x, int digits) {
  return std::isnan(x) ? "nan" : fmt::format("{:.{}g}", x, digits);
}

/// What differs by infinity or NaN is said first, with how much of it there is.
void name_not_finite(const std::vector<double>& a, const std::vector<double>& b, Difference& d) {
  size_t first = 0;
  for (size_t k = a.size(); k-- > 0;)
    if (!std::isfinite(a[k]) && std::isfinite(b[k])) ++d.not_finite, first = k;
  if (!d.not_finite) return;
  d.at = static_cast<int64_t>(first);
  d.text = fmt::format("{} of {} elements are not finite; the first, element {}, is {}, want {}",
                       d.not_finite, a.size(), first, plain(a[first], 9), plain(b[first], 9));
}

/// Of what is no tensor: the first element that differs, else the one that is furthest off.
Difference compare_elements(const Tensor& got, const Tensor& want, const Tolerance& tolerance,
                            bool zero_sign) {
  if (got.elements().size() != want.elements().size())
    return different(fmt::format("got {}, want {}", describe(got), describe(want)));
  Difference worst;
  for (size_t k = 0; k < want.elements().size(); ++k) {
    Difference d = compare(got.elements()[k], want.elements()[k], tolerance, zero_sign);
    if (!d.text.empty())
      d.text = fmt::format("element {} of the {}: {}", k, name(want.dtype()), d.text);
    if (!d.ok) return d;
    const bool further = d.error * worst.allowed > worst.error * d.allowed;
    if (k == 0 || d.mistrusted > worst.mistrusted || further) worst = std::move(d);
  }
  return worst;
}

}  // namespace

DType element_type(const Tensor& t) {
  return t.is_tensor() || t.elements().empty() ? t.dtype() : element_type(t.elements().back());
}

Difference compare(const Tensor& got, const Tensor& want, const Tolerance& tolerance,
                   bool zero_sign) {
  if (got.dtype() == want.dtype() && !want.is_tensor())
    return compare_elements(got, want, tolerance, zero_sign);
  if (got.dtype() != want.dtype() || got.dims() != want.dims())
    return different(fmt::format("got {}, want {}", describe(got), describe(want)));
  if (got.dtype() == DType::string) {
    return got.strings() == want.strings() ? Difference{} : different("strings differ");
  }
  if (is_int(got.dtype()) || got.dtype() == DType::boolean) {
    for (int64_t k = 0; k < got.numel(); ++k)
      if (got.at_i64(k) != want.at_i64(k)) {
        Difference d = different(
            fmt::format("element {} is {}, want {}", k, got.integer_text(k), want.integer_text(k)));
        d.at = k;
        return d;
      }
    return {};
  }
  std::vector<double> a = got.to_f64(), b = want.to_f64();
  const double largest = scale_of(b);
  double own = 0, worst = 0;  // the largest element; what an element uses of what it may
  for (double w : b)
    if (std::isfinite(w)) own = std::max(own, std::abs(w));
  if (own == 0) own = 1;
  const int digits = got.dtype() == DType::f64 ? 17 : 9;
  Difference d;
  d.allowed = tolerance.absolute * largest / own;
  for (size_t k = 0; k < a.size(); ++k) {
    bool same = (std::isnan(a[k]) && std::isnan(b[k])) || a[k] == b[k];
    if (zero_sign && a[k] == 0 && std::signbit(a[k]) != std::signbit(b[k])) same = false;
    if (std::isfinite(a[k]) && std::isfinite(b[k])) {
      double abs = std::abs(a[k] - b[k]);
      d.max_abs = std::max(d.max_abs, abs);
      if (b[k] != 0) d.max_rel = std::max(d.max_rel, abs / std::abs(b[k]));
      const double allowed = tolerance.relative * std::abs(b[k]) + tolerance.absolute * largest;
      if (allowed > 0 && abs / allowed > worst)
        worst = abs / allowed, d.error = abs / own, d.allowed = allowed / own;
      if (abs <= allowed && !(zero_sign && abs == 0)) same = true;
    }
    d.same = d.same && ((std::isnan(a[k]) && std::isnan(b[k])) || a[k] == b[k]);
    if (!same && d.ok) {
      d.ok = false;
      d.at = static_cast<int64_t>(k);
      d.text =
          fmt::format("element {} is {}, want {}", k, plain(a[k], digits), plain(b[k], digits));
    }
  }
  if (!d.ok) name_not_finite(a, b, d);
  if (d.ok && std::isfinite(tolerance.norm)) compare_norms(a, b, tolerance, d);
  if (d.ok && tolerance.noise > 0)
    if (const int64_t at = systematic(a, b, tolerance.noise * largest, false); at >= 0) {
      const auto k = static_cast<size_t>(at);
      d.doubtful = true, d.at = at;
      d.text = fmt::format("most elements as small as element {} differ alike: it is {}, want {}",
                           at, a[k], b[k]);
    }
  if (d.ok && !d.doubtful) d.text = says_nothing(b);
  d.mistrusted = d.ok && !d.text.empty();
  return d;
}

std::string margin_text(const Difference& d) {
  if (d.allowed == 0 || d.not_finite) return "";
  return d.together ? fmt::format("error of all elements together {:.2g} of {:.2g} allowed",
                                  d.error, d.allowed)
                    : fmt::format("largest error {:.2g} of {:.2g} allowed", d.error, d.allowed);
}

double scale_of(std::span<const double> want) {
  double largest = 1;
  for (double w : want)
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
  return largest;
}

int64_t systematic(std::span<const double> got, std::span<const double> want, double noise,
                   bool exact) {
  constexpr int kOctaves = 3;  // of one size
  constexpr double kSure = 5;  // standard deviations of as many tosses of a coin
  struct Alike {
    double count = 0;
    int64_t first = -1;
  };
  struct Band {
    double all = 0;
    std::array<Alike, 3> ways;
  };
  std::map<int, Band> bands;
  for (size_t k = 0; k < want.size(); ++k) {
    const double g = std::abs(got[k]), w = std::abs(want[k]), size = exact ? w : std::max(g, w);
    if (!std::isfinite(g) || !std::isfinite(w) || size < noise) continue;
    Band& band = bands[std::ilogb(size / noise) / kOctaves];
    ++band.all;
    const bool turned = std::signbit(got[k]) != std::signbit(want[k]);
    const std::array is{turned && g > 0 && w > 0, g < w / 2, !turned && g > w * 1.5};
    for (size_t way = 0; way < is.size(); ++way)
      if (Alike& a = band.ways[way]; is[way] && a.count++ == 0) a.first = static_cast<int64_t>(k);
  }
  for (const auto& [_, band] : bands)
    for (const Alike& a : band.ways)
      if (2 * a.count - band.all > kSure * std::sqrt(band.all)) return a.first;
  return -1;
}

int64_t wrong_alike(const Tensor& got, const Tensor& exact, const Tolerance& tolerance,
                    double off) {
  const std::vector<double> want = exact.to_f64();
  return systematic(got.to_f64(), want,
                    std::max(tolerance.noise * scale_of(want), 2 * kReducedFactor * off), true);
}

}  // namespace ferrule
