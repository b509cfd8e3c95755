#include <cmath>

#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {
namespace {

/// Nodes one behind the other: once one is not valid, all that follows is nothing.
class Spelling {
 public:
  Spelling(Builder& b, DType dtype) : b_(b), d_(b.draw), dtype_(dtype) {}
  Made operator()(const std::string& op, const std::vector<Made>& operands,
                  const std::string& attributes = "") {
    std::vector<Value> all;
    for (const Made& o : operands) {
      if (!o) return std::nullopt;
      all.push_back(*o);
    }
    Made r = b_.node(op, all, attributes);
    if (r) r->exact = r->positive = false;
    return r;
  }
  /// An operator whose operands may change places.
  Made either(const std::string& op, const Made& x, const Made& y) {
    return d_.chance(50) ? (*this)(op, {x, y}) : (*this)(op, {y, x});
  }
  /// A factor or divisor, as it comes out of several exporters.
  Made scaled(const Made& x, double factor) {
    if (d_.chance(50)) return either("Mul", x, number(factor));
    return (*this)("Div", {x, number(1 / factor)});
  }
  Made number(double value) {
    static const std::vector<Dims> shapes{{}, {}, {}, {1}, {1, 1}};
    return b_.literal_of(dtype_, d_.of(shapes), value);
  }
  Made square(const Made& x) {
    return d_.chance(50) ? (*this)("Mul", {x, x}) : (*this)("Pow", {x, number(2)});
  }
  Made reduce(const std::string& op, const Made& x, const std::vector<int64_t>& axes) {
    return (*this)(op, {x, b_.literal(axes)}, "keepdims = 1");
  }
  Made weights(const Dims& dims, Mood mood = Mood::plain) {
    return b_.constant(dtype_, dims, mood);
  }

 private:
  Builder& b_;
  Draw& d_;
  DType dtype_;
};

Made softmax(Builder& b, const Value& v) {
  Spelling s(b, v.dtype);
  const std::vector<int64_t> axes{b.draw.chance(70) ? -1 : b.draw.between(-v.rank(), -1)};
  Made x = v;
  if (b.draw.chance(70))
    x = s("Sub", {v, s.reduce("ReduceMax", v, axes)});
  else if (!b.draw.chance(50))
    return s("Softmax", {s.scaled(v, 0.25)}, fmt::format("axis = {}", axes[0]));
  else
    x = s("Tanh", {v});
  Made e = s("Exp", {x}), sum = s.reduce("ReduceSum", e, axes);
  return b.draw.chance(60) ? s("Div", {e, sum}) : s.either("Mul", e, s("Reciprocal", {sum}));
}

/// LayerNormalization, RMSNormalization and, over other axes, InstanceNormalization.
Made spelled_norm(Builder& b, const Value& v) {
  Draw& d = b.draw;
  Spelling s(b, v.dtype);
  std::vector<int64_t> axes{-1};
  if (v.rank() == 4 && d.chance(40))
    axes = d.of(std::vector<std::vector<int64_t>>{{2, 3}, {1}, {1, 2, 3}, {-2, -1}});
  Made centred = v;
  if (d.chance(70)) centred = s("Sub", {v, s.reduce("ReduceMean", v, axes)});
  Made spread = s.reduce("ReduceMean", s.square(centred), axes);
  spread = s.either("Add", spread, s.number(0.01));
  Made r = d.chance(60) ? s("Div", {centred, s("Sqrt", {spread})})
                        : s.either("Mul", centred, s("Reciprocal", {s("Sqrt", {spread})}));
  const Dims per = axes.size() > 1 ? Dims{v.dims[1], 1, 1}
                   : axes[0] == 1  ? Dims{v.dims[1], 1, 1}
                                   : Dims{v.dims.back()};
  if (d.chance(70)) r = s.either("Mul", r, s.weights(per));
  if (d.chance(60)) r = s.either("Add", r, s.weights(per));
  return r;
}

Made activation(Builder& b, const Value& v) {
  Draw& d = b.draw;
  Spelling s(b, v.dtype);
  switch (d.below(8)) {
    case 0:
    case 1: {  // Gelu, its half before or behind
      Made g = s.either("Add", s("Erf", {s.scaled(v, 0.7071067811865476)}), s.number(1));
      if (d.chance(40)) return s.either("Mul", s.either("Mul", v, s.number(0.5)), g);
      return d.chance(50) ? s.either("Mul", s.either("Mul", v, g), s.number(0.5))
                          : s.either("Mul", v, s.either("Mul", g, s.number(0.5)));
    }
    case 2: {
      Made cube = d.chance(50) ? s("Pow", {v, s.number(3)}) : s("Mul", {s("Mul", {v, v}), v});
      Made inner = s.scaled(s.either("Add", v, s.either("Mul", cube, s.number(0.044715))),
                            0.7978845608028654);
      return s.either("Mul", s.either("Mul", v, s.number(0.5)),
                      s.either("Add", s("Tanh", {inner}), s.number(1)));
    }
    case 3:
      return s.either("Mul", v, s("Sigmoid", {v}));
    case 4:
      return s.either("Mul", v, s("Sigmoid", {s.scaled(v, 1.702)}));
    case 5:
      return s.either("Mul", v, s("Tanh", {s("Softplus", {v})}));
    case 6: {  // HardSwish
      Made r = s("Clip", {s.either("Add", v, s.number(3)), b.literal_of(v.dtype, {}, 0),
                          b.literal_of(v.dtype, {}, 6)});
      return d.chance(50) ? s.scaled(s.either("Mul", v, r), 1.0 / 6)
                          : s.either("Mul", v, s.scaled(r, 1.0 / 6));
    }
    default: {  // halves, one the gate of the other
      if (v.dims.back() % 2 || v.dims.back() == 0) return std::nullopt;
      auto halves = b.nodes("Split", {v}, "axis = -1, num_outputs = 2", {v.dtype, v.dtype});
      return halves ? s.either("Mul", halves->at(0),
                               s(d.chance(50) ? "Sigmoid" : "Gelu", {halves->at(1)}))
                    : std::nullopt;
    }
  }
}

/// A gate of channels: what is large in the mean passes.
Made gate(Builder& b, const Value& v) {
  Draw& d = b.draw;
  if (v.rank() != 4) return std::nullopt;
  Spelling s(b, v.dtype);
  const int64_t c = v.dims[1], inner = d.of({1, 2, 4});
  Made x = d.chance(60) ? s("GlobalAveragePool", {v}) : s.reduce("ReduceMean", v, {2, 3});
  x = s("Relu", {s("Conv", {x, s.weights({inner, c, 1, 1}), s.weights({inner})})});
  x = s("Conv", {x, s.weights({c, inner, 1, 1}), s.weights({c})});
  x = d.chance(60) ? s("Sigmoid", {x}) : s("HardSigmoid", {x});
  return s.either("Mul", v, x);
}

/// [B, S, D] -> [B, heads, S, D / heads], with the last two exchanged for keys.
Made heads(Spelling& s, Builder& b, const Made& x, const Dims& dims, int64_t heads, bool turned) {
  Made r = s("Reshape", {x, b.literal({dims[0], dims[1], heads, -1})});
  return s("Transpose", {r}, turned ? "perm = [0,2,3,1]" : "perm = [0,2,1,3]");
}

Made attention(Builder& b, const Value& v) {
  Draw& d = b.draw;
  if (v.rank() != 3 || v.numel() == 0) return std::nullopt;
  Spelling s(b, v.dtype);
  const int64_t n = d.of({1, 2, 4}), size = d.of({1, 2, 4, 8}), length = v.dims[1];
  auto projected = [&] {
    Made x = s("MatMul", {v, s.weights({v.dims[2], n * size})});
    return d.chance(50) ? s.either("Add", x, s.weights({n * size})) : x;
  };
  Made q = heads(s, b, projected(), v.dims, n, false),
       k = heads(s, b, projected(), v.dims, n, true),
       w = heads(s, b, projected(), v.dims, n, false);
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  const int64_t where = d.below(4);
  if (where == 0) q = s.scaled(q, scale);
  if (where == 1) q = s.scaled(q, std::sqrt(scale)), k = s.scaled(k, std::sqrt(scale));
  Made p = s("MatMul", {q, k});
  if (where == 2) p = s.scaled(p, scale);
  const int64_t mask = d.below(4);
  if (mask == 1)
    p = s.either(
        "Add", p,
        b.input(v.dtype,
                d.of(std::vector<Dims>{
                    {length}, {1, 1, 1, length}, {length, length}, {v.dims[0], 1, length, length}}),
                b.finite()));
  if (mask == 2 && p) {
    const Value keep = b.input(
        DType::boolean,
        d.of(std::vector<Dims>{{length, length}, {1, 1, 1, length}, {v.dims[0], 1, 1, length}}),
        Mood::exact);
    p = b.node("Where", {keep, *p, b.literal_of(v.dtype, {}, v.dtype == DType::f16 ? -1e4 : -1e9)},
               "", v.dtype);
  }
  p = s("Softmax", {p}, "axis = -1");
  Made o = s("Transpose", {s("MatMul", {p, w})}, "perm = [0,2,1,3]");
  o = s("Reshape", {o, b.literal({v.dims[0], length, -1})});
  return d.chance(50) ? s("MatMul", {o, s.weights({n * size, v.dims[2]})}) : o;
}

/// A sum, a norm of it, what a layer makes of that, and the sum again: behind the norm, or on the
/// way to it.
Made residual(Builder& b, const Value& v) {
  Draw& d = b.draw;
  if (v.numel() == 0) return std::nullopt;
  Spelling s(b, v.dtype);
  Made sum =
      s.either(d.of(Strings{"Add", "Add", "Mul"}), v,
               b.input(v.dtype, d.chance(70) ? v.dims : operand_dims(d, v.dims), b.finite()));
  if (!sum) return sum;
  if (d.chance(20)) b.output(*sum);
  auto layer = [&](const Made& x) {
    return d.chance(70) ? s("MatMul", {x, s.weights({v.dims.back(), v.dims.back()})})
                        : s("Neg", {x});
  };
  Made x = d.chance(15) ? s.either("Add", sum, layer(sum)) : sum;
  if (!x) return x;
  Made n =
      d.chance(30)   ? spelled_norm(b, *x)
      : d.chance(30) ? softmax(b, *x)
      : d.chance(50)
          ? s("LayerNormalization", {x, s.weights({v.dims.back()})}, "axis = -1, epsilon = 0.01")
          : s("RMSNormalization", {x, s.weights({v.dims.back()})}, "axis = -1, epsilon = 0.01");
  return s.either("Add", sum, layer(n));
}

/// Sizes read off a value, and a Reshape by them.
Made by_shape(Builder& b, const Value& v) {
  if (v.rank() < 1 || v.numel() == 0) return std::nullopt;
  Made shape = b.node("Shape", {v}, "", DType::i64);
  if (!shape) return shape;
  Made first = b.node("Gather", {*shape, b.literal({0})}, "axis = 0", DType::i64);
  Made to = first ? b.node("Concat", {*first, b.literal({-1})}, "axis = 0", DType::i64) : first;
  return to ? b.node("Reshape", {v, *to}) : to;
}

}  // namespace

Made draw_idiom(Builder& b, const Value& v) {
  if (!is_float(v.dtype) || v.rank() < 1) return std::nullopt;
  const int64_t kind = b.draw.below(24);
  Made r = kind < 4    ? softmax(b, v)
           : kind < 8  ? spelled_norm(b, v)
           : kind < 13 ? activation(b, v)
           : kind < 15 ? gate(b, v)
           : kind < 18 ? attention(b, v)
           : kind < 22 ? residual(b, v)
                       : by_shape(b, v);
  if (r) r->exact = r->positive = false;
  return r;
}

}  // namespace ferrule::fuzz
