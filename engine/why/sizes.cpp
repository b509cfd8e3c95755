// Bytes of values, also where sizes are open: those then get likely ones.
#include <algorithm>

#include "engine/graph/open_sizes.h"
#include "engine/why/internal.h"

namespace ferrule::why {

Sizes::Sizes(const Graph& g) {
  for (ValueId v : g.inputs()) {
    const Value& value = g.value(v);
    if (!value.type.shape || value.constant || constant_shape(*value.type.shape)) continue;
    assumed_ += (assumed_.empty() ? "" : " ") + likely_sizes(value, symbols_);
  }
}

Type Sizes::sized(Type t) const {
  for (int k = 0; k < t.rank(); ++k) {
    Dim& d = (*t.shape)[static_cast<size_t>(k)];
    d = d.constant().value_or(d.evaluate(symbols_).value_or(likely_size(t.rank(), k)));
  }
  return t;
}

int64_t Sizes::bytes(const Type& t) const {
  if (!t.shape || t.dtype == DType::undefined || t.dtype == DType::string) return -1;
  int64_t numel = 1;
  const Type known = sized(t);
  for (const Dim& d : *known.shape)
    if (__builtin_mul_overflow(numel, std::max<int64_t>(d.value_or(0), 0), &numel)) return -1;
  return size_bytes(t.dtype, numel);
}

}  // namespace ferrule::why
