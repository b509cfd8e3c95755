#include "tests/fuzz/windows.h"

namespace ferrule::fuzz {
namespace {

/// Weights: mostly constant, and finite; exact behind what is exact.
Value weights(Builder& b, const Value& v, const Dims& dims,
              std::optional<Mood> mood = std::nullopt) {
  const Mood how = mood ? *mood : v.exact ? Mood::exact : b.finite();
  return b.draw.chance(90) ? b.constant(v.dtype, dims, how) : b.input(v.dtype, dims, how);
}

/// The node's result; what is `exact` stays so for a product or two, before sums leave what the
/// type holds.
Made made(Builder& b, const std::string& op, const std::vector<Value>& operands,
          const std::string& attributes, bool exact, bool positive = false) {
  Made r = b.node(op, operands, attributes);
  if (!r) return r;
  r->exact =
      r->exact && exact && operands[0].dtype != DType::f16 && operands[0].dtype != DType::bf16;
  r->positive = positive;
  for (const Value& o : operands) r->positive = r->positive && (o.positive || o.name.empty());
  return r;
}

/// Windows that fit v's image; nullopt: none of those drawn do.
std::optional<std::vector<Window>> windows_on(Builder& b, const Value& v, bool free) {
  auto axes = draw_windows(b, static_cast<size_t>(v.rank() - 2), free);
  for (size_t a = 0; a < axes.size(); ++a) {
    axes[a].in = v.dims[a + 2];
    if (!axes[a].fits()) return std::nullopt;
  }
  return axes;
}

int64_t channels(Builder& b) { return b.square ? b.side : b.draw.of({1, 2, 3, 4, 4, 6, 8, 8, 16}); }

Made conv(Builder& b, const Value& v) {
  Draw& d = b.draw;
  auto axes = windows_on(b, v, true);
  const int64_t in = v.dims[1];
  if (!axes || in < 1) return std::nullopt;
  const int64_t kind = d.below(8);
  int64_t group = 1, out = channels(b);
  if (kind == 0) group = in, out = in * d.of({1, 1, 2});
  if (kind == 1 && in % 2 == 0) group = 2, out = 2 * std::min<int64_t>(out, 8);
  if (kind > 4)
    for (Window& w : *axes) w.kernel = 1, w.dilation = 1, w.begin = w.end = 0;
  Dims filter{out, in / group};
  for (const Window& w : *axes) filter.push_back(w.kernel);
  std::vector<Value> operands{v, weights(b, v, filter)};
  if (d.chance(60)) operands.push_back(weights(b, v, {out}));
  return made(b, "Conv", operands, window_attributes(d, *axes) + fmt::format(", group = {}", group),
              true, true);
}

Made deconv(Builder& b, const Value& v) {
  Draw& d = b.draw;
  auto axes = windows_on(b, v, false);
  if (!axes || v.dims[1] < 1) return std::nullopt;
  const int64_t group = d.chance(20) && v.dims[1] % 2 == 0 ? 2 : 1;
  Dims filter{v.dims[1], std::min<int64_t>(8, channels(b))};
  for (const Window& w : *axes) filter.push_back(w.kernel);
  std::vector<Value> operands{v, weights(b, v, filter)};
  if (d.chance(50)) operands.push_back(weights(b, v, {filter[1] * group}));
  return made(b, "ConvTranspose", operands,
              window_attributes(d, *axes) + fmt::format(", group = {}", group), true, false);
}

Made pool(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int64_t kind = d.below(7);
  if (kind == 0) return made(b, "GlobalAveragePool", {v}, "", false, true);
  if (kind == 1) return made(b, "GlobalMaxPool", {v}, "", true, true);
  auto axes = windows_on(b, v, false);
  if (!axes) return std::nullopt;
  const std::string window = window_attributes(d, *axes);
  if (kind < 5)
    return made(b, "MaxPool", {v}, window + fmt::format(", ceil_mode = {}", d.below(2)), true,
                true);
  return made(
      b, "AveragePool", {v},
      window + fmt::format(", ceil_mode = {}, count_include_pad = {}", d.below(2), d.below(2)),
      false);
}

Made resize(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int rank = v.rank();
  std::vector<int64_t> sizes;
  for (int a = 0; a < rank; ++a)
    sizes.push_back(a < 2 ? v.dims[static_cast<size_t>(a)]
                          : std::max<int64_t>(1, v.dims[static_cast<size_t>(a)] *
                                                     d.of({1, 2, 2, 3}) / d.of({1, 1, 2})));
  const std::string mode = d.of(Strings{"nearest", "nearest", "linear", "linear", "cubic"});
  std::string attributes =
      "mode = \"" + mode + "\", coordinate_transformation_mode = \"" +
      d.of(Strings{"half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"}) + "\"";
  if (mode == "nearest")
    attributes += ", nearest_mode = \"" +
                  d.of(Strings{"floor", "round_prefer_floor", "round_prefer_ceil", "ceil"}) + "\"";
  if (d.chance(50))
    return made(b, "Resize", {v, Value{}, Value{}, b.literal(sizes)}, attributes, mode == "nearest",
                mode != "cubic");
  Value by = b.literal_of(DType::f32, {rank}, 1);
  if (d.chance(70)) {  // twice as large along the image
    const Value ones = b.literal_of(DType::f32, {2}, 1),
                twos = b.literal_of(DType::f32, {rank - 2}, 2);
    if (auto all = b.node("Concat", {ones, twos}, "axis = 0")) by = *all;
  }
  return made(b, "Resize", {v, Value{}, by}, attributes, mode == "nearest", mode != "cubic");
}

Made matmul(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int rank = v.rank();
  if (rank < 1) return std::nullopt;
  const size_t last = static_cast<size_t>(rank - 1);
  Dims right{v.dims[last], channels(b)};
  if (d.chance(15) && rank > 2) right.insert(right.begin(), v.dims.begin(), v.dims.end() - 2);
  if (d.chance(8)) right.pop_back();
  if (d.chance(20) && rank > 1)
    return made(b, "MatMul", {weights(b, v, {channels(b), v.dims[last - 1]}), v}, "", true, true);
  return made(b, "MatMul", {v, weights(b, v, right)}, "", true, true);
}

Made gemm(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int64_t ta = d.chance(20), tb = d.below(2), n = channels(b), m = v.dims[ta ? 1 : 0],
                k = v.dims[ta ? 0 : 1];
  std::vector<Value> operands{v, weights(b, v, tb ? Dims{n, k} : Dims{k, n})};
  if (d.chance(80))
    operands.push_back(
        weights(b, v, d.of(std::vector<Dims>{{n}, {n}, {1, n}, {m, 1}, {m, n}, {1}, {}})));
  const std::string alpha = d.of(Strings{"1.0", "1.0", "0.5"});
  return made(b, "Gemm", operands,
              fmt::format("transA = {}, transB = {}, alpha = {}", ta, tb, alpha), true, true);
}

Made norm(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int rank = v.rank();
  auto per = [&](int64_t n, Mood mood) { return weights(b, v, {n}, mood); };
  const int64_t c = rank > 1 ? v.dims[1] : 0, last = v.dims.back();
  switch (rank > 1 ? d.below(7) : 5 + d.below(2)) {
    case 0:
    case 1:
    case 2:
      return made(b, "BatchNormalization",
                  {v, per(c, Mood::plain), per(c, Mood::plain), per(c, Mood::plain),
                   per(c, Mood::positive)},
                  "epsilon = 0.001", false);
    case 3:
      return rank > 2 ? made(b, "InstanceNormalization",
                             {v, per(c, Mood::plain), per(c, Mood::plain)}, "epsilon = 0.01", false)
                      : std::nullopt;
    case 4:
      return made(b, "GroupNormalization", {v, per(c, Mood::plain), per(c, Mood::plain)},
                  fmt::format("epsilon = 0.01, num_groups = {}", c % 2 ? c : 2), false);
    case 5:
      return made(b, d.of(Strings{"Softmax", "Softmax", "LogSoftmax"}), {v},
                  fmt::format("axis = {}", d.between(-rank, rank - 1)), false);
    default: {
      const std::string op =
          d.of(Strings{"LayerNormalization", "LayerNormalization", "RMSNormalization"});
      std::vector<Value> operands{v, per(last, Mood::plain)};
      if (op[0] == 'L' && d.chance(60)) operands.push_back(per(last, Mood::plain));
      return made(b, op, operands, "axis = -1, epsilon = 0.01", false);
    }
  }
}

}  // namespace

Made draw_layer(Builder& b, const Value& v) {
  const int rank = v.rank();
  if (rank < 1) return std::nullopt;
  if (!is_float(v.dtype)) return matmul(b, v);
  const int64_t kind = b.draw.below(20);
  if (rank > 2 && rank < 6) {
    if (kind < 8) return conv(b, v);
    if (kind < 10) return deconv(b, v);
    if (kind < 13) return pool(b, v);
    if (kind < 15) return v.numel() ? resize(b, v) : std::nullopt;
  } else if (rank == 2 && kind < 8) {
    return gemm(b, v);
  }
  return kind < 17 ? matmul(b, v) : norm(b, v);
}

}  // namespace ferrule::fuzz
