#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {
namespace {

/// Indices into an axis of n elements, negative ones among them.
Value indices(Builder& b, const Dims& dims, int64_t n) {
  std::vector<int64_t> all;
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  for (int64_t k = 0; k < count; ++k) all.push_back(b.draw.between(-n, n - 1));
  return b.literal_as(dims, all);
}

Made to_type(Builder& b, const Made& v, DType dtype) {
  return v ? b.node("Cast", {*v}, fmt::format("to = {}", static_cast<int>(dtype)), dtype) : v;
}

Made other_unary(Builder& b, const Value& v) {
  Draw& d = b.draw;
  if (is_float(v.dtype)) {
    static const Strings smooth{"Sin", "Cos", "Atan", "Asinh", "Tanh", "Erf", "HardSwish"};
    static const Strings contrib{"com.microsoft.Gelu", "com.microsoft.FastGelu",
                                 "com.microsoft.QuickGelu"};
    switch (d.below(6)) {
      case 0:
        return to_type(b, b.node("IsNaN", {v}, "", DType::boolean), v.dtype);
      case 1:
        return to_type(b, b.node("IsInf", {v}, "detect_negative = 0", DType::boolean), v.dtype);
      case 2:
        return v.exact ? b.node("Shrink", {v}, "lambd = 1.0, bias = 0.5") : std::nullopt;
      case 3:
        return b.node(d.of(contrib), {v});
      case 4:
        return b.node("Dropout", {v});
      default:
        return b.node(d.of(smooth), {v});
    }
  }
  if (v.dtype == DType::boolean) return b.node("Not", {v});
  switch (d.below(3)) {
    case 0:
      return b.node("BitwiseNot", {v});
    case 1:
      return b.node(d.of(Strings{"BitwiseAnd", "BitwiseOr", "BitwiseXor"}),
                    {v, b.constant(v.dtype, operand_dims(d, v.dims), Mood::plain)});
    default:
      return is_unsigned_int(v.dtype)
                 ? b.node("BitShift", {v, b.literal_of(v.dtype, {}, 1)}, "direction = \"LEFT\"")
                 : b.node("Sign", {v});
  }
}

/// Conversions there and back; to integers only what is exact, for which every order of sums is the
/// same.
Made conversion(Builder& b, const Value& v) {
  const DType to = static_cast<DType>(b.draw.of({1, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 16}));
  if (!is_float(to) && is_float(v.dtype)) {
    if (!v.exact || b.mood == Mood::wild) return std::nullopt;
    Made bounded = b.node("Clip", {v, b.literal_of(v.dtype, {}, is_unsigned_int(to) ? 0 : -100),
                                   b.literal_of(v.dtype, {}, 100)});
    return to_type(b, to_type(b, bounded, to), v.dtype);
  }
  if (to == DType::f16 || to == DType::bf16)
    return is_float(v.dtype) ? to_type(b, to_type(b, v, to), v.dtype) : std::nullopt;
  return is_float(v.dtype) || b.draw.chance(50)
             ? to_type(b, to_type(b, v, to), v.dtype)
             : b.node("CastLike", {v, b.literal_of(v.dtype, {}, 1)});
}

Made gather(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int64_t axis = d.below(v.rank()), n = v.dims[static_cast<size_t>(axis)];
  if (n < 1 || v.dims[0] < 1) return std::nullopt;
  const std::string along = fmt::format("axis = {}", d.chance(30) ? axis - v.rank() : axis);
  Dims same = v.dims;
  switch (d.below(6)) {
    case 0:
    case 1:
      return b.node("Gather",
                    {v, indices(b, d.of(std::vector<Dims>{{}, {1}, {2}, {2, 2}, {n}}), n)}, along);
    case 2:
      same[static_cast<size_t>(axis)] = d.between(1, 3);
      return b.node("GatherElements", {v, indices(b, same, n)}, along);
    case 3:
      return b.node("GatherND", {v, indices(b, {2, 1}, v.dims[0])});
    case 4: {
      same[static_cast<size_t>(axis)] = 1;
      const std::string how = v.exact ? d.of(Strings{"none", "add", "max", "min"}) : "none";
      return b.node(
          "ScatterElements",
          {v, indices(b, same, n), b.constant(v.dtype, same, v.exact ? Mood::exact : b.finite())},
          along + ", reduction = \"" + how + "\"");
    }
    default:
      same[0] = 1;
      return b.node("ScatterND",
                    {v, b.literal_as({1, 1}, {d.below(std::max<int64_t>(1, v.dims[0]))}),
                     b.constant(v.dtype, same, v.exact ? Mood::exact : b.finite())});
  }
}

Made moved(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int rank = v.rank();
  switch (d.below(8)) {
    case 0: {
      std::vector<int64_t> repeats;
      for (int a = 0; a < rank; ++a) repeats.push_back(d.of({1, 1, 1, 2, 3}));
      return b.node("Tile", {v, b.literal(repeats)});
    }
    case 1: {
      Dims to = operand_dims(d, v.dims);
      return b.node("Expand", {v, b.literal(to)});
    }
    case 2:
      return rank == 4 ? b.node("DepthToSpace", {v},
                                "blocksize = 2, mode = \"" + d.of(Strings{"DCR", "CRD"}) + "\"")
                       : std::nullopt;
    case 3:
      return rank == 4 ? b.node("SpaceToDepth", {v}, "blocksize = 2") : std::nullopt;
    case 4:
      return rank > 1
                 ? b.node("Trilu",
                          {v, b.literal_of(DType::i64, {}, static_cast<double>(d.between(-1, 1)))},
                          fmt::format("upper = {}", d.below(2)))
                 : std::nullopt;
    case 5: {
      std::vector<int64_t> ones;
      for (int a = 0; a < rank; ++a)
        if (v.dims[static_cast<size_t>(a)] == 1 && d.chance(60))
          ones.push_back(d.chance(30) ? a - rank : a);
      return ones.empty() ? std::nullopt : b.node("Squeeze", {v, b.literal(ones)});
    }
    case 6:
      return b.node("Unsqueeze", {v, b.literal({0, -1})});
    default:
      return rank > 1 && v.dims[0] > 0 && v.dims[1] > 0
                 ? b.node("ReverseSequence",
                          {v, b.literal(std::vector<int64_t>(static_cast<size_t>(v.dims[1]),
                                                             d.between(1, v.dims[0])))},
                          "time_axis = 0, batch_axis = 1")
                 : std::nullopt;
  }
}

Made along_rows(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int rank = v.rank();
  const int64_t axis = d.between(-rank, rank - 1),
                n = v.dims[static_cast<size_t>(axis < 0 ? axis + rank : axis)];
  const std::string along = fmt::format("axis = {}", axis);
  const bool tame = v.exact && b.mood != Mood::wild && n > 0;
  switch (d.below(9)) {
    case 0:
      return b.node("CumSum", {v, b.literal_of(DType::i64, {}, static_cast<double>(axis))},
                    fmt::format("exclusive = {}, reverse = {}", d.below(2), d.below(2)));
    case 1:
    case 2: {
      if (!tame) return std::nullopt;
      auto both =
          b.nodes("TopK", {v, b.literal({d.between(1, n)})},
                  fmt::format("axis = {}, largest = {}", axis, d.below(2)), {v.dtype, DType::i64});
      if (both && d.chance(40) && !b.says_nothing((*both)[1])) b.output((*both)[1]);
      return both ? Made((*both)[0]) : std::nullopt;
    }
    case 3:
      return tame ? b.node(d.of(Strings{"ArgMax", "ArgMin"}), {v},
                           along + fmt::format(", keepdims = {}, select_last_index = {}",
                                               d.below(2), d.below(2)),
                           DType::i64)
                  : std::nullopt;
    case 4:
      return tame ? b.node("Hardmax", {v}, along) : std::nullopt;
    case 5:  // the squares of huge numbers overflow in a kernel, and not in the interpreter's f64
      return !is_float(v.dtype) || b.mood == Mood::wild
                 ? std::nullopt
                 : b.node("LpNormalization", {v}, along + fmt::format(", p = {}", d.between(1, 2)));
    case 6:
      return rank == 4 && is_float(v.dtype)
                 ? b.node("MeanVarianceNormalization", {v},
                          d.chance(50) ? "axes = [0,2,3]" : "axes = [2,3]")
                 : std::nullopt;
    case 7:
      return rank > 2 && is_float(v.dtype)
                 ? b.node("LRN", {v}, fmt::format("size = {}", d.of({1, 3, 5})))
                 : std::nullopt;
    default:
      return b.node(d.of(Strings{"ReduceLogSumExp", "ReduceProd", "ReduceSumSquare"}),
                    {v, b.literal({axis})}, fmt::format("keepdims = {}", d.below(2)));
  }
}

/// Letters of either operand alone and of both, kept or summed up, in any order.
Made einsum_of_two(Builder& b, const Value& v) {
  Draw& d = b.draw;
  std::string left, right, out;
  Dims of_right;
  auto insert = [&](std::string& s, char c) {
    const auto at = static_cast<size_t>(d.below(static_cast<int64_t>(s.size()) + 1));
    s.insert(s.begin() + static_cast<std::ptrdiff_t>(at), c);
    return static_cast<std::ptrdiff_t>(at);
  };
  auto of_w = [&](char c, int64_t size) {
    const std::ptrdiff_t at = insert(right, c);
    of_right.insert(of_right.begin() + at, size);
  };
  for (int k = 0; k < v.rank(); ++k) {
    const char c = static_cast<char>('a' + k);
    left += c;
    const bool both = d.chance(60);
    if (both) of_w(c, v.dims[static_cast<size_t>(k)]);
    if (d.chance(both ? 50 : 90)) insert(out, c);
  }
  for (int64_t k = d.below(3); k > 0; --k) {
    const char c = static_cast<char>('p' + k);
    of_w(c, d.between(1, 3));
    if (d.chance(95)) insert(out, c);
  }
  const Value w = b.constant(v.dtype, of_right, v.exact ? Mood::exact : b.finite());
  const bool turned = d.chance(30);
  return b.node(
      "Einsum", turned ? std::vector{w, v} : std::vector{v, w},
      fmt::format("equation = \"{},{}->{}\"", turned ? right : left, turned ? left : right, out));
}

Made einsum(Builder& b, const Value& v) {
  static const std::vector<Strings> one{{},
                                        {"i->i"},
                                        {"ij->ji", "ij->i", "ii->i"},
                                        {"ijk->kij", "ijk->ik"},
                                        {"ijkl->ilkj", "ijkl->il"}};
  Draw& d = b.draw;
  if (v.rank() < 1 || v.rank() > 4) return std::nullopt;
  if (d.chance(30))
    return b.node("Einsum", {v}, "equation = \"" + d.of(one[static_cast<size_t>(v.rank())]) + "\"");
  if (d.chance(60)) return einsum_of_two(b, v);
  const std::string left = std::string("bhij").substr(static_cast<size_t>(4 - v.rank())),
                    right = d.chance(50) ? "jk" : "kj";
  const int64_t n = d.of({1, 2, 4}), k = v.dims.back();
  const Value w = b.constant(v.dtype, right == "jk" ? Dims{k, n} : Dims{n, k},
                             v.exact ? Mood::exact : b.finite());
  return b.node(
      "Einsum", {v, w},
      fmt::format("equation = \"{},{}->{}k\"", left, right, left.substr(0, left.size() - 1)));
}

/// "[\"Tanh\", \"Relu\"]", so many of them. Unbounded ones follow a clip.
std::string activations(Draw& d, int64_t count, bool clipped) {
  static const Strings bounded{"Sigmoid", "Tanh", "HardSigmoid", "Softsign", "ScaledTanh"},
      any{"Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "Elu", "Softplus", "Tanh"};
  std::string out;
  for (int64_t k = 0; k < count; ++k)
    out += (k ? ", \"" : "[\"") + d.of(clipped && d.chance(50) ? any : bounded) + "\"";
  return out + "]";
}

Made recurrent(Builder& b, const Value& v) {
  Draw& d = b.draw;
  if (v.rank() != 3 || v.numel() == 0 || v.dtype != DType::f32) return std::nullopt;
  const bool batch_first = d.chance(30);
  const int64_t steps = v.dims[batch_first ? 1 : 0], batch = v.dims[batch_first ? 0 : 1];
  if (steps > 8) return std::nullopt;
  const std::string op = d.of(Strings{"LSTM", "GRU", "RNN"});
  const bool both = d.chance(40), clipped = d.chance(30);
  const int64_t gates = op == "LSTM"  ? 4
                        : op == "GRU" ? 3
                                      : 1,
                size = d.of({1, 2, 4, 17}), ways = both ? 2 : 1;
  const Dims state = batch_first ? Dims{batch, ways, size} : Dims{ways, batch, size};
  auto maybe = [&](int64_t percent, const Dims& dims) {
    return d.chance(percent) ? b.constant(v.dtype, dims, Mood::plain) : Value{};
  };
  std::vector<Value> operands{v, b.constant(v.dtype, {ways, gates * size, v.dims[2]}, Mood::plain),
                              b.constant(v.dtype, {ways, gates * size, size}, Mood::plain),
                              maybe(60, {ways, 2 * gates * size})};
  operands.push_back({});
  if (d.chance(40)) {
    std::vector<int64_t> lengths;
    for (int64_t k = 0; k < batch; ++k) lengths.push_back(d.between(0, steps));
    const Made given = to_type(b, b.literal_as({batch}, lengths), DType::i32);
    if (given) operands.back() = *given;
  }
  operands.push_back(maybe(40, state));
  if (op == "LSTM") {
    operands.push_back(maybe(40, state));
    operands.push_back(maybe(30, {ways, 3 * size}));
  }
  while (operands.back().name.empty()) operands.pop_back();
  std::string attributes = fmt::format("hidden_size = {}, layout = {}", size, batch_first ? 1 : 0) +
                           (both           ? ", direction = \"bidirectional\""
                            : d.chance(30) ? ", direction = \"reverse\""
                                           : "");
  if (clipped) attributes += ", clip = 1.5";
  if (op == "GRU" && d.chance(50)) attributes += ", linear_before_reset = 1";
  if (op == "LSTM" && d.chance(30)) attributes += ", input_forget = 1";
  if (d.chance(40))
    attributes += ", activations = " + activations(d,
                                                   ways * (op == "LSTM"  ? 3
                                                           : op == "GRU" ? 2
                                                                         : 1),
                                                   clipped);
  auto all = b.nodes(op, operands, attributes, std::vector(op == "LSTM" ? 3 : 2, v.dtype));
  if (!all) return std::nullopt;
  for (size_t k = 1; k < all->size(); ++k)
    if (d.chance(30) && !b.says_nothing((*all)[k])) b.output((*all)[k]);
  return (*all)[0];
}

/// com.microsoft's and ONNX's operators that stand for graphs, and quantized products.
Made compound(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int rank = v.rank();
  switch (d.below(is_float(v.dtype) ? 3 : 4)) {
    case 0:
      return !is_float(v.dtype) ? std::nullopt
                                : b.node("com.microsoft.BiasGelu",
                                         {v, b.constant(v.dtype, {v.dims.back()}, Mood::plain)});
    case 1: {
      if (rank != 4 || v.numel() == 0 || !is_float(v.dtype)) return std::nullopt;
      auto other = [&] { return d.chance(50) ? v : b.constant(v.dtype, v.dims, Mood::plain); };
      return b.node("Attention", {v, other(), other()}, fmt::format("is_causal = {}", d.below(2)));
    }
    case 2: {
      if ((rank != 4 && rank != 5) || v.numel() == 0 || v.dtype != DType::f32) return std::nullopt;
      Dims points{v.dims[0], 3, 2, 2};
      if (rank == 5) points = {v.dims[0], 2, 3, 2, 3};
      return b.node("GridSample", {v, b.constant(v.dtype, points, Mood::plain)},
                    fmt::format("mode = \"{}\", padding_mode = \"{}\", align_corners = {}",
                                d.of(Strings{"linear", "nearest", "cubic"}),
                                d.of(Strings{"zeros", "border", "reflection"}), d.below(2)));
    }
    default: {
      if (v.dtype != DType::u8 && v.dtype != DType::i8) return std::nullopt;
      Made r = b.node("MatMulInteger",
                      {v, b.constant(DType::i8, {v.dims.back(), d.of({1, 2, 4})}, Mood::plain)}, "",
                      DType::i32);
      return r ? b.node("Cast", {*r}, "to = 1", DType::f32) : r;
    }
  }
}

}  // namespace

Made draw_other(Builder& b, const Value& v) {
  const int64_t kind = v.rank() ? b.draw.below(100) : b.draw.below(28);
  Made r = kind < 16   ? other_unary(b, v)
           : kind < 28 ? conversion(b, v)
           : kind < 44 ? gather(b, v)
           : kind < 64 ? moved(b, v)
           : kind < 80 ? along_rows(b, v)
           : kind < 86 ? einsum(b, v)
           : kind < 92 ? recurrent(b, v)
                       : compound(b, v);
  if (!r) return r;
  r->exact = v.exact && (kind < 64 ? kind >= 16 || !is_float(v.dtype) : !is_float(r->dtype));
  r->positive = v.positive && kind >= 28 && kind < 44 && !v.exact;
  return r;
}

}  // namespace ferrule::fuzz
