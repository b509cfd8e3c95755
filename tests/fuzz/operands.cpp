#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {
namespace {

bool broadcasts(const Dims& a, const Dims& b) {
  for (size_t k = 1; k <= std::min(a.size(), b.size()); ++k) {
    const int64_t x = a[a.size() - k], y = b[b.size() - k];
    if (x != y && x != 1 && y != 1) return false;
  }
  return true;
}

/// A value of the type that the scene has already: the anchor's own input, its result, a step's
/// result.
std::optional<Value> known(Draw& d, const Scene& scene, const Value& value) {
  std::vector<Value> fit;
  for (const Value& v : scene.values)
    if (v.dtype == value.dtype && broadcasts(v.dims, value.dims)) fit.push_back(v);
  for (const Value& v : scene.anchor.operands)
    if (!v.name.empty() && v.dtype == value.dtype && broadcasts(v.dims, value.dims))
      fit.push_back(v), fit.push_back(v);
  if (fit.empty()) return std::nullopt;
  return d.of(fit);
}

std::optional<Value> computed(Builder& b, const Value& x) {
  static const std::vector<std::string> any{"Neg", "Relu", "Abs", "Identity"},
      real{"Neg", "Relu", "Abs", "Identity", "Sigmoid", "Tanh"};
  return b.node(b.draw.of(is_float(x.dtype) ? real : any), {x});
}

}  // namespace

Dims operand_dims(Draw& d, const Dims& dims) {
  const int style = static_cast<int>(d.below(10));
  if (style == 0) return d.of(std::vector<Dims>{{}, {1}, {1, 1, 1, 1}});
  Dims out = dims;
  if (style <= 2) return out;
  const int ones = d.of({0, 30, 50, 80});
  for (int64_t& n : out)
    if (d.chance(ones)) n = 1;
  if (style <= 4 && dims.size() >= 2) {  // one value a channel: [C,1,1], [1,C,1,1], and C elsewhere
    out.assign(dims.size(), 1);
    const size_t axis =
        d.chance(80) ? 1 : static_cast<size_t>(d.below(static_cast<int64_t>(dims.size())));
    out[axis] = dims[axis];
  }
  if (d.chance(60))  // leading ones go, or whole axes
    while (!out.empty() && (out[0] == 1 ? d.chance(80) : d.chance(40))) out.erase(out.begin());
  if (d.chance(25))  // wider than the value
    for (size_t k = 1; k <= out.size() && k <= dims.size(); ++k)
      if (dims[dims.size() - k] == 1 && d.chance(60)) out[out.size() - k] = d.of({2, 3, 4});
  if (d.chance(12) && out.size() < 5) out.insert(out.begin(), d.of({1, 1, 2, 3}));
  return out;
}

Value draw_operand(Builder& b, const Scene& scene, const Value& value, std::optional<Mood> mood) {
  Draw& d = b.draw;
  const int64_t kind = d.below(20);
  if (!mood) {
    if (kind < 4)
      if (auto v = known(d, scene, value)) return *v;
    if (kind == 4 && value.dtype == b.dtype)
      if (auto v = another(b, scene.anchor); v && broadcasts(v->dims, value.dims)) return *v;
  }
  const Mood how = mood.value_or(value.exact ? Mood::exact : b.mood);
  const Dims dims = operand_dims(d, value.dims);
  if (kind < 13) return b.constant(value.dtype, dims, how);
  const Value x = b.input(value.dtype, dims, how);
  if (kind < 17 || mood) return x;
  if (x.dtype == DType::boolean) return x;
  auto v = computed(b, x);
  return v ? *v : x;
}

}  // namespace ferrule::fuzz
