#include "engine/rule/number_class.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

/// Axes of more than one index, and whether the elements of each index have a normal number among
/// them.
class Rows {
 public:
  Rows(const Tensor& t, double least) {
    int64_t inner = t.numel();
    for (int64_t size : t.dims()) {
      if (size > 0) inner /= size;
      if (size > 1) axes_.push_back({inner, size, std::vector<bool>(static_cast<size_t>(size))});
    }
    for (int64_t i = 0; i < t.numel(); ++i) {
      if (std::abs(t.at_f64(i)) < least) continue;
      for (Axis& a : axes_) a.normal[index(a, i)] = true;
    }
  }
  /// Whether element `i` has a normal number beside it whatever row one looks at.
  bool beside_normal(int64_t i) const {
    return axes_.size() > 1 &&
           std::ranges::all_of(axes_, [&](const Axis& a) { return a.normal[index(a, i)]; });
  }

 private:
  struct Axis {
    int64_t step, size;
    std::vector<bool> normal;  // by index
  };
  static size_t index(const Axis& a, int64_t i) { return static_cast<size_t>(i / a.step % a.size); }
  std::vector<Axis> axes_;
};

/// In blocks without a branch inside, which the compiler turns into vectors: weights are large.
bool finite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;
  auto any = [](const float* p, size_t n) {
    uint32_t bad = 0;
    for (size_t k = 0; k < n; ++k) {
      uint32_t bits;
      std::memcpy(&bits, p + k, sizeof bits);
      bad |= (bits & kExponent) == kExponent;
    }
    return bad != 0;
  };
  constexpr size_t kStep = 1024;
  size_t at = 0;
  for (; at + kStep <= values.size(); at += kStep)
    if (any(values.data() + at, kStep)) return false;
  return !any(values.data() + at, values.size() - at);
}

}  // namespace

bool finite(const Tensor& t) {
  if (!is_float(t.dtype())) return true;
  if (t.dtype() == DType::f32) return finite(t.as<float>());
  for (int64_t i = 0; i < t.numel(); ++i)
    if (!std::isfinite(t.at_f64(i))) return false;
  return true;
}

double least_normal(DType t) {
  switch (t) {
    case DType::f16:
      return 0x1p-14;
    case DType::bf16:
    case DType::f32:
      return FLT_MIN;
    case DType::f64:
      return DBL_MIN;
    default:
      return 0;
  }
}

std::optional<ClassChange> underflow(const Tensor& exact, const Tensor& rounded, Elements elements,
                                     const Tensor* normal) {
  const double least = least_normal(rounded.dtype());
  std::optional<Rows> rows;
  for (int64_t i = 0; i < exact.numel(); ++i) {
    const double e = exact.at_f64(i);
    if (e == 0 || !(std::abs(e) < least)) continue;
    const double r = rounded.at_f64(i);
    if (std::abs(r) >= least || (normal && normal->at_f64(i) == 0)) continue;
    if (elements == Elements::summed && !rows) rows.emplace(rounded, least);
    if (rows && rows->beside_normal(i)) continue;
    return ClassChange{i, e, r};
  }
  return std::nullopt;
}

std::optional<Tensor> without_subnormals(const Tensor& t) {
  // f16 is computed in f32, or by units that know its subnormal numbers: none of them flushes
  // these.
  if (t.dtype() == DType::f16) return std::nullopt;
  const double least = least_normal(t.dtype());
  auto subnormal = [&](int64_t i) { return t.at_f64(i) != 0 && std::abs(t.at_f64(i)) < least; };
  int64_t i = 0;
  while (i < t.numel() && !subnormal(i)) ++i;
  if (least == 0 || i == t.numel()) return std::nullopt;
  auto [out, bytes] = Tensor::allocate(t.dtype(), t.dims());
  const auto size = static_cast<size_t>(size_bits(t.dtype()) / 8);
  std::memcpy(bytes, t.data(), static_cast<size_t>(t.bytes()));
  for (; i < t.numel(); ++i)
    if (subnormal(i))
      std::memset(static_cast<char*>(bytes) + static_cast<size_t>(i) * size, 0, size);
  return out;
}

std::string text(const ClassChange& c, DType t) {
  if (std::isnan(c.exact)) return "NaN";
  if (std::isinf(c.exact)) return fmt::format("{}", c.exact);
  const std::string what = !std::isfinite(c.rounded) ? "infinite"
                           : c.rounded == 0          ? "0"
                                                     : "a subnormal number";
  return fmt::format("{:.6g}, which is {} in {}", c.exact, what, name(t));
}

}  // namespace ferrule
