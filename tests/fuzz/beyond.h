// Where a plan's result and the interpreter's disagree: whether the plan's is further from f64 than
// rounding may put it.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/graph/compare.h"

namespace ferrule::fuzz {

/// A wider result in the element type that the plan has.
inline double rounded(double value, DType dtype) {
  if (dtype == DType::f32) return static_cast<float>(value);
  if (dtype == DType::f16) return f16_to_float(float_to_f16(static_cast<float>(value)));
  if (dtype == DType::bf16) return bf16_to_float(float_to_bf16(static_cast<float>(value)));
  return value;
}

inline bool same_kind(double a, double b) {
  return (std::isfinite(a) && std::isfinite(b)) || (std::isnan(a) && std::isnan(b)) || a == b;
}

/// What a result should be, and how far off rounding on the way may put it.
struct Exact {
  const Tensor& value;            ///< in f64, not rounded to its type
  std::vector<Tensor> roundings;  ///< results that are right but for rounding: the interpreter's,
                                  ///< and those in f64 with noise
  /// What comes of numbers on the way that the tolerance lets overflow, if that was asked. Where it
  /// is NaN, infinities of both signs may have met, or only some of them.
  const Tensor* overflowing = nullptr;

  bool may_be(double infinite, int64_t k) const {
    if (std::isfinite(infinite) || !overflowing || std::isnan(value.at_f64(k))) return false;
    const double early = overflowing->at_f64(k);
    return std::isnan(early) || same_kind(infinite, early);
  }
  /// The same for a number, where another one comes of those that overflow.
  bool may_be_number(double number, int64_t k, const Tolerance& allowed) const {
    if (!overflowing) return false;
    const double early = overflowing->at_f64(k);
    const double bound = allowed.relative * std::abs(early) + allowed.absolute;
    return std::abs(number - early) <= bound && std::abs(value.at_f64(k) - early) > bound;
  }
};

/// As beyond(), of integers that numbers were rounded to: each is between those that rounding may
/// make of it.
inline int64_t beyond_integers(const Tensor& got, const Tensor& want, const Exact& exact) {
  for (int64_t k = 0; k < got.numel(); ++k) {
    double least = std::min(want.at_f64(k), exact.value.at_f64(k)),
           most = std::max(want.at_f64(k), exact.value.at_f64(k));
    for (const Tensor& r : exact.roundings)
      least = std::min(least, r.at_f64(k)), most = std::max(most, r.at_f64(k));
    if (got.at_f64(k) < least || got.at_f64(k) > most) return k;
  }
  return -1;
}

/// As beyond(), of all elements together: -1, or the furthest off.
inline int64_t beyond_together(const Tensor& got, const Tensor& want, const Exact& exact,
                               const Tolerance& allowed) {
  auto counts = [&](int64_t k) {
    return std::isfinite(got.at_f64(k)) && std::isfinite(want.at_f64(k)) &&
           std::isfinite(rounded(exact.value.at_f64(k), got.dtype())) &&
           !exact.may_be_number(got.at_f64(k), k, allowed);
  };
  double ours = 0, theirs = 0, size = 0, worst = -1;
  int64_t at = -1;
  for (int64_t k = 0; k < got.numel(); ++k) {
    if (!counts(k)) continue;
    const double e = rounded(exact.value.at_f64(k), got.dtype()), by = std::abs(got.at_f64(k) - e);
    ours = std::hypot(ours, by), size = std::hypot(size, e);
    if (by > worst) worst = by, at = k;
  }
  for (const Tensor& r : exact.roundings) {
    double off = 0;
    for (int64_t k = 0; k < got.numel(); ++k)
      if (counts(k) && std::isfinite(r.at_f64(k)))
        off = std::hypot(off, r.at_f64(k) - exact.value.at_f64(k));
    theirs = std::max(theirs, off);
  }
  const double bound =
      allowed.norm * size + allowed.least * std::sqrt(static_cast<double>(got.numel()));
  return ours > std::max(bound, kReducedFactor * theirs) ? at : -1;
}

/// The plan's result where it and the interpreter's disagree: -1 where it is no further from f64
/// than what rounds as it may, times the factor of tolerance.h, or within the tolerance; else the
/// first element that is. What overflows on the way may do so in either, and what is within the
/// bound of the type's end may be infinite or not, on the way too. Small elements must not be
/// systematically off where rounding is no such error of theirs.
inline int64_t beyond(const Tensor& got, const Tensor& want, const Exact& exact,
                      const Tolerance& allowed) {
  double largest = 1, off = 0;
  for (int64_t k = 0; k < got.numel(); ++k) {
    const double e = rounded(exact.value.at_f64(k), got.dtype());
    if (!std::isfinite(e)) continue;
    largest = std::max(largest, std::abs(e));
    for (const Tensor& r : exact.roundings)
      if (const double by = std::abs(r.at_f64(k) - e); std::isfinite(by)) off = std::max(off, by);
  }
  for (int64_t k = 0; k < got.numel(); ++k) {
    const double g = got.at_f64(k), w = want.at_f64(k), e = exact.value.at_f64(k);
    const double bound =
        std::max(allowed.relative * std::abs(e) + allowed.absolute * largest, kReducedFactor * off);
    if (std::isfinite(e) && g >= rounded(e - bound, got.dtype()) &&
        g <= rounded(e + bound, got.dtype()))
      continue;
    const double as_stored = rounded(e, got.dtype());
    if (!same_kind(g, w) && !same_kind(g, as_stored) && !exact.may_be(g, k)) return k;
    if (!std::isfinite(g) || g == w) continue;
    if (std::isfinite(as_stored) && !exact.may_be_number(g, k, allowed)) return k;
  }
  if (const int64_t at = beyond_together(got, want, exact, allowed); at >= 0 || allowed.noise == 0)
    return at;
  return wrong_alike(got, exact.value, allowed, off);
}

}  // namespace ferrule::fuzz
