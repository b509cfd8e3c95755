#include "engine/semantics/inferred.h"

#include <cmath>

namespace ferrule {

std::optional<std::vector<Dim>> contents_of(const Graph& g, ValueId v) {
  if (!v) return std::nullopt;
  const Value& value = g.value(v);
  if (!value.constant) return value.contents;
  const Tensor& t = *value.constant;
  if (t.numel() > kMaxContents || size_bits(t.dtype()) == 0) return std::nullopt;
  if (is_int(t.dtype()) || t.dtype() == DType::boolean) {
    std::vector<int64_t> i = t.to_i64();
    return std::vector<Dim>(i.begin(), i.end());
  }
  // Sizes are often computed in floats; whole numbers stay exact there.
  if (!is_float(t.dtype())) return std::nullopt;
  std::vector<Dim> out;
  for (double d : t.to_f64()) {
    if (d != std::floor(d) || std::fabs(d) > 0x1p24) return std::nullopt;
    out.push_back(static_cast<int64_t>(d));
  }
  return out;
}

}  // namespace ferrule
