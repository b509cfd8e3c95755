#include "tests/fuzz/values.h"

#include <cmath>
#include <limits>

#include "engine/base/tolerance.h"

namespace ferrule::fuzz {
namespace {

double special(Draw& draw, DType dtype) {
  const double huge = dtype == DType::f16 ? 60000 : 0x1p18;
  const double tiny = dtype == DType::f16 ? 3e-7 : dtype == DType::f64 ? 1e-310 : 1e-40;
  // Not so huge that sums would round: with an infinity behind them, the sign of what rounding
  // leaves is the result.
  const double inf = std::numeric_limits<double>::infinity();
  const double all[] = {std::nan(""), inf, -inf, -0.0, 0.0, tiny, -tiny, huge, -huge, 1e4};
  return all[draw.below(std::size(all))];
}

/// `odd`: percent of the wild ones that are special.
double number(Draw& draw, DType dtype, Mood mood, int64_t odd) {
  switch (mood) {
    case Mood::exact:
      return static_cast<double>(draw.between(-4, 4)) / 2;
    case Mood::plain:
      return static_cast<double>(draw.between(-512, 512)) / 256;
    case Mood::positive:
      return static_cast<double>(draw.between(64, 512)) / 256;
    case Mood::wild:
      return draw.chance(static_cast<int>(odd)) ? special(draw, dtype)
                                                : number(draw, dtype, Mood::exact, 0);
  }
  return 0;
}

double whole(Draw& draw, DType dtype, Mood mood) {
  if (dtype == DType::boolean) return static_cast<double>(draw.below(2));
  const bool low = is_unsigned_int(dtype) || mood == Mood::positive;
  return static_cast<double>(draw.between(low ? 1 : -4, 5));
}

/// The shortest of a few spellings that reads back as the same number.
std::string spelled(double value, DType dtype) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  for (int digits : {6, 9, 17}) {
    std::string text = fmt::format("{:.{}g}", value, digits);
    const double back = dtype == DType::f64 ? std::strtod(text.c_str(), nullptr)
                                            : std::strtof(text.c_str(), nullptr);
    if (back == value || digits == 17) return text;
  }
  return {};
}

template <class T, class F>
void fill(void* where, int64_t n, F next) {
  for (int64_t k = 0; k < n; ++k) static_cast<T*>(where)[k] = next();
}

}  // namespace

Tensor draw_values(Draw& draw, DType dtype, const Dims& dims, Mood mood) {
  auto [t, p] = Tensor::allocate(dtype, dims);
  const int64_t n = t.numel();
  const int64_t odd = mood == Mood::wild
                          ? draw.of({1, 3, 12, 25})
                          : 0;  // where sums are taken, few reach most of the results
  auto real = [&] { return number(draw, dtype, mood, odd); };
  auto small = [&] { return whole(draw, dtype, mood); };
  switch (dtype) {
    case DType::f32:
      fill<float>(p, n, [&] { return static_cast<float>(real()); });
      break;
    case DType::f64:
      fill<double>(p, n, real);
      break;
    case DType::f16:
      fill<uint16_t>(p, n, [&] { return float_to_f16(static_cast<float>(real())); });
      break;
    case DType::bf16:
      fill<uint16_t>(p, n, [&] { return float_to_bf16(static_cast<float>(real())); });
      break;
    case DType::i64:
      fill<int64_t>(p, n, [&] { return static_cast<int64_t>(small()); });
      break;
    case DType::i16:
      fill<int16_t>(p, n, [&] { return static_cast<int16_t>(small()); });
      break;
    case DType::u16:
      fill<uint16_t>(p, n, [&] { return static_cast<uint16_t>(small()); });
      break;
    case DType::u32:
      fill<uint32_t>(p, n, [&] { return static_cast<uint32_t>(small()); });
      break;
    case DType::u64:
      fill<uint64_t>(p, n, [&] { return static_cast<uint64_t>(small()); });
      break;
    case DType::i32:
      fill<int32_t>(p, n, [&] { return static_cast<int32_t>(small()); });
      break;
    default:
      fill<int8_t>(p, n, [&] { return static_cast<int8_t>(small()); });
      break;
  }
  return t;
}

bool says_nothing(const Tensor& t) {
  const std::vector<double> all = t.to_f64();
  double largest = 1;
  for (double v : all)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  const double floor = model_tolerance(t.dtype()).absolute * largest;
  size_t small = 0, odd = 0;
  bool constant = true;
  for (double v : all) {
    small += std::abs(v) <= floor;
    odd += !std::isfinite(v);
    constant = constant && (v == all[0] || (std::isnan(v) && std::isnan(all[0])));
  }
  if (2 * odd > all.size()) return true;
  return all.size() > 1 && (constant || (t.dtype() != DType::boolean && 2 * small > all.size()));
}

std::string type_text(DType dtype, const std::vector<std::string>& dims) {
  return dims.empty() ? std::string(onnx_name(dtype))
                      : fmt::format("{}[{}]", onnx_name(dtype), fmt::join(dims, ","));
}
std::string type_text(DType dtype, const Dims& dims) {
  std::vector<std::string> sizes;
  for (int64_t d : dims) sizes.push_back(std::to_string(d));
  return type_text(dtype, sizes);
}

std::string elements_text(const Tensor& t) {
  std::string out;
  const bool halves =
      t.dtype() == DType::f16 || t.dtype() == DType::bf16;  // ONNX's text has their bits
  for (int64_t k = 0; k < t.numel(); ++k) {
    if (k) out += ", ";
    if (halves)
      out += std::to_string(t.as<uint16_t>()[static_cast<size_t>(k)]);
    else
      out += is_float(t.dtype()) ? spelled(t.at_f64(k), t.dtype()) : std::to_string(t.at_i64(k));
  }
  return "{" + out + "}";
}

}  // namespace ferrule::fuzz
