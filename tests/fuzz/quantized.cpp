#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {
namespace {

/// Scales are powers of two and what is quantized is exact, so that nothing but the rounding to
/// integers rounds: that a plan's sums have another order makes no other integer.
Value scale(Builder& b, const Dims& dims) {
  return b.literal_of(DType::f32, dims, b.draw.of(std::vector<double>{0.25, 0.5, 0.5, 1, 2}));
}

struct Pair {
  Value scale, zero;
  std::string attributes;
};

/// Of a whole tensor, mostly: one scale a channel, now and then.
Pair draw_pair(Builder& b, DType dtype, const Value& v) {
  Draw& d = b.draw;
  if (v.rank() > 1 && d.chance(15)) {
    const Dims dims{v.dims[1]};
    return {scale(b, dims), b.constant(dtype, dims, Mood::positive), "axis = 1"};
  }
  return {scale(b, {}),
          b.literal_of(dtype, {},
                       dtype == DType::u8 ? static_cast<double>(d.of({0, 3, 128}))
                                          : static_cast<double>(d.of({0, 0, -2}))),
          ""};
}

Made back(Builder& b, const Value& q, const Pair& p) {
  Made r = b.node("DequantizeLinear", {q, p.scale, p.zero}, p.attributes, DType::f32);
  if (r) r->exact = true;
  return r;
}

Made there_and_back(Builder& b, const Value& v) {
  const DType dtype = b.draw.chance(60) ? DType::u8 : DType::i8;
  const Pair p = draw_pair(b, dtype, v);
  Made q = b.node("QuantizeLinear", {v, p.scale, p.zero}, p.attributes, dtype);
  return q ? back(b, *q, p) : q;
}

/// i8 weights; one scale each, or one an output channel (`axis`).
Made weights(Builder& b, const Dims& dims, int axis) {
  Draw& d = b.draw;
  const bool per = d.chance(50);
  const Dims scales = per ? Dims{dims[static_cast<size_t>(axis)]} : Dims{};
  Pair p{scale(b, scales), b.literal_of(DType::i8, scales, 0),
         per ? fmt::format("axis = {}", axis) : ""};
  return back(b, b.constant(DType::i8, dims, Mood::exact), p);
}

}  // namespace

Made draw_quantized(Builder& b, const Value& v) {
  Draw& d = b.draw;
  if (v.dtype != DType::f32 || !v.exact || v.rank() < 2 || v.rank() > 4 || v.numel() == 0 ||
      b.mood == Mood::wild)
    return std::nullopt;
  Made r = there_and_back(b, v);
  if (!r) return r;
  const int64_t out = d.of({1, 2, 4, 8}), k = d.of({1, 1, 3});
  if (v.rank() > 2 && d.chance(75)) {
    Dims filter{out, v.dims[1]};
    for (int a = 2; a < v.rank(); ++a) filter.push_back(k);
    const std::vector<int64_t> pads(static_cast<size_t>(2 * (v.rank() - 2)), k / 2);
    Made w = weights(b, filter, 0);
    if (!w) return r;
    std::vector<Value> operands{*r, *w};
    if (d.chance(50)) operands.push_back(b.constant(DType::f32, {out}, Mood::exact));
    if (Made y = b.node("Conv", operands, "pads = " + ints(pads))) r = y;
  } else if (d.chance(80)) {
    Made w = weights(b, {v.dims.back(), out}, 1);
    Made y = w ? b.node("MatMul", {*r, *w}) : w;
    if (y) r = y;
    if (y && d.chance(50))
      if (Made biased = b.node("Add", {*y, b.constant(DType::f32, {out}, Mood::exact)})) r = biased;
  }
  if (d.chance(50))
    if (Made y = b.node("Relu", {*r})) r = y;
  if (d.chance(25) && r->rank() == 4)
    if (Made y = b.node("MaxPool", {*r}, "kernel_shape = [2,2], auto_pad = \"SAME_UPPER\"")) r = y;
  if (d.chance(25))
    if (Made y = b.node("Add", {*r, *r})) r = y;
  if (r) r->exact = true;
  if (d.chance(75))
    if (Made y = there_and_back(b, *r)) r = y;
  return r;
}

}  // namespace ferrule::fuzz
