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

/// A zero point of 8 bits for each of `dims`; sometimes none, sometimes computed.
Value zero_point(Builder& b, DType dtype, const Dims& dims, bool may_lack) {
  if (may_lack && b.draw.chance(30)) return {};
  const Value z = b.constant(dtype, dims, Mood::exact);
  const Made same = b.draw.chance(20) ? b.node("Identity", {z}) : std::nullopt;
  return same ? *same : z;
}

/// Products and convolutions of integers themselves: of `v` in 8 bits, where that is exact, else of
/// an input as large.
Made in_integers(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const DType dtype = d.chance(60) ? DType::u8 : DType::i8;
  Made q = v.dtype == DType::f32 && v.exact && b.mood != Mood::wild
               ? b.node("QuantizeLinear", {v, scale(b, {}), b.literal_of(dtype, {}, 2)}, "", dtype)
               : b.input(dtype, v.dims, Mood::exact);
  if (!q) return q;
  const DType of = d.chance(60) ? DType::i8 : DType::u8;
  const int64_t out = d.of({1, 2, 4, 8, 17});
  const bool image = v.rank() > 2 && d.chance(60), scaled = d.chance(60);
  Dims dims;
  std::string attributes;
  if (image) {
    int64_t group = d.chance(30) ? v.dims[1] : 1;
    dims = {out * group, v.dims[1] / group};
    std::vector<int64_t> pads, strides, dilations;
    for (int a = 2; a < v.rank(); ++a) {
      dims.push_back(d.of({1, 1, 2, 3}));
      strides.push_back(d.of({1, 1, 2}));
      dilations.push_back(d.of({1, 1, 2}));
    }
    for (int a = 4; a < 2 * v.rank(); ++a) pads.push_back(d.of({0, 1, 2}));
    attributes =
        fmt::format("group = {}, strides = {}, dilations = {}", group, ints(strides),
                    ints(dilations)) +
        (d.chance(30) ? ", auto_pad = \"" + d.of(Strings{"SAME_UPPER", "SAME_LOWER"}) + "\""
                      : ", pads = " + ints(pads));
  } else {
    dims = {v.dims.back(), out};
    if (v.rank() > 2 && d.chance(20)) dims.insert(dims.begin(), 1);
  }
  const Value w = d.chance(80) ? b.constant(of, dims, Mood::exact) : b.input(of, dims, Mood::exact);
  const bool per = d.chance(40) && dims.size() != 3;
  const Dims each = per && (image || !scaled) ? Dims{image ? dims[0] : out} : Dims{};
  if (!scaled) {
    Made sums = b.node(image ? "ConvInteger" : "MatMulInteger",
                       {*q, w, zero_point(b, dtype, {}, true), zero_point(b, of, each, false)},
                       attributes, DType::i32);
    return sums ? b.node("Cast", {*sums}, "to = 1", DType::f32) : sums;
  }
  const DType to = image || d.chance(50) ? dtype : d.chance(50) ? DType::u8 : DType::i8;
  const Value sy = b.literal_of(DType::f32, {}, d.of(std::vector<double>{8, 16, 64})),
              zy = zero_point(b, to, {}, false);
  std::vector<Value> operands{*q,
                              scale(b, {}),
                              zero_point(b, dtype, {}, false),
                              w,
                              scale(b, each),
                              zero_point(b, of, each, false),
                              sy,
                              zy};
  if (image && d.chance(50)) operands.push_back(b.constant(DType::i32, {dims[0]}, Mood::exact));
  Made y = b.node(image ? "QLinearConv" : "QLinearMatMul", operands, attributes, to);
  return y ? b.node("DequantizeLinear", {*y, sy, zy}, "", DType::f32) : y;
}

}  // namespace

Made draw_quantized(Builder& b, const Value& v) {
  Draw& d = b.draw;
  if (v.rank() < 2 || v.rank() > 4 || v.numel() == 0) return std::nullopt;
  if (d.chance(40)) {
    Made r = in_integers(b, v);
    if (r) r->exact = true;
    return r;
  }
  if (v.dtype != DType::f32 || !v.exact || b.mood == Mood::wild) return std::nullopt;
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
