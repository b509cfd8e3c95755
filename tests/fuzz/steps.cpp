#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {
namespace {

/// What an operator asks of its operand, and what it leaves of it.
struct Unary {
  const char* op;
  const char* attributes;
  enum { any, exact, positive } needs;
  bool keeps_exact, keeps_positive;
  bool whole = false;  ///< there is one for integers
};
constexpr Unary kUnary[] = {
    {"Relu", "", Unary::any, true, true, true},
    {"Sigmoid", "", Unary::any, false, true},
    {"Tanh", "", Unary::any, false, true},
    {"LeakyRelu", "alpha = 0.125", Unary::any, true, true},
    {"LeakyRelu", "alpha = -0.5", Unary::any, true, true},
    {"LeakyRelu", "", Unary::any, false, true},
    {"ThresholdedRelu", "alpha = 0.5", Unary::exact, true, false},
    {"HardSwish", "", Unary::any, false, false},
    {"HardSigmoid", "", Unary::any, false, false},
    {"HardSigmoid", "alpha = 0.3, beta = 0.25", Unary::any, false, false},
    {"Gelu", "", Unary::any, false, false},
    {"Gelu", "approximate = \"tanh\"", Unary::any, false, false},
    {"Elu", "alpha = 0.5", Unary::any, false, true},
    {"Selu", "", Unary::any, false, true},
    {"Celu", "alpha = 2.0", Unary::any, false, true},
    {"Softplus", "", Unary::any, false, true},
    {"Softsign", "", Unary::any, false, true},
    {"Mish", "", Unary::any, false, false},
    {"Erf", "", Unary::any, false, true},
    {"Exp", "", Unary::any, false, true},
    {"Abs", "", Unary::any, true, true, true},
    {"Neg", "", Unary::any, true, false, true},
    {"Identity", "", Unary::any, true, true, true},
    {"Sign", "", Unary::exact, true, true, true},
    {"Floor", "", Unary::exact, true, false},
    {"Ceil", "", Unary::exact, true, true},
    {"Round", "", Unary::exact, true, false},
    {"Sqrt", "", Unary::positive, false, true},
    {"Log", "", Unary::positive, false, false},
    {"Reciprocal", "", Unary::positive, false, true},
};

Made unary(Builder& b, const Value& v) {
  const Unary& u =
      kUnary[b.draw.chance(25) ? 0 : b.draw.below(std::size(kUnary))];  // Relu is a quarter of them
  if (!is_float(v.dtype) && !u.whole) return std::nullopt;
  if ((u.needs == Unary::exact && !v.exact) || (u.needs == Unary::positive && !v.positive))
    return std::nullopt;
  Made r = b.node(u.op, {v}, u.attributes);
  if (r) r->exact = v.exact && u.keeps_exact, r->positive = v.positive && u.keeps_positive;
  return r;
}

/// A bound of Clip: a number, one that is computed, or none.
Value bound(Builder& b, DType dtype, double value) {
  const int64_t kind = b.draw.below(10);
  if (kind < 2) return {};
  if (kind < 8) return b.literal_of(dtype, {}, value);
  const Value x = b.input(dtype, {}, b.finite());
  if (kind == 8) return x;
  Made r = b.node("Abs", {x});
  return r ? *r : x;
}

Made clip(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const std::vector<double> ends = is_float(v.dtype) ? std::vector<double>{-1, -0.5, 0, 0.5, 1, 6}
                                                     : std::vector<double>{-2, 0, 1, 3, 6};
  double low = d.of(ends), high = d.of(ends);
  if (low > high && d.chance(75)) std::swap(low, high);
  const Value from = bound(b, v.dtype, low), to = bound(b, v.dtype, high);
  return b.node("Clip",
                to.name.empty() ? std::vector<Value>{v, from} : std::vector<Value>{v, from, to});
}

bool operand_is_wider(const Dims& operand, const Dims& dims) {
  if (operand.size() > dims.size()) return true;
  for (size_t k = 1; k <= operand.size(); ++k)
    if (operand[operand.size() - k] != 1 && operand[operand.size() - k] != dims[dims.size() - k])
      return true;
  return false;
}

Made binary(Builder& b, const Scene& scene, const Value& v) {
  Draw& d = b.draw;
  static const Strings ops{"Add", "Add", "Add",   "Mul",   "Mul", "Mul", "Sub", "Sub",  "Div",
                           "Div", "Pow", "PRelu", "PRelu", "Min", "Max", "Sum", "Mean", "Mod"};
  const std::string op = d.of(ops);
  if (!is_float(v.dtype) && (op == "Sum" || op == "Mean")) return std::nullopt;
  bool swapped = d.chance(50);
  std::optional<Mood> mood;
  if (op == "Div" || op == "Mod")
    mood = Mood::positive, swapped = swapped && v.positive && op == "Div";
  if (op == "Pow") mood = Mood::positive, swapped = swapped || !v.positive;
  if (op == "PRelu") swapped = false;
  if (op == "Mod" && is_float(v.dtype)) {
    if (!v.exact) return std::nullopt;
    mood = Mood::exact;
  }
  const Value o = draw_operand(b, scene, v, mood);
  std::vector<Value> operands = swapped ? std::vector<Value>{o, v} : std::vector<Value>{v, o};
  if ((op == "Min" || op == "Max" || op == "Sum") && d.chance(30))
    operands.insert(operands.begin() + d.below(3), draw_operand(b, scene, v));
  if (op == "PRelu" && operand_is_wider(o.dims, v.dims))
    return std::nullopt;  // slopes are spread over x, never x over them
  Made r = b.node(op, operands, op == "Mod" && is_float(v.dtype) ? "fmod = 1" : "");
  if (!r) return r;
  r->exact = r->exact && op != "Div" && op != "Pow" && op != "Mean" &&
             (op != "Mul" || o.numel() <= v.numel());
  r->positive = v.positive && o.positive && op != "Sub" && op != "Mod";
  return r;
}

/// A large value and two factors whose product the type does not hold: one by one nothing is lost.
Made scaled_down(Builder& b, const Value& v) {
  const double small = v.dtype == DType::f16 ? 1e-4 : 1e-23;
  Made r = b.node("Mul", {v, b.literal_of(v.dtype, {}, 0.25 / small)});
  if (r) r = b.node("Abs", {*r});  // factors behind it are multiplied without those in front
  for (int n = 0; n < 2 && r; ++n)
    r = b.node("Mul", {*r, b.literal_of(v.dtype, b.draw.of(std::vector<Dims>{{}, {1}}), small)});
  if (r) r->exact = false, r->positive = false;
  return r;
}

/// Constant factors in a row, which folds multiply: none may leave the type's range on the way. Not
/// behind what may be 0: weights that a factor was folded into leave another rounding of it, which
/// the next factors make large.
Made scaled(Builder& b, const Value& v) {
  Draw& d = b.draw;
  if (is_float(v.dtype) && b.mood != Mood::wild && d.chance(30)) return scaled_down(b, v);
  if (!is_float(v.dtype) || !v.positive) return std::nullopt;
  const std::vector<double> halves{1e-4, 1e-4, 1e4, 1e4, 0.125, 3},
      floats{1e-18, 1e-18, 1e18, 1e18, 0.125, 3};
  Made r = v;
  for (int64_t n = d.between(2, 4); n > 0 && r; --n) {
    const Value k = b.literal_of(v.dtype, d.of(std::vector<Dims>{{}, {}, {1}, {1, 1, 1, 1}}),
                                 d.of(v.dtype == DType::f16 ? halves : floats));
    r = b.node(d.of(Strings{"Mul", "Mul", "Mul", "Div"}),
               d.chance(70) ? std::vector<Value>{*r, k} : std::vector<Value>{k, *r});
    if (r && d.chance(30))
      r = b.node("Abs", {*r});  // factors behind it are multiplied without those in front
    if (r) r->exact = false, r->positive = false;
  }
  return r;
}

/// The value twice: x + x, x * sigmoid(x), two readers that meet.
Made twice(Builder& b, const Value& v) {
  Draw& d = b.draw;
  Made left = v, right = v;
  if (d.chance(70)) right = unary(b, v);
  if (right && d.chance(20)) left = unary(b, v);
  if (!left || !right) return std::nullopt;
  if (d.chance(30)) std::swap(left, right);
  return b.node(d.of(Strings{"Mul", "Mul", "Add", "Sub", "Max"}), {*left, *right});
}

/// A comparison, and a choice by it.
Made choice(Builder& b, const Scene& scene, const Value& v) {
  Draw& d = b.draw;
  Made by;
  if (v.exact && d.chance(70)) {
    const Value o = draw_operand(b, scene, v, Mood::exact);
    const bool swapped = d.chance(40);
    by = b.node(d.of(Strings{"Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"}),
                swapped ? std::vector<Value>{o, v} : std::vector<Value>{v, o}, "", DType::boolean);
    if (by && d.chance(20)) by = b.node("Not", {*by});
    if (by && d.chance(20))
      return b.node("Cast", {*by}, fmt::format("to = {}", static_cast<int>(v.dtype)), v.dtype);
  } else {
    by = b.input(DType::boolean, operand_dims(d, v.dims), Mood::exact);
    if (d.chance(30))
      by = b.node(d.of(Strings{"And", "Or", "Xor"}),
                  {*by, b.constant(DType::boolean, operand_dims(d, v.dims), Mood::exact)});
  }
  if (!by) return by;
  const Value o = draw_operand(b, scene, v);
  Made r =
      b.node("Where", d.chance(50) ? std::vector<Value>{*by, v, o} : std::vector<Value>{*by, o, v},
             "", v.dtype);
  if (r) r->exact = v.exact && o.exact;
  return r;
}

Made convert(Builder& b, const Value& v) {
  if (!is_float(v.dtype) || v.dtype == DType::f16) {
    Made wide = b.node("Cast", {v}, "to = 1", DType::f32);
    if (!wide) return wide;
    Made r = unary(b, *wide);
    if (r && !is_float(v.dtype) && !r->exact)
      return std::nullopt;  // one rounding more or less is another integer
    return r ? b.node("Cast", {*r}, fmt::format("to = {}", static_cast<int>(v.dtype)), v.dtype) : r;
  }
  Made narrow = b.node("Cast", {v}, "to = 10", DType::f16);
  if (narrow && b.draw.chance(40)) narrow = unary(b, *narrow);
  Made r =
      narrow ? b.node("Cast", {*narrow}, fmt::format("to = {}", static_cast<int>(v.dtype)), v.dtype)
             : narrow;
  if (r) r->exact = false;
  return r;
}

std::vector<int64_t> axes_of(Draw& d, int rank) {
  std::vector<int64_t> axes;
  for (int a = 0; a < rank; ++a)
    if (d.chance(45)) axes.push_back(d.chance(30) ? a - rank : a);
  return axes;
}

Made slice(Builder& b, const Value& v) {
  Draw& d = b.draw;
  std::vector<int64_t> starts, ends, axes = axes_of(d, v.rank()), steps;
  for (int64_t a : axes) {
    const int64_t n = v.dims[static_cast<size_t>(a < 0 ? a + v.rank() : a)], from = d.between(0, n);
    if (d.chance(20))
      starts.push_back(-1), ends.push_back(-n - 1), steps.push_back(-1);
    else
      starts.push_back(from == n ? 0 : from),
          ends.push_back(d.chance(50) ? n : std::min(n, starts.back() + d.between(1, n + 1))),
          steps.push_back(d.of({1, 1, 1, 2}));
  }
  if (axes.empty()) return std::nullopt;
  return b.node("Slice",
                {v, b.literal(starts), b.literal(ends), b.literal(axes), b.literal(steps)});
}

Made reshape(Builder& b, const Value& v) {
  Draw& d = b.draw;
  std::vector<int64_t> to = v.dims;
  switch (d.below(4)) {
    case 0:
      to = {-1};
      break;
    case 1:
      if (to.size() < 2) return std::nullopt;
      to[to.size() - 2] = -1, to.pop_back();
      break;
    case 2:
      to.insert(to.begin() + d.below(v.rank() + 1), 1);
      break;
    default:
      to = {v.rank() > 0 ? v.dims[0] : 1, -1};
      break;
  }
  for (int64_t n : v.dims)
    if (n == 0) return std::nullopt;  // -1 and 0 mean something else then
  return b.node("Reshape", {v, b.literal(to)});
}

Made movement(Builder& b, const Scene& scene, const Value& v) {
  Draw& d = b.draw;
  const int rank = v.rank();
  const int64_t last = std::max(0, rank - 1);
  switch (d.below(10)) {
    case 0:
    case 1: {
      std::vector<int64_t> perm;
      for (int a = 0; a < rank; ++a) perm.push_back(a);
      d.shuffle(perm);
      return rank ? b.node("Transpose", {v}, "perm = " + ints(perm)) : std::nullopt;
    }
    case 2:
      return reshape(b, v);
    case 3:
      return rank ? slice(b, v) : std::nullopt;
    case 4:
    case 9: {
      if (!rank) return std::nullopt;
      Value other = v;
      if (const int64_t kind = d.below(10); kind < 4)
        other = b.input(v.dtype, v.dims, v.exact ? Mood::exact : b.mood);
      else if (auto a = another(b, scene.anchor); a && kind < 8)
        other = *a;
      return b.node("Concat",
                    d.chance(50) ? std::vector<Value>{v, other} : std::vector<Value>{other, v},
                    fmt::format("axis = {}", d.between(-rank, last)));
    }
    case 5: {
      std::vector<int64_t> pads;
      for (int k = 0; k < 2 * rank; ++k) pads.push_back(d.of({0, 0, 1, 2}));
      const std::string mode = d.of(Strings{"constant", "constant", "edge", "reflect"});
      return rank ? b.node("Pad", {v, b.literal(pads)}, "mode = \"" + mode + "\"") : std::nullopt;
    }
    case 6:
      return b.node("Flatten", {v}, fmt::format("axis = {}", d.between(0, rank)));
    case 7:
      return b.node("Unsqueeze", {v, b.literal({d.between(0, rank)})});
    default: {
      if (!rank || v.dims[static_cast<size_t>(last)] % 2) return std::nullopt;
      auto halves = b.nodes("Split", {v}, fmt::format("axis = {}, num_outputs = 2", last),
                            {v.dtype, v.dtype});
      if (!halves) return std::nullopt;
      return b.node(d.of(Strings{"Add", "Mul", "Sub"}), {(*halves)[0], (*halves)[1]});
    }
  }
}

Made reduction(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const std::string op = d.of(Strings{"ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax",
                                      "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"});
  if (!is_float(v.dtype) && (op == "ReduceMean" || op == "ReduceL1" || op == "ReduceL2"))
    return std::nullopt;
  // The squares of huge numbers overflow in a kernel, and not in the interpreter's f64.
  if (op == "ReduceL2" && b.mood == Mood::wild) return std::nullopt;
  const auto axes = axes_of(d, v.rank());
  std::vector<Value> operands{v};
  if (!axes.empty() || d.chance(50)) operands.push_back(b.literal(axes));
  Made r = b.node(op, operands, fmt::format("keepdims = {}", d.below(2)));
  if (r)
    r->exact = v.exact && (op == "ReduceMax" || op == "ReduceMin" || op == "ReduceSum"),
    r->positive = v.positive;
  return r;
}

/// An operator with a kernel of its own behind the first.
Made further(Builder& b, const Value& v) {
  Draw& d = b.draw;
  const int rank = v.rank();
  Made r;
  if (!is_float(v.dtype)) return std::nullopt;
  switch (d.below(5)) {
    case 0:
      r = b.node(d.of(Strings{"Softmax", "LogSoftmax"}), {v},
                 fmt::format("axis = {}", d.between(-1, std::max(0, rank - 1))));
      break;
    case 1: {
      if (rank < 3) return std::nullopt;
      const std::string spatial = rank == 3   ? "2"
                                  : rank == 4 ? "2,2"
                                              : "2,2,2",
                        same = d.chance(50) ? ", auto_pad = \"SAME_UPPER\"" : "";
      return b.node(d.of(Strings{"MaxPool", "AveragePool"}), {v},
                    "kernel_shape = [" + spatial + "]" + same);
    }
    case 2: {
      if (rank < 3) return std::nullopt;
      Dims filter(static_cast<size_t>(rank), d.of({1, 1, 2}));
      filter[0] = b.square ? b.side : d.of({1, 2, 4}), filter[1] = v.dims[1];
      r = b.node("Conv", {v, b.constant(v.dtype, filter, v.exact ? Mood::exact : b.finite())});
      break;
    }
    case 3: {
      if (rank < 1) return std::nullopt;
      r = b.node("MatMul",
                 {v, b.constant(v.dtype, {v.dims.back(), b.square ? b.side : d.of({1, 2, 4})},
                                v.exact ? Mood::exact : b.finite())});
      break;
    }
    default:
      if (rank < 1) return std::nullopt;
      r = b.node("LayerNormalization", {v, b.constant(v.dtype, {v.dims.back()}, Mood::plain)},
                 "epsilon = 0.01");
  }
  if (r) r->exact = false;
  return r;
}

Made any_step(Builder& b, const Scene& scene) {
  const Value v = scene.values.back();
  const int64_t kind = b.draw.below(100);
  return kind < 40   ? binary(b, scene, v)
         : kind < 55 ? unary(b, v)
         : kind < 60 ? clip(b, v)
         : kind < 64 ? scaled(b, v)
         : kind < 70 ? twice(b, v)
         : kind < 76 ? choice(b, scene, v)
         : kind < 79 ? convert(b, v)
         : kind < 91 ? movement(b, scene, v)
         : kind < 96 ? reduction(b, v)
                     : further(b, v);
}

}  // namespace

bool draw_step(Builder& b, Scene& scene) {
  const Builder::Mark before = b.mark();
  const Made r = any_step(b, scene);
  if (r && b.says_nothing(*r) && !b.draw.chance(kDull)) {
    b.back_to(before);
    return false;
  }
  if (r) scene.values.push_back(*r);
  return r.has_value();
}

}  // namespace ferrule::fuzz
