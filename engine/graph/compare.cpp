#include "engine/graph/compare.h"

#include <cmath>

namespace ferrule {
namespace {

std::string describe(const Tensor& t) {
  return fmt::format("{}[{}]", name(t.dtype()), fmt::join(t.dims(), ","));
}

Difference different(std::string text) {
  Difference d;
  d.ok = false;
  d.text = std::move(text);
  return d;
}

/// Whether the reference could not have told a wrong result from a right one.
bool says_nothing(const std::vector<double>& want) {
  size_t zeros = 0, odd = 0;
  bool constant = true;
  for (double w : want) {
    zeros += w == 0;
    odd += !std::isfinite(w);
    constant = constant && (w == want[0] || (std::isnan(w) && std::isnan(want[0])));
  }
  return want.size() > 1 && (constant || 2 * zeros > want.size() || 2 * odd > want.size());
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
  if (off <=
      tolerance.norm * size + tolerance.least / largest * std::sqrt(static_cast<double>(a.size())))
    return;
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

}  // namespace

Difference compare(const Tensor& got, const Tensor& want, const Tolerance& tolerance,
                   bool zero_sign) {
  if (got.dtype() != want.dtype() || got.dims() != want.dims())
    return different(fmt::format("got {}, want {}", describe(got), describe(want)));
  if (got.dtype() == DType::string) {
    return got.strings() == want.strings() ? Difference{} : different("strings differ");
  }
  if (is_int(got.dtype()) || got.dtype() == DType::boolean) {
    for (int64_t k = 0; k < got.numel(); ++k)
      if (got.at_i64(k) != want.at_i64(k)) {
        Difference d =
            different(fmt::format("element {} is {}, want {}", k, got.at_i64(k), want.at_i64(k)));
        d.at = k;
        return d;
      }
    return {};
  }
  std::vector<double> a = got.to_f64(), b = want.to_f64();
  double largest = 1;
  for (double w : b)
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
  Difference d;
  for (size_t k = 0; k < a.size(); ++k) {
    bool same = (std::isnan(a[k]) && std::isnan(b[k])) || a[k] == b[k];
    if (zero_sign && a[k] == 0 && std::signbit(a[k]) != std::signbit(b[k])) same = false;
    if (std::isfinite(a[k]) && std::isfinite(b[k])) {
      double abs = std::abs(a[k] - b[k]);
      d.max_abs = std::max(d.max_abs, abs);
      if (b[k] != 0) d.max_rel = std::max(d.max_rel, abs / std::abs(b[k]));
      if (abs <= tolerance.relative * std::abs(b[k]) + tolerance.absolute * largest) {
        if (!(zero_sign && abs == 0)) same = true;
      }
    }
    if (!same && d.ok) {
      d.ok = false;
      d.at = static_cast<int64_t>(k);
      d.text = fmt::format("element {} is {}, want {}", k, a[k], b[k]);
    }
  }
  if (d.ok && std::isfinite(tolerance.norm)) compare_norms(a, b, tolerance, d);
  d.mistrusted = d.ok && says_nothing(b);
  return d;
}

}  // namespace ferrule
