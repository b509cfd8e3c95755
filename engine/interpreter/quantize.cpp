// Quantisation: to and from integers and small floats, and products of quantised tensors. Sums of
// integers are exact; scales are applied in floating point and rounded half to even.
#include "engine/interpreter/conv.h"
#include "engine/interpreter/matmul.h"
#include "engine/semantics/block_eval.h"

namespace ferrule::interp {
namespace {

/// Which element of scale and zero point belongs to each element of x.
Result<std::vector<int64_t>> parameter_positions(const Call& c, const Tensor& x,
                                                 const Tensor& scale) {
  std::vector<int64_t> at(x.numel(), 0);
  if (scale.numel() == 1 && scale.rank() <= 1) return at;
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", 1), x.rank()));
  const auto a = static_cast<size_t>(axis);
  const int64_t block = c.n.attrs.i("block_size", 0);
  const Dims own = strides(x.dims());
  if (scale.rank() == 1 && block == 0) {
    if (scale.numel() != x.dims()[a])
      return c.bad("{} for axis {} of {}", counted(scale.numel(), "scale"), axis, text(x.dims()));
    for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int64_t>(i) / own[a] % x.dims()[a];
    return at;
  }
  Dims wanted = x.dims();
  if (block < 1) return c.bad_attr("block_size", "{} for scales {}", block, text(scale.dims()));
  wanted[a] = (wanted[a] + block - 1) / block;
  if (scale.dims() != wanted)
    return c.bad("scales {}, {} are wanted", text(scale.dims()), text(wanted));
  const int64_t inner = own[a], size = x.dims()[a];
  for (int64_t i = 0, first = 0; i < x.numel(); first += wanted[a] * inner)
    for (int64_t k = 0; k < size; ++k)
      for (int64_t r = 0; r < inner; ++r)
        at[static_cast<size_t>(i++)] = first + k / block * inner + r;
  return at;
}

struct Range {
  double low, high;
};
Range range_of(DType t) {
  const int bits = size_bits(t);
  if (is_unsigned_int(t)) return {0, std::ldexp(1, bits) - 1};
  return {-std::ldexp(1, bits - 1), std::ldexp(1, bits - 1) - 1};
}
/// Rounded half to even, shifted, saturated.
double quantise(double v, double zero, Range r) {
  if (std::isnan(v)) return std::clamp(zero, r.low, r.high);
  return std::clamp(std::nearbyint(v) + zero, r.low, r.high);
}

/// Small floats; unless they saturate, what lies beyond the largest becomes infinity or NaN.
Tensor small_floats(DType t, const Dims& dims, const std::vector<double>& v, bool saturate) {
  if (saturate) return store(t, dims, v);
  auto [y, bytes] = Tensor::allocate(t, dims);
  pack(t, DType::f64, v.data(), static_cast<int>(v.size()), bytes, 0);
  return y;
}

Outputs quantize_linear(const Call& c) {
  const Tensor &x = *c.input(0), &scale = *c.input(1);
  const Tensor* zero = c.input(2);
  if (!is_float(x.dtype()) && !is_integral(x.dtype())) return c.unsupported_type(x);
  if (!is_float(scale.dtype())) return c.unsupported_type(scale);
  const auto wanted = static_cast<DType>(c.n.attrs.i("output_dtype", 0));
  const DType t = zero ? zero->dtype() : wanted != DType::undefined ? wanted : DType::u8;
  if (!is_int(t) && !(is_float(t) && size_bits(t) <= 8))
    return c.bad_attr("output_dtype", "{} is no quantised type", name(t));
  if (zero && zero->dims() != scale.dims() && !(zero->numel() == 1 && scale.numel() == 1)) {
    return c.bad("zero point {} for scales {}", text(zero->dims()), text(scale.dims()));
  }
  FERRULE_ASSIGN(const auto at, parameter_positions(c, x, scale));
  const View<double> in(x), s(scale);
  std::vector<double> z(scale.numel(), 0.0);
  for (size_t i = 0; zero && i < z.size(); ++i) z[i] = zero->at_f64(i);
  std::vector<double> y(at.size());
  const bool single = x.dtype() != DType::f64 && !c.options.f64;
  for (size_t i = 0; i < y.size(); ++i) {
    const double by = s[at[i]];
    // The quotient is an f32 number: halves are decided by it, as everywhere.
    y[i] = single ? static_cast<double>(static_cast<float>(in[i]) / static_cast<float>(by))
                  : in[i] / by;
    if (is_int(t))
      y[i] = quantise(y[i], z[at[i]], range_of(t));
    else
      y[i] += z[at[i]];
  }
  if (is_float(t)) return one(small_floats(t, x.dims(), y, c.n.attrs.i("saturate", 1) != 0));
  return one(store(t, x.dims(), y));
}

Outputs dequantize_linear(const Call& c) {
  const Tensor &x = *c.input(0), &scale = *c.input(1);
  const Tensor* zero = c.input(2);
  if (!is_float(x.dtype()) && !is_int(x.dtype())) return c.unsupported_type(x);
  if (!is_float(scale.dtype())) return c.unsupported_type(scale);
  if (zero && zero->numel() != scale.numel())
    return c.bad("zero point {} for scales {}", text(zero->dims()), text(scale.dims()));
  FERRULE_ASSIGN(const auto at, parameter_positions(c, x, scale));
  const auto wanted = static_cast<DType>(c.n.attrs.i("output_dtype", 0));
  const DType t = wanted == DType::undefined ? scale.dtype() : wanted;
  if (!is_float(t))
    return c.bad_attr("output_dtype", "{} is no floating point type", c.n.attrs.i("output_dtype"));
  const View<double> s(scale);
  std::vector<double> z(static_cast<size_t>(scale.numel()));
  for (size_t i = 0; zero && i < z.size(); ++i) z[i] = zero->at_f64(static_cast<int64_t>(i));
  const auto all = [&](const auto* in, auto* y) {
    using To = std::remove_pointer_t<decltype(y)>;
    for (size_t i = 0; i < at.size(); ++i)
      y[i] =
          static_cast<To>((static_cast<double>(in[i]) - z[static_cast<size_t>(at[i])]) * s[at[i]]);
  };
  if (t == DType::f32 && (x.dtype() == DType::u8 || x.dtype() == DType::i8)) {  // large weights
    auto [y, bytes] = Tensor::unwritten(t, x.dims());
    if (x.dtype() == DType::u8)
      all(static_cast<const uint8_t*>(x.data()), reinterpret_cast<float*>(bytes));
    else
      all(static_cast<const int8_t*>(x.data()), reinterpret_cast<float*>(bytes));
    return one(std::move(y));
  }
  const View<double> in(x);
  std::vector<double> y(at.size());
  all(in.data(), y.data());
  return one(store(t, x.dims(), y));
}

Outputs dynamic_quantize_linear(const Call& c) {
  const Tensor& x = *c.input(0);
  if (!is_float(x.dtype())) return c.unsupported_type(x);
  const View<float> in(x);
  float low = 0, high = 0;
  for (int64_t i = 0; i < in.size(); ++i) low = std::min(low, in[i]), high = std::max(high, in[i]);
  const float scale = (high - low) / 255.0f;
  const float zero = scale == 0 ? 0 : std::nearbyint(std::clamp(-low / scale, 0.0f, 255.0f));
  std::vector<double> y(in.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = quantise(scale == 0 ? 0 : in[i] / scale, zero, {0, 255});
  }
  auto out = one(store(DType::u8, x.dims(), y));
  out->push_back(Tensor::scalar(DType::f32, scale));
  out->push_back(Tensor::scalar(DType::u8, zero));
  return out;
}

/// Elements minus the zero point: one for all, or one per index of the first axis.
Result<std::vector<int64_t>> centred(const Call& c, const Tensor& t, const Tensor* zero) {
  const View<int64_t> v(t);
  std::vector<int64_t> out(v.data(), v.data() + v.size());
  if (!zero) return out;
  const int64_t per = zero->numel() == 1 ? std::max<int64_t>(v.size(), 1) : count(t.dims(), 1);
  if (zero->numel() != 1 && (t.rank() < 1 || zero->numel() != t.dims()[0])) {
    return c.bad("zero point {} for {}", text(zero->dims()), text(t.dims()));
  }
  for (size_t i = 0; i < out.size(); ++i) out[i] -= zero->at_i64(static_cast<int64_t>(i) / per);
  return out;
}

Outputs conv_integer(const Call& c) {
  const Tensor &x = *c.input(0), &w = *c.input(1);
  if (!is_int(x.dtype()) || !is_int(w.dtype())) return c.unsupported_type(x);
  FERRULE_ASSIGN(const ConvShape s, conv_shape(c, x, w, nullptr));
  if (c.input(2) && c.input(2)->numel() != 1)
    return c.bad("zero point {} of the input", text(c.input(2)->dims()));
  FERRULE_ASSIGN(const auto xs, centred(c, x, c.input(2)));
  FERRULE_ASSIGN(const auto ws, centred(c, w, c.input(3)));
  return one(store(
      DType::i32, s.out,
      convolve<int64_t>(xs.data(), x.dims(), ws.data(), w.dims()[0], nullptr, s.group, s.window)));
}

Status need_scalars(const Call& c, std::initializer_list<size_t> slots) {
  for (size_t i : slots) {
    if (c.input(i)->numel() != 1)
      return c.bad("input {} of shape {} is no scalar", i, text(c.input(i)->dims()));
  }
  return {};
}

Outputs qlinear_conv(const Call& c) {
  const Tensor &x = *c.input(0), &w = *c.input(3), &w_scale = *c.input(4), &y_zero = *c.input(7);
  FERRULE_TRY(need_scalars(c, {1, 2, 6, 7}));
  if (!is_int(x.dtype()) || !is_int(w.dtype()) || !is_int(y_zero.dtype()))
    return c.unsupported_type(x);
  FERRULE_ASSIGN(const ConvShape s, conv_shape(c, x, w, c.input(8)));
  const int64_t channels = w.dims()[0];
  if (w_scale.numel() != 1 && w_scale.numel() != channels)
    return c.bad("{} for {}", counted(w_scale.numel(), "weight scale"),
                 counted(channels, "channel"));
  FERRULE_ASSIGN(const auto xs, centred(c, x, c.input(2)));
  FERRULE_ASSIGN(const auto ws, centred(c, w, c.input(5)));
  std::vector<int64_t> bias;
  if (c.input(8)) bias = c.input(8)->to_i64();
  const auto sums = convolve<int64_t>(xs.data(), x.dims(), ws.data(), channels,
                                      c.input(8) ? bias.data() : nullptr, s.group, s.window);
  const int64_t plane = std::max<int64_t>(count(s.window.out), 1);
  std::vector<double> y(sums.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t m = static_cast<int64_t>(i) / plane % channels;
    const double scale = c.input(1)->at_f64(0) * w_scale.at_f64(w_scale.numel() == 1 ? 0 : m) /
                         c.input(6)->at_f64(0);
    y[i] =
        quantise(static_cast<double>(sums[i]) * scale, y_zero.at_f64(0), range_of(y_zero.dtype()));
  }
  return one(store(y_zero.dtype(), s.out, y));
}

Outputs qlinear_matmul(const Call& c) {
  const Tensor &a = *c.input(0), &b = *c.input(3), &y_zero = *c.input(7);
  FERRULE_TRY(need_scalars(c, {6, 7}));
  if (!is_int(a.dtype()) || !is_int(b.dtype()) || !is_int(y_zero.dtype()))
    return c.unsupported_type(a);
  FERRULE_ASSIGN(const auto s, matmul_shape(c, a.dims(), b.dims()));
  auto matrix = [&](size_t slot, int64_t axis) -> Result<std::vector<int64_t>> {
    const Tensor &t = *c.input(slot), &zero = *c.input(slot + 2);
    FERRULE_ASSIGN(const Dims dims, of_product(c, zero, t.dims(), axis));
    const auto at = positions(t.dims(), broadcast_strides(dims, t.dims()));
    std::vector<int64_t> out(at.size());
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = t.at_i64(static_cast<int64_t>(i)) - zero.at_i64(at[i]);
    return out;
  };
  FERRULE_ASSIGN(const auto left, matrix(0, -2));
  FERRULE_ASSIGN(const auto right, matrix(3, -1));
  const auto sums = matmul(s, left.data(), right.data());
  FERRULE_ASSIGN(Dims of_a, of_product(c, *c.input(1), a.dims(), -2));
  FERRULE_ASSIGN(Dims of_b, of_product(c, *c.input(4), b.dims(), -1));
  // A vector has no axis in the result.
  if (b.rank() == 1 && !of_a.empty()) of_a.pop_back();
  if (a.rank() == 1 && !of_b.empty()) of_b.erase(of_b.end() - 2);
  const auto in_a = positions(s.out, broadcast_strides(of_a, s.out)),
             in_b = positions(s.out, broadcast_strides(of_b, s.out));
  std::vector<double> y(sums.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const double scale =
        c.input(1)->at_f64(in_a[i]) * c.input(4)->at_f64(in_b[i]) / c.input(6)->at_f64(0);
    y[i] =
        quantise(static_cast<double>(sums[i]) * scale, y_zero.at_f64(0), range_of(y_zero.dtype()));
  }
  return one(store(y_zero.dtype(), s.out, y));
}

}  // namespace

std::vector<Entry> quantize_table() {
  return {
      {"QuantizeLinear", quantize_linear, 2},
      {"DequantizeLinear", dequantize_linear, 2},
      {"DynamicQuantizeLinear", dynamic_quantize_linear, 1},
      {"ConvInteger", conv_integer, 2},
      {"QLinearConv", qlinear_conv, 8},
      {"QLinearMatMul", qlinear_matmul, 8},
  };
}

}  // namespace ferrule::interp
