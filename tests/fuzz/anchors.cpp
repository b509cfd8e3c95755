#include "tests/fuzz/windows.h"

namespace ferrule::fuzz {

std::string ints(const std::vector<int64_t>& v) { return fmt::format("[{}]", fmt::join(v, ",")); }

namespace {

Dims image(int64_t n, int64_t channels, const std::vector<Window>& axes) {
  Dims dims{n, channels};
  for (const Window& w : axes) dims.push_back(w.in);
  return dims;
}

size_t spatial_rank(Draw& d) { return static_cast<size_t>(d.of({1, 2, 2, 2, 2, 3})); }
int64_t batch(Builder& b) { return b.empty && b.draw.chance(50) ? 0 : b.draw.of({1, 1, 1, 2, 3}); }

/// The data that an anchor reads: a graph input, or something computed of one.
Value source(Builder& b, const Dims& dims) {
  Draw& d = b.draw;
  if (d.chance(70)) return b.input(b.dtype, dims, b.mood);
  if (d.chance(40) && dims.size() > 1) {  // comes in another order of its axes
    std::vector<int64_t> perm(dims.size());
    for (size_t k = 0; k < perm.size(); ++k) perm[k] = static_cast<int64_t>(k);
    d.shuffle(perm);
    Dims from(dims.size());
    for (size_t k = 0; k < perm.size(); ++k) from[static_cast<size_t>(perm[k])] = dims[k];
    if (auto v = b.node("Transpose", {b.input(b.dtype, from, b.mood)}, "perm = " + ints(perm)))
      return *v;
  }
  const Value x = b.input(b.dtype, dims, b.mood);
  auto v = b.node(d.of(std::vector<std::string>{"Relu", "Neg", "Abs", "Identity"}), {x});
  return v ? *v : x;
}

/// Weights: mostly constant. They are finite: what an infinite one makes of a pad, the standard
/// does not say.
Value weights(Builder& b, const Dims& dims, std::optional<Mood> mood = std::nullopt) {
  const Mood how = mood ? *mood : b.finite();
  if (b.draw.chance(85)) return b.constant(b.dtype, dims, how);
  const Value w = b.input(b.dtype, dims, how);
  if (b.draw.chance(50)) return w;
  auto v = b.node("Identity", {w});
  return v ? *v : w;
}

std::optional<Anchor> anchor_of(Builder& b, const std::string& op, std::vector<Value> operands,
                                const std::string& attributes, bool exact) {
  auto v = b.node(op, operands, attributes);
  if (!v) return std::nullopt;
  v->exact = v->exact && exact && b.dtype != DType::f16;
  v->positive = op == "Conv" || op == "MatMul" || op == "MaxPool" || op.starts_with("Global");
  for (const Value& o : operands) v->positive = v->positive && (o.positive || o.name.empty());
  return Anchor{op, attributes, std::move(operands), *v};
}

std::optional<Anchor> conv(Builder& b) {
  Draw& d = b.draw;
  auto axes = draw_windows(b, spatial_rank(d), true);
  if (d.chance(6))
    axes.assign(axes.size(), {1, 1, 1, 0, 0, 1});  // one pixel: it lies in every order of its axes
  const int64_t kind = d.below(10);
  int64_t group = 1, in = std::max<int64_t>(1, b.size()), out = std::max<int64_t>(1, b.size());
  if (kind == 0) group = in, out = in;
  if (kind == 1) group = in, out = 2 * in;
  if (kind == 2) group = 2, in = 2 * std::min<int64_t>(in, 8), out = 2 * std::min<int64_t>(out, 8);
  if (d.chance(3)) {  // large enough for kernels that small images never see
    in = group = 1, in = d.of({3, 16, 32}), out = d.of({16, 32});
    for (Window& w : axes) w.in = axes.size() > 2 ? 6 : 16;
  }
  Dims filter{out, in / group};
  for (const Window& w : axes) filter.push_back(w.kernel);
  std::vector<Value> operands{source(b, image(batch(b), in, axes)), weights(b, filter)};
  if (d.chance(50)) operands.push_back(weights(b, {out}));
  return anchor_of(b, "Conv", operands,
                   window_attributes(d, axes) + fmt::format(", group = {}", group), true);
}

/// Weights of which a text need not hold every one: sums of a number for each row of the first axis
/// and one for each of the second.
std::optional<Value> many_weights(Builder& b, const Dims& dims) {
  Dims rows = dims, columns = dims;
  rows[1] = columns[0] = 1;
  return b.node("Add",
                {b.constant(b.dtype, rows, b.finite()), b.constant(b.dtype, columns, b.finite())});
}

std::optional<Anchor> deconv(Builder& b) {
  Draw& d = b.draw;
  auto axes = draw_windows(b, spatial_rank(d), false);
  const bool large = d.chance(5);  // so that the library sums up their weights in parts
  const int64_t group = !large && d.chance(20) ? 2 : 1,
                in = large ? 64 : group * std::min<int64_t>(8, std::max<int64_t>(1, b.size()));
  int64_t taps = 1;
  for (const Window& w : axes) taps *= w.kernel;
  constexpr int64_t kLarge = (256 << 10) / 4;
  Dims filter{in, large ? kLarge / (in * taps) + d.between(1, 16)
                        : std::min<int64_t>(8, std::max<int64_t>(1, b.size()))};
  for (Window& w : axes) filter.push_back(w.kernel), w.in = std::min<int64_t>(w.in, large ? 4 : 8);
  std::string attributes = window_attributes(d, axes) + fmt::format(", group = {}", group);
  if (d.chance(20))
    attributes += ", output_padding = " +
                  ints(each(axes, [&](auto& w) { return d.between(0, w.stride - 1); }));
  const auto many = large ? many_weights(b, filter) : std::nullopt;
  if (large && !many) return std::nullopt;
  std::vector<Value> operands{source(b, image(batch(b), in, axes)),
                              many ? *many : weights(b, filter)};
  if (d.chance(50)) operands.push_back(weights(b, {filter[1] * group}));
  return anchor_of(b, "ConvTranspose", operands, attributes, true);
}

/// Batch sizes of one operand of a product whose result has these: some are 1, leading ones left
/// out.
Dims batch_of(Draw& d, const Dims& batches) {
  Dims out;
  for (int64_t n : batches) out.push_back(d.chance(30) ? 1 : n);
  if (d.chance(40))
    out.erase(out.begin(), out.begin() + d.between(0, static_cast<int64_t>(out.size())));
  return out;
}

std::optional<Anchor> matmul(Builder& b) {
  Draw& d = b.draw;
  const int64_t m = b.size(), k = b.size(), n = b.size();
  Dims batches;
  for (int64_t r = d.of({0, 0, 1, 1, 2}); r > 0; --r)
    batches.push_back(b.square ? b.side : d.of({1, 2, 3}));
  Dims left = batch_of(d, batches), right = batch_of(d, batches);
  left.insert(left.end(), {m, k});
  right.insert(right.end(), {k, n});
  if (d.chance(12)) left = {k};
  if (d.chance(12)) right = {k};
  return anchor_of(b, "MatMul", {source(b, left), weights(b, right)}, "", true);
}

std::optional<Anchor> gemm(Builder& b) {
  Draw& d = b.draw;
  const int64_t m = b.size(), k = b.size(), n = b.size(), ta = d.below(2), tb = d.below(2);
  std::vector<Value> operands{source(b, ta ? Dims{k, m} : Dims{m, k}),
                              weights(b, tb ? Dims{n, k} : Dims{k, n})};
  if (d.chance(80))
    operands.push_back(
        weights(b, d.of(std::vector<Dims>{{n}, {1, n}, {m, 1}, {1, 1}, {m, n}, {1}, {}})));
  const std::vector<std::string> factors{"1.0", "1.0", "0.5", "2.0", "-1.5"};
  const std::string alpha = d.of(factors), beta = d.of(factors);
  return anchor_of(
      b, "Gemm", operands,
      fmt::format("transA = {}, transB = {}, alpha = {}, beta = {}", ta, tb, alpha, beta),
      alpha != "-1.5" && beta != "-1.5");
}

std::optional<Anchor> pool(Builder& b) {
  Draw& d = b.draw;
  const size_t rank = spatial_rank(d);
  auto axes = draw_windows(b, rank, false);
  const Value x = source(b, image(batch(b), std::max<int64_t>(1, b.size()), axes));
  switch (d.below(6)) {
    case 0:
      return anchor_of(b, "GlobalAveragePool", {x}, "", false);
    case 1:
      return anchor_of(b, "GlobalMaxPool", {x}, "", true);
    case 2:
      return anchor_of(b, "LpPool", {x},
                       window_attributes(d, axes) +
                           fmt::format(", p = {}, ceil_mode = {}", d.of({1, 2, 2, 3}), d.below(2)),
                       false);
    case 3:
      return anchor_of(b, "MaxPool", {x},
                       window_attributes(d, axes) + fmt::format(", ceil_mode = {}", d.below(2)),
                       true);
    default:
      return anchor_of(
          b, "AveragePool", {x},
          window_attributes(d, axes) +
              fmt::format(", ceil_mode = {}, count_include_pad = {}", d.below(2), d.below(2)),
          false);
  }
}

std::optional<Anchor> channel_norm(Builder& b) {
  Draw& d = b.draw;
  const int64_t channels = std::max<int64_t>(1, b.size());
  Dims dims{batch(b), channels};
  for (size_t r = d.chance(20) ? 0 : spatial_rank(d); r > 0; --r) dims.push_back(b.size());
  const Value x = source(b, dims);
  auto per = [&](Mood mood) { return weights(b, {channels}, mood); };
  if (d.chance(60))
    return anchor_of(b, "BatchNormalization",
                     {x, per(Mood::plain), per(Mood::plain), per(Mood::plain), per(Mood::positive)},
                     "epsilon = 0.001", false);
  if (d.chance(50))
    return anchor_of(b, "InstanceNormalization", {x, per(Mood::plain), per(Mood::plain)},
                     "epsilon = 0.01", false);
  int64_t groups = d.between(1, channels);
  while (channels % groups) --groups;
  return anchor_of(b, "GroupNormalization", {x, per(Mood::plain), per(Mood::plain)},
                   fmt::format("epsilon = 0.01, num_groups = {}", groups), false);
}

std::optional<Anchor> row_norm(Builder& b) {
  Draw& d = b.draw;
  Dims dims;
  for (int64_t r = d.between(1, 4); r > 0; --r) dims.push_back(b.size());
  const Value x = source(b, dims);
  const int64_t rank = x.rank(), axis = d.between(-rank, rank - 1);
  if (d.chance(40))
    return anchor_of(b, d.chance(75) ? "Softmax" : "LogSoftmax", {x},
                     fmt::format("axis = {}", axis), false);
  const Dims rows(dims.begin() + (axis < 0 ? axis + rank : axis), dims.end());
  auto per = [&] { return weights(b, d.chance(85) ? rows : Dims{rows.back()}, Mood::plain); };
  const std::string attributes = fmt::format("axis = {}, epsilon = 0.01", axis);
  if (d.chance(40)) return anchor_of(b, "RMSNormalization", {x, per()}, attributes, false);
  std::vector<Value> operands{x, per()};
  if (d.chance(60)) operands.push_back(per());
  return anchor_of(b, "LayerNormalization", operands, attributes, false);
}

}  // namespace

Anchor draw_anchor(Builder& b) {
  for (int tries = 0;; ++tries) {
    if (tries == 20)
      b.dtype = DType::f32, b.empty = false;  // whatever there is not for the other types
    std::optional<Anchor> a;
    const Builder::Mark before = b.mark();
    const bool whole =
        !is_float(b.dtype);  // of the anchors with formulas ONNX has products alone for integers
    switch (whole ? b.draw.between(5, 7) : b.draw.below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        a = conv(b);
        break;
      case 4:
        a = deconv(b);
        break;
      case 5:
      case 6:
        a = matmul(b);
        break;
      case 7:
        a = gemm(b);
        break;
      case 8:
      case 9:
        a = pool(b);
        break;
      case 10:
        a = channel_norm(b);
        break;
      case 11:
        a = row_norm(b);
        break;
    }
    if (a && (tries > 15 || !b.says_nothing(a->result))) return *a;
    b.back_to(before);
  }
}

std::optional<Value> another(Builder& b, const Anchor& anchor) {
  std::vector<Value> operands = anchor.operands;
  if (b.draw.chance(50) || operands.size() < 2)
    operands[0] = b.input(b.dtype, operands[0].dims, b.mood);
  if (operands.size() > 1 && anchor.op != "BatchNormalization")
    operands[1] = b.constant(b.dtype, operands[1].dims, b.finite());
  auto a = anchor_of(b, anchor.op, operands, anchor.attributes, anchor.result.exact);
  return a ? std::optional(a->result) : std::nullopt;
}

}  // namespace ferrule::fuzz
